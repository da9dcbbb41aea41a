-- Roles and settings of roles that the tenant may change: those of PostgREST on the role that it logs in as, and the limits of the roles
-- that its requests run as. From PostgreSQL 16 on: before, ALTER ROLE needs CREATEROLE, which includes membership in every role.
do $$
declare
    parameter text;
    statistics regprocedure;
begin
    foreach parameter in array array[
        'session_replication_role',
        'pgrst.db_aggregates_enabled', 'pgrst.db_anon_role', 'pgrst.db_extra_search_path', 'pgrst.db_hoisted_tx_settings',
        'pgrst.db_max_rows', 'pgrst.db_plan_enabled', 'pgrst.db_pre_request', 'pgrst.db_root_spec', 'pgrst.db_schemas',
        'pgrst.db_timezone_enabled', 'pgrst.db_tx_end', 'pgrst.jwt_aud', 'pgrst.jwt_role_claim_key', 'pgrst.openapi_mode',
        'pgrst.openapi_security_active', 'pgrst.openapi_server_proxy_uri', 'pgrst.server_cors_allowed_origins',
        'pgrst.server_trace_header', 'pgrst.server_timing_enabled', 'pgrst.log_query']
    loop
        execute format('grant set on parameter %s to postgres', parameter);
    end loop;
    if current_setting('server_version_num')::integer >= 160000 then
        grant anon, authenticated, service_role to postgres with admin option;
        -- For ALTER ROLE. The tenant may also join the role, which has no privileges that `postgres` lacks.
        execute 'grant authenticator to postgres with admin true, inherit false, set false';
    end if;
    -- In projects from before grant_extension_access did this.
    for statistics in
        select d.objid from pg_depend d join pg_extension e on e.oid = d.refobjid
        where d.refclassid = 'pg_extension'::regclass and e.extname = 'pg_stat_statements' and d.classid = 'pg_proc'::regclass
    loop
        execute format('grant execute on function %s to postgres with grant option', statistics);
    end loop;
end
$$;
