-- Buckets of vector indexes.
create table storage.buckets_vectors (
    id text not null,
    type storage.buckettype default 'VECTOR'::storage.buckettype not null,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    constraint buckets_vectors_pkey primary key (id)
);

alter table storage.buckets_vectors owner to supabase_storage_admin;
alter table storage.buckets_vectors enable row level security;
grant all on storage.buckets_vectors to service_role, authenticated, anon, postgres;
comment on table storage.buckets_vectors is 'Buckets of vector indexes';
