-- Name of a table as options of wal2json expect it: `schema.table`.
create or replace function realtime.quote_wal2json(entity regclass) returns text
language sql immutable
as $$
    select realtime.wal2json_escape_identifier(n.nspname) || '.' || realtime.wal2json_escape_identifier(c.relname)
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    where c.oid = entity
$$;
alter function realtime.quote_wal2json(regclass) owner to supabase_realtime_admin;
grant execute on function realtime.quote_wal2json(regclass) to postgres, dashboard_user, anon, authenticated, service_role;
