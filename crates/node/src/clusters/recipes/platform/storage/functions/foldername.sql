-- Folders of a path: `foldername('a/b/c.png')` is `{a,b}`.
create or replace function storage.foldername(name text) returns text[]
language plpgsql immutable
as $$
declare
    parts text[] := string_to_array(name, '/');
begin
    return parts[1:cardinality(parts) - 1];
end
$$;
alter function storage.foldername(text) owner to supabase_storage_admin;
