-- Metadata of files. Policies on this table authorize access to files.
create table storage.objects (
    id uuid default gen_random_uuid() not null,
    bucket_id text,
    name text,
    owner uuid,
    created_at timestamptz default now(),
    updated_at timestamptz default now(),
    last_accessed_at timestamptz default now(),
    metadata jsonb,
    path_tokens text[] generated always as (string_to_array(name, '/'::text)) stored,
    version text,
    owner_id text,
    user_metadata jsonb,
    archived_at timestamptz,
    is_delete_marker boolean default false not null,
    is_versioned boolean default false not null,
    constraint objects_pkey primary key (id),
    constraint "objects_bucketId_fkey" foreign key (bucket_id) references storage.buckets (id)
);
create unique index bucketid_objname on storage.objects (bucket_id, name);
create index idx_objects_bucket_id_name on storage.objects (bucket_id, name collate "C");
create index idx_objects_bucket_id_name_lower on storage.objects (bucket_id, lower(name) collate "C");
create index name_prefix_search on storage.objects (name text_pattern_ops);

alter table storage.objects owner to supabase_storage_admin;
alter table storage.objects enable row level security;
grant all on storage.objects to postgres with grant option;
grant all on storage.objects to service_role, authenticated, anon;
comment on table storage.objects is 'Metadata of files. Policies on this table authorize access to files';
