-- Files and folders at one level of a bucket in the order of a time column, newest or oldest first; a folder has the times of
-- its newest file. A page starts after the pair of `p_sort_column_after` and `p_start_after`.
create or replace function storage.search_by_timestamp(p_prefix text, p_bucket_id text, p_limit integer, p_level integer, p_start_after text, p_sort_order text,
    p_sort_column text, p_sort_column_after text) returns table (
    key text, name text, id uuid, updated_at timestamptz, created_at timestamptz, last_accessed_at timestamptz, metadata jsonb)
language plpgsql stable
as $$
declare
    descending boolean := lower(p_sort_order) = 'desc';
    sorted_by text := case lower(p_sort_column) when 'updated_at' then 'updated_at' else 'created_at' end;
begin
    return query execute format(
        $query$
        with matching as (
            select array_to_string(path_tokens[1:$3], '/') as path, cardinality(path_tokens) = $3 as is_file, o.*
            from storage.objects o
            where o.bucket_id = $1 and starts_with(lower(o.name), lower($2)) and cardinality(path_tokens) >= $3
        ), listed as (
            select path, null::uuid as id, max(updated_at) as updated_at, max(created_at) as created_at,
                max(last_accessed_at) as last_accessed_at, null::jsonb as metadata
            from matching
            where not is_file
            group by path
            union all
            select path, id, updated_at, created_at, last_accessed_at, metadata
            from matching
            where is_file
        )
        select split_part(path, '/', $3), path || case when id is null then '/' else '' end, id, updated_at, created_at,
            last_accessed_at, metadata
        from listed
        where $4 = '' or $5 = '' or (%1$I, path collate "C") %2$s ($5::timestamptz, $4)
        order by %1$I %3$s, path collate "C" %3$s
        limit $6
        $query$, sorted_by, case when descending then '<' else '>' end, case when descending then 'desc' else 'asc' end)
        using p_bucket_id, p_prefix, greatest(p_level, 1), coalesce(p_start_after, ''), coalesce(p_sort_column_after, ''), p_limit;
end
$$;
alter function storage.search_by_timestamp(text, text, integer, integer, text, text, text, text) owner to supabase_storage_admin;
