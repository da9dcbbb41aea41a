//! Statements on copies and recovered clusters, in quarantine or while their original is copied.

use crate::clusters::superuser::session::statements;

statements! {
    // Backups of a running server

    /// Extends the time limit of statements.
    LONG_STATEMENTS:
        "set statement_timeout = '10min'",
        "Changes a setting of the session.";

    /// Properties of a server that is to be copied.
    COPY_FACTS:
        "select pg_size_bytes(current_setting('wal_segment_size')),
                (pg_control_checkpoint()).timeline_id,
                current_setting('max_prepared_transactions')::int,
                current_setting('max_replication_slots')::int,
                (select count(*) from pg_catalog.pg_tablespace
                 where spcname not in ('pg_default', 'pg_global')),
                (select coalesce(sum(pg_database_size(oid)), 0)::bigint
                 from pg_catalog.pg_database),
                pg_size_bytes(current_setting('shared_buffers')),
                extract(epoch from clock_timestamp()
                        - (pg_control_checkpoint()).checkpoint_time)::bigint",
        "Reads shared catalogs and the control file.";

    /// Creates a temporary slot that keeps the write-ahead log of the copy.
    CREATE_COPY_SLOT:
        "select pg_create_physical_replication_slot('gantry_copy_' || pg_backend_pid(), true, true)",
        "Calls a function of pg_catalog.";

    /// Begins a backup, with an immediate checkpoint or not.
    BEGIN_BACKUP:
        "select pg_backup_start('gantry branch', $1)",
        "Calls a function of pg_catalog.";

    /// Ends the backup.
    END_BACKUP:
        "select s.lsn::text, s.labelfile, s.spcmapfile, (s.lsn - '0/0'::pg_lsn)::text
         from pg_catalog.pg_backup_stop(false) s",
        "Calls a function of pg_catalog.";

    /// A small commit. Its duration is measured.
    SMALL_COMMIT:
        "select pg_logical_emit_message(true, 'gantry', '')",
        "Writes a record to the log that no output plugin of a tenant reads.";

    /// Settings that a server needs to recover its prepared transactions and replication origins.
    RECOVERY_SETTINGS:
        "select current_setting('max_prepared_transactions'),
                current_setting('max_replication_slots')",
        "Reads settings.";

    // Databases and sessions in quarantine

    /// All databases, whether they accept connections, and whether their removal was interrupted.
    DATABASES:
        "select datname::text, datallowconn, datconnlimit = -2
         from pg_catalog.pg_database order by oid limit $1",
        "Reads a shared catalog.";

    /// Completes the removal of database `%I`.
    DROP_DATABASE:
        "drop database %I",
        "Removes files. Nothing in the database is read.";

    /// Lets database `%I` accept connections.
    OPEN_DATABASE:
        "alter database %I allow_connections true",
        "Changes a shared catalog.";

    /// Lets database `%I` reject connections.
    CLOSE_DATABASE:
        "alter database %I allow_connections false",
        "Changes a shared catalog.";

    /// Roles that own something and are no superusers.
    OWNERS:
        "select r.oid, r.rolname::text from pg_catalog.pg_roles r
         where not r.rolsuper and r.rolname not like 'pg\\_%' and exists (
             select from pg_catalog.pg_shdepend d
             where d.refclassid = 'pg_catalog.pg_authid'::regclass and d.refobjid = r.oid
             and d.deptype = 'o')
         order by r.oid limit $1",
        "Reads shared catalogs.";

    /// Those of the roles `$1` that cannot log in as often as needed, with their attributes.
    LOGIN_ATTRIBUTES:
        "select oid, rolcanlogin, rolconnlimit from pg_catalog.pg_authid
         where oid = any ($1) and (not rolcanlogin or rolconnlimit <> -1)",
        "Reads a shared catalog.";

    /// Sets whether the role `$1` can log in, and in how many sessions.
    SET_LOGIN_ATTRIBUTES:
        "update pg_catalog.pg_authid set rolcanlogin = $2, rolconnlimit = $3 where oid = $1",
        "Changes a shared catalog.";

    /// Databases with privileges or limits of connections.
    DATABASE_LIMITS:
        "select oid, datacl::text, datconnlimit from pg_catalog.pg_database
         where (datacl is not null or datconnlimit <> -1) and datconnlimit <> -2",
        "Reads a shared catalog.";

    /// Sets the privileges and the limit of connections of the database `$1`.
    SET_DATABASE_LIMITS:
        "update pg_catalog.pg_database
         set datacl = $2::text::pg_catalog.aclitem[], datconnlimit = $3 where oid = $1",
        "Changes a shared catalog. The text is that of `aclitem`, which has no code.";

    /// Owners of tables that may not use the schema of their table: the schema and the owner.
    SCHEMAS_WITHOUT_USAGE:
        "select distinct n.oid, r.oid
         from pg_catalog.pg_class c
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_roles r on r.oid = c.relowner
         where c.relkind in ('r', 'm') and not r.rolsuper and n.nspname not like 'pg\\_%'
         and not has_schema_privilege(r.oid, n.oid, 'usage')",
        "Reads catalogs.";

    /// Lets the role `$2` use the schema `$1`.
    GRANT_USAGE:
        "update pg_catalog.pg_namespace
         set nspacl = coalesce(nspacl, acldefault('n', nspowner))
                      || makeaclitem($2, nspowner, 'USAGE', false) where oid = $1",
        "Changes a catalog. `grant` would run event triggers before PostgreSQL 17.";

    /// Takes that privilege back.
    REVOKE_USAGE:
        "update pg_catalog.pg_namespace
         set nspacl = array_remove(nspacl, makeaclitem($2, nspowner, 'USAGE', false))
         where oid = $1",
        "Changes a catalog. `revoke` would run event triggers before PostgreSQL 17.";

    // Isolation

    /// Prepared transactions of this database.
    PREPARED_TRANSACTIONS:
        "select gid from pg_catalog.pg_prepared_xacts
         where database = pg_catalog.current_database()",
        "Reads a view of pg_catalog.";

    /// Ends the prepared transaction `%L`.
    ROLL_BACK_PREPARED:
        "rollback prepared %L",
        "Undoes changes, without running deferred triggers.";

    /// Disconnects subscriptions.
    DISABLE_SUBSCRIPTIONS:
        "update pg_catalog.pg_subscription
         set subenabled = false, subslotname = null, subconninfo = 'host=/isolated'
         where subdbid = (select oid from pg_catalog.pg_database
                          where datname = pg_catalog.current_database())
         and (subenabled or subslotname is not null or subconninfo <> 'host=/isolated')",
        "Changes a catalog.";

    /// Removes passwords and places from user mappings.
    CLEAR_USER_MAPPINGS:
        "update pg_catalog.pg_user_mapping
         set umoptions = nullif(
             array(select o from unnest(umoptions) o where o like 'user=%'), '{}')
         where exists (select from unnest(umoptions) o where o not like 'user=%')",
        "Changes a catalog.";

    /// Removes options of foreign data wrappers.
    CLEAR_DATA_WRAPPERS:
        "update pg_catalog.pg_foreign_data_wrapper set fdwoptions = null
         where fdwoptions is not null",
        "Changes a catalog. No validator is called.";

    /// Removes places and secrets from foreign servers; `$1` are the options that stay. Those of
    /// PostgreSQL get a place that does not exist: without one they would use a default.
    CLEAR_FOREIGN_SERVERS:
        "update pg_catalog.pg_foreign_server s set srvoptions = a.options
         from (
             select s.oid, nullif(array(
                 select o from unnest(s.srvoptions) o where split_part(o, '=', 1) = any ($1)
             ) || case when w.fdwname in ('postgres_fdw', 'dblink_fdw')
                         or h.proname = 'postgres_fdw_handler'
                       then array['host=/isolated'] else '{}' end, '{}') as options
             from pg_catalog.pg_foreign_server s
             join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw
             left join pg_catalog.pg_proc h on h.oid = w.fdwhandler
         ) a
         where a.oid = s.oid and s.srvoptions is distinct from a.options",
        "Changes a catalog. No validator is called.";

    /// Tables among the names `$1` that belong to the platform: their owner is a superuser, or one
    /// of the platform's service roles `$2`; those of extensions are members of the extension.
    /// Name, quoted name, number, and whether the owner is a superuser.
    PLATFORM_TABLES:
        "select a.name, format('%I.%I', n.nspname, c.relname), c.oid, r.rolsuper
         from unnest($1::text[]) a(name)
         join pg_catalog.pg_class c on c.oid = to_regclass(a.name)
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_roles r on r.oid = c.relowner
         join pg_catalog.pg_roles s on s.oid = n.nspowner
         where c.relkind = 'r' and (r.rolsuper or r.rolname = any ($2))
         and (s.rolsuper or s.rolname = any ($2))
         and (n.nspname not in ('cron', 'net') or exists (
             select from pg_catalog.pg_depend d
             join pg_catalog.pg_extension e on e.oid = d.refobjid
             where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
             and d.refclassid = 'pg_catalog.pg_extension'::regclass and d.deptype = 'e'
             and (n.nspname, e.extname) in (('cron', 'pg_cron'), ('net', 'pg_net'))))",
        "Reads catalogs.";

    /// Names of the columns `$2` that the table `$1` has.
    COLUMNS:
        "select attname::text from pg_catalog.pg_attribute
         where attrelid = $1 and attname = any ($2) and not attisdropped",
        "Reads a catalog.";

    /// Hides triggers and rules of the tables `$1` from the server, in all their modes: it reads
    /// them only from tables that have some according to these flags.
    HIDE_TRIGGERS:
        "update pg_catalog.pg_class set relhastriggers = false, relhasrules = false
         where oid = any ($1) and relkind = 'r' and (relhastriggers or relhasrules)",
        "Changes a catalog.";

    /// Shows hidden triggers and rules of all tables again.
    SHOW_TRIGGERS:
        "update pg_catalog.pg_class c set relhastriggers = a.triggers, relhasrules = a.rules
         from (
             select b.oid,
                    exists (select from pg_catalog.pg_trigger t
                            where t.tgrelid = b.oid) as triggers,
                    exists (select from pg_catalog.pg_rewrite w where w.ev_class = b.oid) as rules
             from pg_catalog.pg_class b where b.relkind = 'r' and b.oid >= 16384
         ) a
         where a.oid = c.oid and ((a.triggers and not c.relhastriggers) or (a.rules and not c.relhasrules))",
        "Changes a catalog.";

    /// Deletes the rows of a table of the superuser.
    DELETE_ROWS:
        "delete from only %S",
        "The table belongs to the superuser, so the tenant can define no index, rule or policy on it. \
         Its triggers are hidden.";

    /// Deactivates scheduled jobs in a table of the superuser.
    DEACTIVATE_JOBS:
        "update only %S set active = false, nodename = '', nodeport = 5432
         where active or nodename <> ''",
        "The table belongs to the superuser, so the tenant can define no index, rule or policy on it. \
         Its triggers are hidden, and its columns have types of pg_catalog.";

    /// Empties a table of the superuser.
    TRUNCATE_PLATFORM_TABLE:
        "truncate only %S restart identity",
        "The table belongs to the superuser, so the tenant can define no index on it. Its triggers are \
         hidden.";

    /// Empties a materialized view of the superuser.
    EMPTY_PLATFORM_VIEW:
        "refresh materialized view %S with no data",
        "The view belongs to the superuser, and its query is not executed.";

    /// Rewrites a table of the superuser, without its deleted rows.
    REWRITE_PLATFORM_TABLE:
        "vacuum full %S",
        "The table belongs to the superuser, so the tenant can define no index on it.";

    /// Removes the statistics of the tables `$1`, which have samples of rows.
    DELETE_STATISTICS:
        "delete from pg_catalog.pg_statistic where starelid = any ($1)",
        "Changes a catalog.";

    /// Removes the extended statistics of the tables `$1`.
    DELETE_EXTENDED_STATISTICS:
        "delete from pg_catalog.pg_statistic_ext_data where stxoid in (
             select oid from pg_catalog.pg_statistic_ext where stxrelid = any ($1))",
        "Changes a catalog.";

    /// Settings that are attached to roles and databases.
    ATTACHED_SETTINGS:
        "select setdatabase, setrole, setconfig from pg_catalog.pg_db_role_setting",
        "Reads a shared catalog.";

    /// Replaces the settings of database `$1` and role `$2`.
    REPLACE_SETTINGS:
        "update pg_catalog.pg_db_role_setting set setconfig = $3
         where (setdatabase, setrole) = ($1, $2)",
        "Changes a shared catalog.";

    /// Rewrites a catalog that can have secrets in deleted rows.
    REWRITE_USER_MAPPINGS:
        "vacuum full pg_catalog.pg_user_mapping",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for foreign servers.
    REWRITE_FOREIGN_SERVERS:
        "vacuum full pg_catalog.pg_foreign_server",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for foreign data wrappers.
    REWRITE_DATA_WRAPPERS:
        "vacuum full pg_catalog.pg_foreign_data_wrapper",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for statistics.
    REWRITE_STATISTICS:
        "vacuum full pg_catalog.pg_statistic",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for extended statistics.
    REWRITE_EXTENDED_STATISTICS:
        "vacuum full pg_catalog.pg_statistic_ext_data",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for large objects.
    REWRITE_LARGE_OBJECTS:
        "vacuum full pg_catalog.pg_largeobject",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for the owners of large objects.
    REWRITE_LARGE_OBJECT_OWNERS:
        "vacuum full pg_catalog.pg_largeobject_metadata",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for roles.
    REWRITE_ROLES:
        "vacuum full pg_catalog.pg_authid",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for settings of roles and databases.
    REWRITE_SETTINGS:
        "vacuum full pg_catalog.pg_db_role_setting",
        "Rewrites a catalog. Its indexes have no expressions.";
    /// Does that for subscriptions.
    REWRITE_SUBSCRIPTIONS:
        "vacuum full pg_catalog.pg_subscription",
        "Rewrites a catalog. Its indexes have no expressions.";

    /// Number of replication slots.
    SLOTS:
        "select count(*) from pg_catalog.pg_replication_slots",
        "Reads a view of pg_catalog.";

    /// Drops replication origins that no subscription uses.
    DROP_ORIGINS:
        "select pg_catalog.pg_replication_origin_drop(o.roname)
         from pg_catalog.pg_replication_origin o
         where not exists (select from pg_catalog.pg_subscription s where 'pg_' || s.oid = o.roname)",
        "Calls a function of pg_catalog.";

    /// Removes all passwords.
    REMOVE_PASSWORDS:
        "update pg_catalog.pg_authid set rolpassword = null where rolpassword is not null",
        "Changes a shared catalog.";

    /// Closes temporary logins.
    CLOSE_TEMPORARY_LOGINS:
        "update pg_catalog.pg_authid set rolcanlogin = false
         where rolname like 'cli\\_login\\_%' and rolcanlogin",
        "Changes a shared catalog.";

    /// Name of the project's database.
    PROJECT_DATABASE:
        "select datname::text from pg_catalog.pg_database
         where oid = 5 or datname = 'postgres' order by oid limit 1",
        "Reads a shared catalog.";

    /// Sets the marker of a branch: database, text.
    SET_MARKER:
        "alter database %I set \"gantry.branch\" = %L",
        "Changes a shared catalog.";

    /// Removes the marker.
    RESET_MARKER:
        "alter database %I reset \"gantry.branch\"",
        "Changes a shared catalog.";

    /// Writes all changes to the files.
    CHECKPOINT:
        "checkpoint",
        "Writes files.";

    /// Begins a new segment of the write-ahead log.
    SWITCH_SEGMENT:
        "select pg_catalog.pg_switch_wal()",
        "Calls a function of pg_catalog.";

    // Schema-only copies

    /// Tables with rows that are not part of the schema: number, quoted name, owner, whether the
    /// owner is a superuser. Histories of migrations stay, those of the service roles `$2` too, and
    /// so do tables of extensions but those that store requests, jobs and secrets.
    TABLES_WITH_ROWS:
        "select c.oid, format('%I.%I', n.nspname, c.relname), r.rolname::text, r.rolsuper
         from pg_catalog.pg_class c
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_roles r on r.oid = c.relowner
         where c.relkind = 'r' and n.nspname not like 'pg\\_%'
         and n.nspname not in ('information_schema', 'supabase_migrations')
         and not (c.relname like '%migrations' and (r.rolsuper or r.rolname = any ($2))
                  and n.nspname in ('auth', 'storage', 'realtime', '_realtime',
                                    'supabase_functions'))
         and not exists (
             select from pg_catalog.pg_depend d
             join pg_catalog.pg_extension e on e.oid = d.refobjid
             where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
             and d.refclassid = 'pg_catalog.pg_extension'::regclass and d.deptype = 'e'
             and e.extname not in ('pg_cron', 'pg_net', 'supabase_vault'))
         order by 2 limit $1",
        "Reads catalogs.";

    /// Materialized views with rows: quoted name, owner, and whether it is a superuser.
    VIEWS_WITH_ROWS:
        "select format('%I.%I', n.nspname, c.relname), r.rolname::text, r.rolsuper
         from pg_catalog.pg_class c
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_roles r on r.oid = c.relowner
         where c.relkind = 'm' and c.relispopulated order by 1 limit $1",
        "Reads catalogs.";

    /// Removes large objects with their owners, and all statistics.
    DELETE_REST:
        "delete from pg_catalog.pg_largeobject;
         delete from pg_catalog.pg_largeobject_metadata;
         delete from pg_catalog.pg_shdepend
         where classid = 'pg_catalog.pg_largeobject'::regclass
         and dbid = (select oid from pg_catalog.pg_database
                     where datname = pg_catalog.current_database());
         delete from pg_catalog.pg_statistic where starelid >= 16384;
         delete from pg_catalog.pg_statistic_ext_data",
        "Changes catalogs.";

    /// Tables among the quoted names `$1`: number, quoted name, owner, whether it is a superuser.
    TABLES_NAMED:
        "select c.oid, format('%I.%I', n.nspname, c.relname), r.rolname::text, r.rolsuper
         from unnest($1::text[]) a(name)
         join pg_catalog.pg_class c on c.oid = to_regclass(a.name)
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_roles r on r.oid = c.relowner
         where c.relkind = 'r'",
        "Reads catalogs.";

    // Checks of recovered clusters

    /// Whether the server is in recovery, and whether its pages have checksums.
    RECOVERY_STATE:
        "select pg_is_in_recovery(), current_setting('data_checksums') = 'on'",
        "Calls functions of pg_catalog.";

    /// Reads the catalogs of relations and columns.
    READ_CATALOGS:
        "select count(*) from pg_catalog.pg_class c
         join pg_catalog.pg_attribute a on a.attrelid = c.oid",
        "Reads catalogs.";

    /// Removes the limit of the duration of statements.
    UNBOUNDED_STATEMENTS:
        "set statement_timeout = 0",
        "Changes a setting of the session.";

    /// Whether the extension `amcheck` is installed.
    HAS_AMCHECK:
        "select from pg_catalog.pg_extension where extname = 'amcheck'",
        "Reads a catalog.";

    /// Whether there is an object in the way of a schema for the extension.
    HAS_CHECK_SCHEMA:
        "select from pg_catalog.pg_namespace where nspname = 'gantry_check'",
        "Reads a catalog.";

    /// Installs the extension `amcheck` in a schema of its own.
    CREATE_AMCHECK:
        "begin; create schema gantry_check; create extension amcheck schema gantry_check; commit",
        "The schema is new and belongs to the superuser, so the script finds nothing else in it.";

    /// Quoted names of the functions `verify_heapam` and `bt_index_check` of the extension.
    AMCHECK_FUNCTIONS:
        "select format('%I.%I', n.nspname, p.proname)
         from pg_catalog.pg_proc p
         join pg_catalog.pg_namespace n on n.oid = p.pronamespace
         join pg_catalog.pg_depend d
             on d.objid = p.oid and d.classid = 'pg_catalog.pg_proc'::regclass
         join pg_catalog.pg_extension e on e.oid = d.refobjid and e.extname = 'amcheck'
         where d.refclassid = 'pg_catalog.pg_extension'::regclass and d.deptype = 'e'
         and p.prolang = (select oid from pg_catalog.pg_language where lanname = 'c')
         and (p.proname, p.pronargs) in (('bt_index_check', 1), ('verify_heapam', 6))
         order by p.proname",
        "Reads catalogs.";

    /// Tables, materialized views and TOAST tables with pages: number and quoted name.
    TABLES_WITH_PAGES:
        "select c.oid, format('%I.%I', n.nspname, c.relname)
         from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_am a on a.oid = c.relam and a.amname = 'heap'
         where c.relkind in ('r', 'm', 't') and c.relpersistence = 'p'
         and not (c.relkind = 'm' and not c.relispopulated)",
        "Reads catalogs.";

    /// Reads every row and value of a table with the function `%S`: first damage, if any.
    CHECK_TABLE:
        "select msg::text from %S(%L::pg_catalog.oid::pg_catalog.regclass, false, true, 'none', null, null) limit 1",
        "The function of amcheck reads pages. It calls no function of types and no expression.";

    /// B-tree indexes: number and quoted name.
    TREES:
        "select c.oid, format('%I.%I', n.nspname, c.relname)
         from pg_catalog.pg_index i
         join pg_catalog.pg_class c on c.oid = i.indexrelid
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_am a on a.oid = c.relam and a.amname = 'btree'
         where i.indisready and i.indisvalid and c.relpersistence = 'p' and c.relkind = 'i'",
        "Reads catalogs.";

    /// Compares the order of an index with the function `%S`.
    CHECK_TREE:
        "select %S(%L::pg_catalog.oid::pg_catalog.regclass)",
        "The function of amcheck compares keys with operator classes, which only a superuser can \
         create, and evaluates no expression.";
}
