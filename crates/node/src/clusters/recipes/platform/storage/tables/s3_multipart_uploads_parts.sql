-- Parts of a multipart upload.
create table storage.s3_multipart_uploads_parts (
    id uuid default gen_random_uuid() not null,
    upload_id text not null,
    size bigint default 0 not null,
    part_number integer not null,
    bucket_id text not null,
    key text not null,
    etag text not null,
    owner_id text,
    version text not null,
    created_at timestamptz default now() not null,
    constraint s3_multipart_uploads_parts_pkey primary key (id),
    constraint s3_multipart_uploads_parts_bucket_id_fkey foreign key (bucket_id) references storage.buckets (id),
    constraint s3_multipart_uploads_parts_upload_id_fkey foreign key (upload_id) references storage.s3_multipart_uploads (id) on delete cascade
);

alter table storage.s3_multipart_uploads_parts owner to supabase_storage_admin;
alter table storage.s3_multipart_uploads_parts enable row level security;
grant all on storage.s3_multipart_uploads_parts to service_role, authenticated, anon, postgres;
comment on table storage.s3_multipart_uploads_parts is 'Parts of a multipart upload';
