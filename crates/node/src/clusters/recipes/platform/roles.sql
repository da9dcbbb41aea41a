-- Roles of the platform's services. A role of the tenant with one of these names is left alone and reported; the platform's have
-- the comment below.
do $$
declare
    -- Before PostgreSQL 16, CREATEROLE includes membership in every role that is not a superuser.
    createrole text := case when current_setting('server_version_num')::integer >= 160000 then 'createrole' else 'nocreaterole' end;
    wanted record;
begin
    for wanted in
        select * from (values
            ('supabase_auth_admin', 'login noinherit ' || createrole),
            ('supabase_storage_admin', 'login noinherit ' || createrole),
            ('supabase_realtime_admin', 'nologin noinherit'),
            ('supabase_functions_admin', 'login noinherit ' || createrole),
            ('supabase_replication_admin', 'login replication'),
            ('supabase_etl_admin', 'login replication'),
            ('dashboard_user', 'nologin createdb replication ' || createrole),
            ('pgbouncer', 'login'),
            ('pgsodium_keyholder', 'nologin'),
            ('pgsodium_keyiduser', 'nologin'),
            ('pgsodium_keymaker', 'nologin'),
            ('pgtle_admin', 'nologin')
        ) as roles (name, attributes)
    loop
        if not exists (select from pg_roles where rolname = wanted.name) then
            execute format('create role %I %s', wanted.name, wanted.attributes);
            execute format('comment on role %I is ''Role of the platform''', wanted.name);
        elsif shobj_description(wanted.name::regrole, 'pg_authid') is distinct from 'Role of the platform'
            -- The tenant may comment on a role that it administers.
            or (wanted.attributes like 'login%' and exists (
                select from pg_auth_members m join pg_roles a on a.oid = m.member
                where m.roleid = wanted.name::regrole and m.admin_option and not a.rolsuper))
        then
            raise exception 'role % exists and does not belong to the platform', wanted.name
                using errcode = 'duplicate_object', hint = 'Rename the role.';
        end if;
    end loop;
end
$$;

-- Limits of requests through the Data API. Values that the owner of the project set are kept.
do $$
declare
    wanted record;
begin
    for wanted in
        select * from (values
            ('anon', 'statement_timeout', '3s'), ('authenticated', 'statement_timeout', '8s'),
            ('authenticator', 'statement_timeout', '8s'), ('authenticator', 'lock_timeout', '8s'))
            as timeouts (role, setting, value)
        where not exists (
            select from pg_db_role_setting s, unnest(s.setconfig) entry
            where s.setrole = timeouts.role::regrole and s.setdatabase = 0
            and entry like timeouts.setting || '=%')
    loop
        execute format('alter role %I set %I = %L', wanted.role, wanted.setting, wanted.value);
    end loop;
end
$$;

alter role supabase_auth_admin set search_path = auth;
alter role supabase_auth_admin set idle_in_transaction_session_timeout = '60000';
alter role supabase_storage_admin set search_path = storage;
alter role supabase_storage_admin set log_statement = 'none';

grant anon, authenticated, service_role to supabase_storage_admin;
grant pgsodium_keyholder to service_role;
grant pgsodium_keyholder, pgsodium_keyiduser, pgsodium_keymaker, pgtle_admin to postgres with admin option;
grant pg_monitor to postgres;

-- Gantry's own way to the tables of Auth and Storage, by peer only. Triggers and policies of the owner do not run in its sessions.
do $$
begin
    if not exists (select from pg_roles where rolname = 'gantry_rows') then
        create role gantry_rows login bypassrls;
    end if;
    alter role gantry_rows set session_replication_role = replica;
    alter role gantry_rows set search_path = pg_catalog;
    if current_setting('server_version_num')::integer >= 160000 then
        execute 'grant supabase_auth_admin, supabase_storage_admin, supabase_realtime_admin to gantry_rows with inherit true, set true';
    else
        grant supabase_auth_admin, supabase_storage_admin, supabase_realtime_admin to gantry_rows;
    end if;
end
$$;
