-- All run in every session, also with session_replication_role = replica, and belong to the superuser.
do $$
begin
    if not exists (select from pg_event_trigger where evtname = 'explain_missing_extension') then
        create event trigger explain_missing_extension on ddl_command_start when tag in ('CREATE EXTENSION')
            execute function extensions.explain_missing_extension();
    end if;
    if not exists (select from pg_event_trigger where evtname = 'grant_extension_access') then
        create event trigger grant_extension_access on ddl_command_end when tag in ('CREATE EXTENSION', 'ALTER EXTENSION')
            execute function extensions.grant_extension_access();
    end if;
    if not exists (select from pg_event_trigger where evtname = 'move_extension') then
        create event trigger move_extension on ddl_command_start when tag in ('ALTER EXTENSION')
            execute function extensions.move_extension();
    end if;
    alter event trigger move_extension enable always;
    alter event trigger explain_missing_extension enable always;
    alter event trigger grant_extension_access enable always;
end
$$;
-- GRANT … ON ALL FUNCTIONS IN SCHEMA extensions, in a migration, fails for a function on which the owner has no privilege at all.
-- These are of no use to anyone but PostgreSQL: all are trigger functions.
grant execute on function extensions.explain_missing_extension(), extensions.grant_extension_access(), extensions.check_cron_job(),
    extensions.move_extension() to public;
