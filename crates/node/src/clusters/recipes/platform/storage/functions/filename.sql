-- Last segment of a path: `filename('a/b/c.png')` is `c.png`.
create or replace function storage.filename(name text) returns text
language plpgsql immutable
as $$
declare
    parts text[] := string_to_array(name, '/');
begin
    return parts[cardinality(parts)];
end
$$;
alter function storage.filename(text) owner to supabase_storage_admin;
