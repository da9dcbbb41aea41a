-- Files and folders at one level of a bucket, a page at a time. `name` is the whole path, with a final slash for folders, and `key` is
-- its last segment. A page by name starts after `start_after`; one by created_at or updated_at as `search_by_timestamp` describes.
create or replace function storage.search_v2(prefix text, bucket_name text, limits integer default 100, levels integer default 1, start_after text default '',
    sort_order text default 'asc', sort_column text default 'name', sort_column_after text default '') returns table (
    key text, name text, id uuid, updated_at timestamptz, created_at timestamptz, last_accessed_at timestamptz, metadata jsonb)
language plpgsql stable
as $$
declare
    descending boolean := lower(sort_order) = 'desc';
begin
    if lower(sort_column) in ('created_at', 'updated_at') then
        return query
            select * from storage.search_by_timestamp(
                prefix, bucket_name, limits, levels, start_after, sort_order, sort_column, sort_column_after);
        return;
    end if;
    return query
        with matching as (
            select array_to_string(path_tokens[1:greatest(levels, 1)], '/') as path, cardinality(path_tokens) = greatest(levels, 1) as is_file, o.*
            from storage.objects o
            where o.bucket_id = bucket_name and starts_with(lower(o.name), lower(prefix)) and cardinality(path_tokens) >= greatest(levels, 1)
        ), listed as (
            select distinct m.path || '/' as path, null::uuid as id, null::timestamptz as updated_at, null::timestamptz as created_at,
                null::timestamptz as last_accessed_at, null::jsonb as metadata
            from matching m
            where not m.is_file
            union all
            select m.path, m.id, m.updated_at, m.created_at, m.last_accessed_at, m.metadata
            from matching m
            where m.is_file
        )
        select split_part(l.path, '/', greatest(levels, 1)), l.path, l.id, l.updated_at, l.created_at, l.last_accessed_at, l.metadata
        from listed l
        where start_after = ''
            or (not descending and l.path collate "C" > start_after)
            or (descending and l.path collate "C" < start_after)
        order by
            case when not descending then l.path collate "C" end asc,
            case when descending then l.path collate "C" end desc
        limit limits;
end
$$;
alter function storage.search_v2(text, text, integer, integer, text, text, text, text) owner to supabase_storage_admin;
