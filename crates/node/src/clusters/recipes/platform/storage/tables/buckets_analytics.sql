-- Buckets of Iceberg tables.
create table storage.buckets_analytics (
    name text not null,
    type storage.buckettype default 'ANALYTICS'::storage.buckettype not null,
    format text default 'ICEBERG'::text not null,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    id uuid default gen_random_uuid() not null,
    deleted_at timestamptz,
    constraint buckets_analytics_pkey primary key (id)
);
create unique index buckets_analytics_unique_name_idx on storage.buckets_analytics (name) where deleted_at is null;

alter table storage.buckets_analytics owner to supabase_storage_admin;
alter table storage.buckets_analytics enable row level security;
grant all on storage.buckets_analytics to service_role, authenticated, anon, postgres;
comment on table storage.buckets_analytics is 'Buckets of Iceberg tables';
