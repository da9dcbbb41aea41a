-- Moves an extension of the owner to another schema, as `alter extension … set schema` asks. PostgreSQL requires the ownership
-- of the extension's members, which belong to the superuser, but does nothing if the extension is in that schema already.
-- So it is moved at the start of the command. The text of the query only says which one: PostgreSQL checks the command itself
-- afterwards, and an error undoes the move. The extension must belong to the owner, who must be allowed to create in the schema.
create or replace function extensions.move_extension() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted record;
begin
    -- The command below runs this function again.
    if current_setting('gantry.moving_extension', true) = 'on' or current_query() !~* '\mset\s+schema\M' then
        return;
    end if;
    perform set_config('gantry.moving_extension', 'on', true);
    for wanted in
        select distinct on (extension.oid) extension.extname, namespace.nspname
        from regexp_matches(left(current_query(), 100000),
            '\malter\s+extension\s+(?:"([^"]{1,63})"|([a-z_][a-z0-9_$]{0,62}))\s+set\s+schema\s+(?:"([^"]{1,63})"|([a-z_][a-z0-9_$]{0,62}))',
            'gi') with ordinality as mentioned (part, position)
        join pg_extension as extension on extension.extname = coalesce(part[1], lower(part[2]))
        join pg_namespace as namespace on namespace.nspname = coalesce(part[3], lower(part[4]))
        where extension.extowner = (select oid from pg_roles where rolname = 'postgres')
            and extension.extrelocatable and extension.extnamespace <> namespace.oid
            and has_schema_privilege('postgres', namespace.oid, 'create')
        -- The next command, if the text moves one extension twice.
        order by extension.oid, mentioned.position
    loop
        execute format('alter extension %I set schema %I', wanted.extname, wanted.nspname);
    end loop;
    perform set_config('gantry.moving_extension', 'off', true);
end
$$;
