-- Refuses definitions by code of the tenant that runs with the rights of a role of the platform. There are two ways to run it:
--
-- - PostgreSQL calls the input functions of types while it reads a command, and those of arrays of a domain check its constraints:
--   `using (name = any ('{a}'::public.checked[]))`. A policy is read during the membership of tenant_policies.sql.
-- - The platform's services log in as roles that own its functions. Triggers of the tenant on its tables run as these roles, and a
--   function in a policy can return to them with `reset role`. A service names in its query what it defines.
--
-- It runs as the user of the command, and before platform_tables_begin: event triggers run in the order of their names.
create or replace function extensions.platform_guard() returns event_trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select rolsuper from pg_roles where rolname = current_user) then
        return;
    end if;
    if exists (
        select from pg_auth_members m
        join pg_roles owner on owner.oid = m.roleid
        join pg_roles member on member.oid = m.member
        where member.rolname = 'postgres'
            and owner.rolname in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin'))
    then
        raise exception 'a policy on a table of the platform cannot run a definition'
            using errcode = 'insufficient_privilege', detail = format('Refused: %s.', tg_tag);
    end if;
    if current_user in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_functions_admin')
        and current_query() !~* ('\m(call|' || split_part(tg_tag, ' ', 1) || ')\M|\mdo\s*(\$|''|language\M)')
    then
        raise exception 'a trigger or policy cannot run a definition as role %', current_user
            using errcode = 'insufficient_privilege', detail = format('Refused: %s.', tg_tag),
                hint = 'Declare the function as SECURITY DEFINER, so that it runs as its owner.';
    end if;
end
$$;

do $$
begin
    if not exists (select from pg_event_trigger where evtname = 'platform_guard') then
        create event trigger platform_guard on ddl_command_start execute function extensions.platform_guard();
    end if;
end
$$;
-- Also in sessions with session_replication_role = replica.
alter event trigger platform_guard enable always;
