-- Namespaces in the Iceberg catalog of an analytics bucket.
create table storage.iceberg_namespaces (
    id uuid default gen_random_uuid() not null,
    bucket_name text not null,
    name text not null,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    metadata jsonb default '{}'::jsonb not null,
    catalog_id uuid not null,
    constraint iceberg_namespaces_pkey primary key (id),
    constraint iceberg_namespaces_catalog_id_fkey foreign key (catalog_id) references storage.buckets_analytics (id) on delete cascade
);
create unique index idx_iceberg_namespaces_bucket_id on storage.iceberg_namespaces (catalog_id, name);

alter table storage.iceberg_namespaces owner to supabase_storage_admin;
alter table storage.iceberg_namespaces enable row level security;
grant all on storage.iceberg_namespaces to service_role, authenticated, anon, postgres;
comment on table storage.iceberg_namespaces is 'Namespaces in the Iceberg catalog of an analytics bucket';
