//! Statements that read the system catalogs and the state of a server.

use crate::clusters::superuser::session::statements;

statements! {
    /// The password verifier of the owner, if it is a SCRAM-SHA-256 one.
    OWNER_VERIFIER:
        "select rolpassword from pg_catalog.pg_authid
         where rolname = 'postgres' and rolpassword like 'SCRAM-SHA-256$%'",
        "Reads a shared catalog.";

    /// The password verifier of a role.
    ROLE_VERIFIER:
        "select rolpassword from pg_catalog.pg_authid where rolname = $1",
        "Reads a shared catalog.";

    /// Measurements of a server, in the order of its metrics.
    SERVER_METRICS:
        "select (select sum(pg_database_size(oid)) from pg_catalog.pg_database where datallowconn)::float8,
                (select count(*) from pg_catalog.pg_stat_activity
                 where backend_type = 'client backend')::float8,
                current_setting('max_connections')::float8,
                sum(xact_commit)::float8, sum(xact_rollback)::float8, sum(blks_read)::float8,
                sum(blks_hit)::float8, sum(deadlocks)::float8, sum(temp_bytes)::float8,
                (select sum(size) from pg_catalog.pg_ls_waldir())::float8
         from pg_catalog.pg_stat_database",
        "Reads statistics of the server.";

    /// Marks a position in the write-ahead log. Returns it with the system identifier.
    CREATE_RESTORE_POINT:
        "select (pg_create_restore_point($1) - '0/0'::pg_lsn)::text, system_identifier::text
         from pg_catalog.pg_control_system()",
        "Calls functions of pg_catalog.";

    /// Whether a client has a session. That of the sender of `pg_net` is none.
    HAS_SESSIONS:
        "select exists (select from pg_catalog.pg_stat_activity
                        where backend_type in ('client backend', 'walsender')
                        and pid <> pg_backend_pid()
                        and not (usename = 'gantry_owner' and application_name = 'gantry pg_net'))",
        "Reads statistics of the server.";

    /// Makes the server read its configuration files again.
    RELOAD:
        "select pg_reload_conf()",
        "Calls a function of pg_catalog.";

    /// Time at which this session read the configuration files, as text.
    CONFIGURATION_TIME:
        "select pg_conf_load_time()::text",
        "Calls a function of pg_catalog.";

    /// Makes transactions read-only by default.
    READ_ONLY:
        "alter system set default_transaction_read_only = on",
        "Writes a configuration file.";

    /// Makes transactions read-write by default.
    READ_WRITE:
        "alter system reset default_transaction_read_only",
        "Writes a configuration file.";

    /// Names of at most `$1` databases that accept connections.
    OPEN_DATABASES:
        "select datname::text from pg_catalog.pg_database where datallowconn order by oid limit $1",
        "Reads a shared catalog.";

    /// Extensions of a database, with their versions.
    EXTENSIONS:
        "select extname::text, extversion from pg_catalog.pg_extension",
        "Reads a catalog.";
}
