-- Unfinished uploads and common prefixes of a bucket in the order of their keys, as ListMultipartUploads of the S3 protocol
-- returns them. A page starts after the pair of `next_key_token` and `next_upload_token`.
create or replace function storage.list_multipart_uploads_with_delimiter(bucket_id text, prefix_param text, delimiter_param text, max_keys integer default 100,
    next_key_token text default '', next_upload_token text default '') returns table (
    key text, id text, created_at timestamptz)
language plpgsql
as $$
begin
    return query
        with entries as (
            select storage.get_common_prefix(u.key, prefix_param, delimiter_param) as common, u.key, u.id, u.created_at
            from storage.s3_multipart_uploads u
            where u.bucket_id = list_multipart_uploads_with_delimiter.bucket_id and starts_with(u.key, prefix_param)
        ), listed as (
            select e.key, e.id, e.created_at from entries e where e.common is null
            union all
            select e.common, null::text, min(e.created_at) from entries e where e.common is not null group by e.common
        )
        select l.key, l.id, l.created_at
        from listed l
        where next_key_token = ''
            or l.key collate "C" > next_key_token
            or (l.key = next_key_token and l.id collate "C" > next_upload_token)
        order by l.key collate "C", l.id collate "C"
        limit max_keys;
end
$$;
alter function storage.list_multipart_uploads_with_delimiter(text, text, text, integer, text, text) owner to supabase_storage_admin;
