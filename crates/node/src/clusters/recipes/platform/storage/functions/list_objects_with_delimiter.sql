-- Files and common prefixes of a bucket in the order of their names, as ListObjectsV2 of the S3 protocol returns them.
-- Common prefixes have no id. A page starts after `next_token`, or else after `start_after`.
create or replace function storage.list_objects_with_delimiter(_bucket_id text, prefix_param text, delimiter_param text, max_keys integer default 100,
    start_after text default '', next_token text default '', sort_order text default 'asc') returns table (
    name text, id uuid, metadata jsonb, updated_at timestamptz, created_at timestamptz, last_accessed_at timestamptz)
language plpgsql stable
as $$
declare
    ascending boolean := lower(sort_order) <> 'desc';
    after text := coalesce(nullif(next_token, ''), nullif(start_after, ''));
begin
    return query
        with entries as (
            select storage.get_common_prefix(o.name, prefix_param, delimiter_param) as common, o.*
            from storage.objects o
            where o.bucket_id = _bucket_id and starts_with(o.name, prefix_param)
        ), listed as (
            select e.name, e.id, e.metadata, e.updated_at, e.created_at, e.last_accessed_at
            from entries e
            where e.common is null
            union all
            select distinct e.common, null::uuid, null::jsonb, null::timestamptz, null::timestamptz, null::timestamptz
            from entries e
            where e.common is not null
        )
        select l.*
        from listed l
        where after is null
            or (ascending and l.name collate "C" > after)
            or (not ascending and l.name collate "C" < after)
        order by
            case when ascending then l.name collate "C" end asc,
            case when not ascending then l.name collate "C" end desc
        limit max_keys;
end
$$;
alter function storage.list_objects_with_delimiter(text, text, text, integer, text, text, text) owner to supabase_storage_admin;
