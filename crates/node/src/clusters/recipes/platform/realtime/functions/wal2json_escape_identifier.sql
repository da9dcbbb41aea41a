-- An identifier with the characters escaped that separate names in options of wal2json.
create or replace function realtime.wal2json_escape_identifier(name text) returns text
language sql immutable
as $$
    select regexp_replace(name, '([\\ ,.*])', '\\\1', 'g')
$$;
alter function realtime.wal2json_escape_identifier(text) owner to supabase_realtime_admin;
grant execute on function realtime.wal2json_escape_identifier(text) to postgres, dashboard_user;
