-- Multipart uploads of the S3 protocol that are not finished yet.
create table storage.s3_multipart_uploads (
    id text not null,
    in_progress_size bigint default 0 not null,
    upload_signature text not null,
    bucket_id text not null,
    key text not null,
    version text not null,
    owner_id text,
    created_at timestamptz default now() not null,
    user_metadata jsonb,
    metadata jsonb,
    constraint s3_multipart_uploads_pkey primary key (id),
    constraint s3_multipart_uploads_bucket_id_fkey foreign key (bucket_id) references storage.buckets (id)
);
create index idx_multipart_uploads_list on storage.s3_multipart_uploads (bucket_id, key, created_at);

alter table storage.s3_multipart_uploads owner to supabase_storage_admin;
alter table storage.s3_multipart_uploads enable row level security;
grant all on storage.s3_multipart_uploads to service_role, authenticated, anon, postgres;
comment on table storage.s3_multipart_uploads is 'Multipart uploads of the S3 protocol that are not finished yet';
