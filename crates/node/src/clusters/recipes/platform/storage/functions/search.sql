-- Files and folders at one level of a bucket. Names are relative to the level; folders come first and have no id.
-- `prefix` and `search` together are the beginning of the paths, compared without case. Columns to sort by: name, updated_at,
-- created_at, last_accessed_at.
create or replace function storage.search(prefix text, bucketname text, limits integer default 100, levels integer default 1, offsets integer default 0,
    search text default '', sortcolumn text default 'name', sortorder text default 'asc') returns table (
    name text, id uuid, updated_at timestamptz, created_at timestamptz, last_accessed_at timestamptz, metadata jsonb)
language plpgsql stable
as $$
declare
    ordering text := case lower(sortorder) when 'desc' then 'desc' else 'asc' end;
    sorted_by text := case lower(sortcolumn)
        when 'updated_at' then 'updated_at'
        when 'created_at' then 'created_at'
        when 'last_accessed_at' then 'last_accessed_at'
        else 'name'
    end;
    beginning text := regexp_replace(coalesce(prefix, '') || coalesce(search, ''), '([\\%_])', '\\\1', 'g') || '%';
begin
    return query execute format(
        $query$
        with matching as (
            select path_tokens[$3] as entry, cardinality(path_tokens) = $3 as is_file, o.*
            from storage.objects o
            where o.bucket_id = $1 and o.name ilike $2 and cardinality(path_tokens) >= $3
        )
        select entry, id, updated_at, created_at, last_accessed_at, metadata
        from (
            select distinct entry, entry as name, null::uuid as id, null::timestamptz as updated_at, null::timestamptz as created_at,
                null::timestamptz as last_accessed_at, null::jsonb as metadata, 0 as rank
            from matching
            where not is_file
            union all
            select entry, entry, id, updated_at, created_at, last_accessed_at, metadata, 1
            from matching
            where is_file
        ) as listed
        order by rank, %1$I %2$s, entry %2$s
        limit $4 offset $5
        $query$, sorted_by, ordering)
        using bucketname, beginning, greatest(levels, 1), limits, offsets;
end
$$;
alter function storage.search(text, text, integer, integer, integer, text, text, text) owner to supabase_storage_admin;
