-- Tables in an Iceberg namespace.
create table storage.iceberg_tables (
    id uuid default gen_random_uuid() not null,
    namespace_id uuid not null,
    bucket_name text not null,
    name text not null,
    location text not null,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    remote_table_id text,
    shard_key text,
    shard_id text,
    catalog_id uuid not null,
    constraint iceberg_tables_pkey primary key (id),
    constraint iceberg_tables_catalog_id_fkey foreign key (catalog_id) references storage.buckets_analytics (id) on delete cascade,
    constraint iceberg_tables_namespace_id_fkey foreign key (namespace_id) references storage.iceberg_namespaces (id) on delete cascade
);
create unique index idx_iceberg_tables_location on storage.iceberg_tables (location);
create unique index idx_iceberg_tables_namespace_id on storage.iceberg_tables (catalog_id, namespace_id, name);

alter table storage.iceberg_tables owner to supabase_storage_admin;
alter table storage.iceberg_tables enable row level security;
grant all on storage.iceberg_tables to service_role, authenticated, anon, postgres;
comment on table storage.iceberg_tables is 'Tables in an Iceberg namespace';
