-- The platform's own roles in a project, and the database that every project has, as they must be for the platform to work there.
-- The owner of the database may have changed both. Run as superuser in any database of the cluster; can be repeated.
do $$
declare
    wanted record;
    setting record;
    found name;
begin
    -- One at a time: two at once would change the same rows.
    perform pg_advisory_xact_lock(hashtext('gantry repair'));
    -- The database has this number since the cluster was made, whatever its name is now, and belongs to the owner's role.
    select datname into found from pg_database where oid = 5;
    if found <> 'postgres' and not exists (select from pg_database where datname = 'postgres') then
        perform pg_terminate_backend(pid) from pg_stat_activity where datname = found and pid <> pg_backend_pid();
        execute format('alter database %I rename to postgres', found);
    end if;
    select rolname into found from pg_database d join pg_roles r on r.oid = d.datdba where d.oid = 5 and not r.rolsuper;
    if found <> 'postgres' and not exists (select from pg_roles where rolname = 'postgres') then
        execute format('alter role %I rename to postgres', found);
    end if;

    for wanted in select * from (values ('gantry_owner', 'nobypassrls'), ('gantry_rows', 'bypassrls'),
                              ('supabase_read_only_user', 'bypassrls')) as roles (name, bypass)
    loop
        if not exists (select from pg_roles where rolname = wanted.name) then
            execute format('create role %I', wanted.name);
        end if;
        execute format('alter role %I login nosuperuser inherit nocreatedb nocreaterole noreplication %s connection limit -1 password null '
                       'valid until ''infinity''', wanted.name, wanted.bypass);
        for setting in
            select d.datname from pg_db_role_setting s left join pg_database d on d.oid = s.setdatabase
            where s.setrole = (select oid from pg_roles where rolname = wanted.name)
        loop
            if setting.datname is null then
                execute format('alter role %I reset all', wanted.name);
            else
                execute format('alter role %I in database %I reset all', wanted.name, setting.datname);
            end if;
        end loop;
    end loop;
    alter role supabase_read_only_user set default_transaction_read_only = on;
    -- Gantry's login for rows of Auth and Storage: triggers and policies of the owner do not run in its sessions.
    alter role gantry_rows set session_replication_role = replica;
    alter role gantry_rows set search_path = pg_catalog;
    for wanted in
        select rolname as name from pg_roles
        where rolname in ('supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin')
    loop
        if current_setting('server_version_num')::int >= 160000 then
            execute format('grant %I to gantry_rows with inherit true, set true', wanted.name);
        else
            execute format('grant %I to gantry_rows', wanted.name);
        end if;
    end loop;
    grant pg_read_all_data to supabase_read_only_user;
    if exists (select from pg_roles where rolname = 'postgres') then
        grant postgres to gantry_owner;
        if current_setting('server_version_num')::int >= 160000 then
            execute 'grant postgres to gantry_owner with inherit true, set true';
        end if;
    end if;

    -- A session that does not find one of these libraries ends. Each role may set them for itself, and PostgreSQL has no right to refuse.
    for setting in
        select r.rolname, d.datname from pg_db_role_setting s
        left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase
        where array_to_string(s.setconfig, ' ') like '%local\_preload\_libraries=%'
    loop
        if setting.rolname is null then
            execute format('alter database %I reset local_preload_libraries', setting.datname);
        elsif setting.datname is null then
            execute format('alter role %I reset local_preload_libraries', setting.rolname);
        else
            execute format('alter role %I in database %I reset local_preload_libraries', setting.rolname, setting.datname);
        end if;
    end loop;

    if exists (select from pg_database where datname = 'postgres') then
        alter database postgres allow_connections true connection limit -1;
        grant connect on database postgres to public;
    end if;
end
$$;
