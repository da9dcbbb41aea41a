-- Registers the vault as the extension supabase_vault, so that `create extension if not exists supabase_vault` finds it. There are
-- no files of the extension: CREATE EXTENSION cannot make this row, and ALTER EXTENSION … ADD does not need them.
do $$
declare
    extension oid;
    member text;
begin
    if exists (select from pg_extension where extname = 'supabase_vault') then
        return;
    end if;
    set local allow_system_table_mods = on;
    extension := pg_nextoid('pg_extension', 'oid', 'pg_extension_oid_index');
    insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion, extconfig, extcondition)
    values (extension, 'supabase_vault', 'supabase_admin'::regrole, 'vault'::regnamespace, false, '0.3.1',
        -- Rows that a dump contains.
        array['vault.secrets'::regclass::oid], array['']);
    set local allow_system_table_mods = off;
    foreach member in array array[
        'table vault.secrets', 'view vault.decrypted_secrets', 'function vault.create_secret', 'function vault.update_secret',
        'function vault._encrypt', 'function vault._decrypt', 'function vault._hmac', 'function vault._random_bytes',
        'function vault._key', 'function vault._seal', 'function vault._open']
    loop
        execute 'alter extension supabase_vault add ' || member;
    end loop;
end
$$;
