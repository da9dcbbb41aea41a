-- Extension of a file: `extension('a/b/c.png')` is `png`. A name without a dot is returned whole.
create or replace function storage.extension(name text) returns text
language plpgsql immutable
as $$
declare
    parts text[] := string_to_array(storage.filename(name), '.');
begin
    return parts[cardinality(parts)];
end
$$;
alter function storage.extension(text) owner to supabase_storage_admin;
