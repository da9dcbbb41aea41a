//! Statements that compare roles with those that the platform made, and take back privileges that
//! no owner of a project can have given.

use crate::clusters::superuser::session::statements;

statements! {
    /// Privileges that only the platform has, of other roles: kind, role, detail, grantor.
    ///
    /// From PostgreSQL 16 on, a role that `postgres` created has an administrator, and can have the
    /// attributes of `postgres`. Before, the owner creates no roles.
    PRIVILEGE_FINDINGS:
        "with roles as (
             select r.*, current_setting('server_version_num')::int >= 160000 and exists (
                 select from pg_catalog.pg_auth_members m
                 where m.roleid = r.oid and m.admin_option) as is_made_by_owner,
                 r.rolname ~ '^cli_login_read_only_[a-z]{20}_[a-z]{8}$' as is_reading_login
             from pg_catalog.pg_authid r
         )
         select 'superuser', rolname::text, '', '' from pg_roles
         where rolsuper and oid <> 10
         union all
         select 'createrole', rolname::text, '', '' from roles
         where rolcreaterole and not rolsuper and not is_made_by_owner and (
             current_setting('server_version_num')::int < 160000 or rolname not in (
             'postgres', 'supabase_auth_admin', 'supabase_storage_admin',
             'supabase_functions_admin', 'dashboard_user'))
         union all
         select 'bypassrls', rolname::text, '', '' from roles
         where rolbypassrls and not rolsuper and not is_made_by_owner and not is_reading_login
         and rolname not in ('postgres', 'service_role', 'supabase_read_only_user', 'gantry_rows')
         union all
         select 'replication', rolname::text, '', '' from roles
         where rolreplication and not rolsuper and not is_made_by_owner and rolname not in (
             'postgres', 'supabase_replication_admin', 'supabase_etl_admin', 'dashboard_user',
             'gantry_realtime')
         union all
         select 'member', m.rolname::text, g.rolname::text, coalesce(b.rolname::text, '')
         from pg_catalog.pg_auth_members a
         join roles g on g.oid = a.roleid
         join roles m on m.oid = a.member
         left join pg_catalog.pg_authid b on b.oid = a.grantor
         where (g.oid < 16384 or g.rolname in (
             'supabase_auth_admin', 'supabase_storage_admin', 'supabase_realtime_admin',
             'supabase_functions_admin', 'supabase_replication_admin', 'supabase_etl_admin',
             'supabase_read_only_user', 'gantry_owner', 'gantry_rows', 'gantry_realtime'))
         and m.oid >= 16384
         and (g.rolname, m.rolname) not in (
             ('pg_read_all_stats', 'postgres'), ('pg_signal_backend', 'postgres'),
             ('pg_monitor', 'postgres'), ('pg_read_all_data', 'supabase_read_only_user'),
             ('supabase_auth_admin', 'gantry_rows'), ('supabase_storage_admin', 'gantry_rows'),
             ('supabase_realtime_admin', 'gantry_rows'),
             ('supabase_realtime_admin', 'gantry_realtime'))
         and not (g.rolname = 'pg_read_all_data' and m.is_reading_login)
         and not (g.rolname = 'supabase_read_only_user' and m.rolname ~ '^gantry_jit_')
         order by 1, 2, 3 limit 10000",
        "Reads shared catalogs.";

    /// Objects in a database that only a superuser can have made, and that the platform did not:
    /// kind and name.
    FOREIGN_OBJECTS:
        "select 'function', p.oid::regprocedure::text
         from pg_catalog.pg_proc p
         join pg_catalog.pg_namespace n on n.oid = p.pronamespace
         join pg_catalog.pg_roles s on s.oid = n.nspowner
         -- The number of the role that initialized the cluster: others may be superusers, too.
         where p.proowner = 10 and s.oid <> 10 and s.rolname <> 'pgbouncer'
         and n.nspname not like 'pg\\_%' and not exists (
             select from pg_catalog.pg_depend d
             where d.classid = 'pg_catalog.pg_proc'::regclass and d.objid = p.oid
             -- Members of extensions, and constructors of range types.
             and d.deptype in ('e', 'i'))
         union all
         select 'event trigger', t.evtname::text
         from pg_catalog.pg_event_trigger t
         where t.evtname not in (
             'pgrst_ddl_watch', 'pgrst_drop_watch', 'platform_guard', 'platform_tables_begin',
             'platform_tables_end', 'platform_tables_drop', 'explain_missing_extension',
             'grant_extension_access', 'move_extension')
         and exists (select from pg_catalog.pg_roles r where r.oid = t.evtowner and r.rolsuper)
         and not exists (
             select from pg_catalog.pg_depend d
             where d.classid = 'pg_catalog.pg_event_trigger'::regclass and d.objid = t.oid
             and d.deptype = 'e')
         order by 1, 2 limit 100",
        "Reads catalogs.";

    /// Takes an attribute from role `%I`: `%S` is its negation.
    REVOKE_ATTRIBUTE:
        "alter role %I %S",
        "Changes a shared catalog.";

    /// Revokes the membership in role `%I` from role `%I`, which role `%I` granted.
    REVOKE_MEMBERSHIP:
        "revoke %I from %I granted by %I cascade",
        "Changes a shared catalog.";

    /// Does that before PostgreSQL 16, without the grantor.
    REVOKE_MEMBERSHIP_15:
        "revoke %I from %I cascade",
        "Changes a shared catalog.";
}
