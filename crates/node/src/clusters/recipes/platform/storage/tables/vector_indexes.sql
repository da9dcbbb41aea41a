-- Vector indexes in a vector bucket.
create table storage.vector_indexes (
    id text default gen_random_uuid() not null,
    name text not null,
    bucket_id text not null,
    data_type text not null,
    dimension integer not null,
    distance_metric text not null,
    metadata_configuration jsonb,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    constraint vector_indexes_pkey primary key (id),
    constraint vector_indexes_bucket_id_fkey foreign key (bucket_id) references storage.buckets_vectors (id)
);
create unique index vector_indexes_name_bucket_id_idx on storage.vector_indexes (name, bucket_id);

alter table storage.vector_indexes owner to supabase_storage_admin;
alter table storage.vector_indexes enable row level security;
grant all on storage.vector_indexes to service_role, authenticated, anon, postgres;
comment on table storage.vector_indexes is 'Vector indexes in a vector bucket';
