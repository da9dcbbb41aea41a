-- Tell PostgREST to read the schema again when a transaction that changed it commits. The search path is fixed: an operator of
-- the tenant would run inside the command, with the membership of tenant_policies.sql or as superuser.
create or replace function extensions.pgrst_ddl_watch() returns event_trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    command record;
begin
    for command in select command_tag, schema_name from pg_catalog.pg_event_trigger_ddl_commands() loop
        -- Temporary objects are not part of the schema that PostgREST serves.
        if command.schema_name is distinct from 'pg_temp' and command.command_tag in (
            'CREATE SCHEMA', 'ALTER SCHEMA', 'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE FOREIGN TABLE',
            'ALTER FOREIGN TABLE', 'CREATE VIEW', 'ALTER VIEW', 'CREATE MATERIALIZED VIEW', 'ALTER MATERIALIZED VIEW',
            'CREATE FUNCTION', 'ALTER FUNCTION', 'CREATE PROCEDURE', 'ALTER PROCEDURE', 'CREATE TRIGGER', 'CREATE TYPE', 'ALTER TYPE',
            'CREATE RULE', 'CREATE DOMAIN', 'ALTER DOMAIN', 'GRANT', 'REVOKE', 'COMMENT')
        then
            notify pgrst, 'reload schema';
            return;
        end if;
    end loop;
end
$$;

create or replace function extensions.pgrst_drop_watch() returns event_trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    dropped record;
begin
    for dropped in select object_type, is_temporary from pg_catalog.pg_event_trigger_dropped_objects() loop
        if not dropped.is_temporary and dropped.object_type in (
            'schema', 'table', 'foreign table', 'view', 'materialized view', 'function', 'procedure', 'trigger', 'type', 'rule',
            'table column')
        then
            notify pgrst, 'reload schema';
            return;
        end if;
    end loop;
end
$$;

do $$
begin
    if not exists (select from pg_event_trigger where evtname = 'pgrst_ddl_watch') then
        create event trigger pgrst_ddl_watch on ddl_command_end execute function extensions.pgrst_ddl_watch();
    end if;
    if not exists (select from pg_event_trigger where evtname = 'pgrst_drop_watch') then
        create event trigger pgrst_drop_watch on sql_drop execute function extensions.pgrst_drop_watch();
    end if;
end
$$;
