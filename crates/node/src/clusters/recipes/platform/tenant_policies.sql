-- The tenant may define policies and triggers on the platform's tables, and nothing else that needs their ownership.
--
-- PostgreSQL asks for ownership of a table to define a policy on it, to drop a trigger, or to enable row level security. For
-- one such command at a time, `postgres` becomes a member of the roles that own the tables: the membership begins in
-- ddl_command_start and ends in ddl_command_end of the same command; an error undoes it with the command. Of these commands, the
-- definition of a policy can run code of the tenant, in literals of its types; platform_guard refuses what that code defines.
-- ALTER TABLE runs such code in defaults, for example, and is therefore accepted only if the whole query is a single
-- ALTER TABLE … ROW LEVEL SECURITY.
--
-- Some commands run no event trigger: REASSIGN OWNED, and before PostgreSQL 16 also SET ROLE with ALTER ROLE, by which a member
-- changes the password and the settings of the role. So the roles and what they own are compared at the end of the command with
-- what they were at its beginning.

-- Digest of what the roles that own the platform's tables own and, before PostgreSQL 16, of their attributes, passwords and settings.
create or replace function extensions.platform_roles() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with reserved as (
        select oid, a::text as attributes from pg_authid a
        where rolname in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin')
    ), facts as (
        select d::text as fact from pg_shdepend d join reserved on oid = refobjid
        where refclassid = 'pg_authid'::regclass and deptype = 'o'
        union all
        select attributes from reserved where current_setting('server_version_num')::integer < 160000
        union all
        select s::text from pg_db_role_setting s join reserved on oid = setrole
        where current_setting('server_version_num')::integer < 160000
    )
    select md5(string_agg(fact, ',' order by fact)) from facts
$$;

create or replace function extensions.platform_tables_begin() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    reserved name;
begin
    -- A filter that spares most commands the two catalog changes. It does not decide what is allowed.
    if session_user = 'supabase_admin' or current_query() !~* '(auth|storage|realtime)' then
        return;
    end if;
    -- Anchored at both ends, so that the query is this one statement. Only comments before it are skipped.
    if tg_tag = 'ALTER TABLE' and current_query() !~* ('^(\s|--[^\n]*\n|/\*[^*]*\*/)*'
        || 'alter\s+table\s+(if\s+exists\s+)?(only\s+)?"?(auth|storage|realtime)"?\s*\.\s*"?[a-z0-9_]+"?\s+'
        || '(enable|force)\s+row\s+level\s+security\s*;?\s*$')
    then
        return;
    end if;
    insert into extensions.platform_window values (pg_backend_pid(), extensions.platform_roles())
    on conflict (pid) do update set roles = excluded.roles;
    foreach reserved in array array['supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin'] loop
        if current_setting('server_version_num')::integer >= 160000 then
            execute format('grant %I to postgres with inherit true, set false', reserved);
        else
            execute format('grant %I to postgres', reserved);
        end if;
    end loop;
end
$$;

create or replace function extensions.platform_tables_end() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    reserved name;
    before text;
begin
    delete from extensions.platform_window where pid = pg_backend_pid() returning roles into before;
    if found and (before <> extensions.platform_roles()
        or current_setting('role') in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin'))
    then
        raise exception 'a policy on a table of the platform cannot change its roles' using errcode = 'insufficient_privilege';
    end if;
    for reserved in
        select owner.rolname
        from pg_auth_members m
        join pg_roles owner on owner.oid = m.roleid
        join pg_roles member on member.oid = m.member
        where member.rolname = 'postgres'
            and owner.rolname in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin')
    loop
        execute format('revoke %I from postgres', reserved);
    end loop;
end
$$;

-- Triggers of the platform on its own tables stay.
create or replace function extensions.platform_tables_drop() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    dropped record;
begin
    if session_user = 'supabase_admin' then
        return;
    end if;
    for dropped in select object_identity from pg_event_trigger_dropped_objects() where object_type = 'trigger' loop
        if dropped.object_identity in (
            'enforce_bucket_name_length_trigger on storage.buckets', 'protect_buckets_delete on storage.buckets',
            'protect_objects_delete on storage.objects', 'update_objects_updated_at on storage.objects',
            'tr_check_filters on realtime.subscription')
        then
            raise exception 'trigger % belongs to the platform', dropped.object_identity using errcode = 'insufficient_privilege';
        end if;
    end loop;
end
$$;

do $$
begin
    if not exists (select from pg_event_trigger where evtname = 'platform_tables_begin') then
        create event trigger platform_tables_begin on ddl_command_start
            when tag in ('CREATE POLICY', 'ALTER POLICY', 'DROP POLICY', 'DROP TRIGGER', 'ALTER TABLE', 'COMMENT')
            execute function extensions.platform_tables_begin();
    end if;
    if not exists (select from pg_event_trigger where evtname = 'platform_tables_end') then
        create event trigger platform_tables_end on ddl_command_end
            when tag in ('CREATE POLICY', 'ALTER POLICY', 'DROP POLICY', 'DROP TRIGGER', 'ALTER TABLE', 'COMMENT')
            execute function extensions.platform_tables_end();
    end if;
    if not exists (select from pg_event_trigger where evtname = 'platform_tables_drop') then
        create event trigger platform_tables_drop on sql_drop
            when tag in ('DROP TRIGGER')
            execute function extensions.platform_tables_drop();
    end if;
end
$$;
-- Also in sessions with session_replication_role = replica.
alter event trigger platform_tables_begin enable always;
alter event trigger platform_tables_end enable always;
alter event trigger platform_tables_drop enable always;
