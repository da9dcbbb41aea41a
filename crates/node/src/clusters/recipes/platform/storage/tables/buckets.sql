-- Buckets of files.
create table storage.buckets (
    id text not null,
    name text not null,
    owner uuid,
    created_at timestamptz default now(),
    updated_at timestamptz default now(),
    public boolean default false,
    avif_autodetection boolean default false,
    file_size_limit bigint,
    allowed_mime_types text[],
    owner_id text,
    type storage.buckettype default 'STANDARD'::storage.buckettype not null,
    versioning_status text default 'DISABLED'::text not null,
    constraint buckets_pkey primary key (id),
    constraint buckets_versioning_dark_check check (versioning_status = 'DISABLED'::text),
    constraint buckets_versioning_standard_only_check check ((type = 'STANDARD'::storage.buckettype) or (versioning_status = 'DISABLED'::text)),
    constraint buckets_versioning_status_check check (versioning_status = any (array['DISABLED'::text, 'ENABLED'::text, 'SUSPENDED'::text]))
);
create unique index bname on storage.buckets (name);

alter table storage.buckets owner to supabase_storage_admin;
alter table storage.buckets enable row level security;
grant all on storage.buckets to postgres with grant option;
grant all on storage.buckets to service_role, authenticated, anon;
comment on table storage.buckets is 'Buckets of files';
