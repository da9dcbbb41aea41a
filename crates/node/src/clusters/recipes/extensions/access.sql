-- A row of cron.job names the role that the job runs as. The owner of the project may write rows, so the role must be one that
-- the owner is a member of.
create or replace function extensions.check_cron_job() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select rolsuper from pg_roles where rolname = session_user) then
        return new;
    end if;
    if exists (
        select from pg_roles
        where rolname = new.username and not rolsuper and pg_has_role('postgres', oid, 'member'))
    then
        return new;
    end if;
    raise exception using
        errcode = 'insufficient_privilege',
        message = format('permission denied to schedule a job as role "%s"', new.username);
end
$$;

-- Gives the owner of the project and its API roles access to the objects of some extensions, which belong to the superuser,
-- as the hosted platform does. Runs after every statement that creates or updates an extension, also for those that came by
-- cascade. Only objects that are members of the extension are granted, whatever else has their names.
create or replace function extensions.grant_extension_access() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    member record;
begin
    for member in
        select e.extname, d.classid, d.objid
        from pg_extension e
        join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid and d.deptype = 'e'
        where e.extname in ('pg_cron', 'pg_net', 'pg_graphql', 'pgmq', 'postgres_fdw', 'dblink', 'pgstattuple', 'pgrowlocks', 'pg_stat_statements',
                            'pg_visibility', 'pg_freespacemap', 'pg_buffercache', 'postgis_topology')
    loop
        if member.classid = 'pg_namespace'::regclass then
            if member.extname in ('pg_net', 'pg_graphql') then
                execute format('grant usage on schema %s to anon, authenticated, service_role', member.objid::regnamespace);
            end if;
            execute format('grant usage on schema %s to postgres with grant option', member.objid::regnamespace);
        elsif member.classid = 'pg_foreign_data_wrapper'::regclass then
            execute format('grant usage on foreign data wrapper %I to postgres with grant option',
                           (select fdwname from pg_foreign_data_wrapper where oid = member.objid));
        elsif member.classid = 'pg_class'::regclass then
            case (select relkind from pg_class where oid = member.objid)
                when 'S' then
                    execute format('grant usage, select on sequence %s to postgres', member.objid::regclass);
                when 'r', 'v', 'm', 'p' then
                    -- The functions of pg_cron write as the owner of the extension, which is the owner of the project.
                    if member.extname in ('pg_cron', 'pg_net', 'pgmq', 'postgis_topology') then
                        execute format('grant select, insert, update, delete on table %s to postgres with grant option', member.objid::regclass);
                    else
                        execute format('grant select on table %s to postgres', member.objid::regclass);
                    end if;
                    if member.extname = 'pg_cron' and member.objid = to_regclass('cron.job')
                        and not exists (select from pg_trigger where tgrelid = member.objid and tgname = 'check_cron_job')
                    then
                        create trigger check_cron_job before insert or update on cron.job
                            for each row execute function extensions.check_cron_job();
                        alter table cron.job enable always trigger check_cron_job;
                    end if;
                else
                    null;
            end case;
        elsif member.classid = 'pg_proc'::regclass then
            if exists (select from pg_proc where oid = member.objid and prokind in ('f', 'w', 'a'))
                and member.extname in ('pg_cron', 'pg_net', 'pg_graphql', 'pgmq', 'pgstattuple', 'pgrowlocks', 'pg_stat_statements', 'pg_visibility',
                                       'pg_freespacemap', 'pg_buffercache')
            then
                execute format('grant execute on function %s to postgres with grant option', member.objid::regprocedure);
                if member.extname = 'pg_graphql' then
                    execute format('grant execute on function %s to anon, authenticated, service_role', member.objid::regprocedure);
                elsif member.extname = 'pg_net'
                    and (select proname from pg_proc where oid = member.objid) in ('http_get', 'http_post', 'http_delete', 'http_collect_response')
                then
                    execute format('grant execute on function %s to anon, authenticated, service_role', member.objid::regprocedure);
                end if;
            end if;
        end if;
    end loop;
end
$$;
