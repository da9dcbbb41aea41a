//! Statements that create, change and remove roles, their passwords and their sessions.

use crate::clusters::superuser::session::statements;

statements! {
    /// Keeps the next statements out of the log and the statistics. Sent as a message of its own:
    /// PostgreSQL decides on logging a message before it executes any of its statements.
    QUIET:
        "set log_statement = 'none'; set log_min_duration_statement = -1;
         set log_min_error_statement = 'panic'; set pg_stat_statements.track = 'none'",
        "Changes settings of the session.";

    /// Sets the password verifier `%L` of role `%I`.
    SET_PASSWORD:
        "alter role %I password %L",
        "Changes a shared catalog.";

    /// Time of the server after `$1` seconds, as text.
    TIME_AFTER:
        "select (now() + make_interval(secs => $1))::text",
        "Calls functions of pg_catalog.";

    /// Creates a login role for reading: name, verifier, expiry; then the name twice.
    CREATE_READING_LOGIN:
        "begin; create role %I login inherit bypassrls password %L valid until %L;
         grant pg_read_all_data to %I;
         alter role %I set default_transaction_read_only = on; commit",
        "Changes shared catalogs.";

    /// Creates a login role that can switch to the owner: name, verifier, expiry; then the name.
    CREATE_OWNER_LOGIN:
        "begin; create role %I login noinherit nobypassrls password %L valid until %L;
         grant postgres to %I; commit",
        "Changes shared catalogs.";

    /// Ends the sessions of roles with names that match the pattern `$1`.
    END_MATCHING_SESSIONS:
        "select pg_terminate_backend(pid, 5000) from pg_catalog.pg_stat_activity where usename ~ $1",
        "Calls functions of pg_catalog.";

    /// Login roles that match the pattern `$1`, without open sessions, and are expired or beyond
    /// the newest `$2`.
    UNUSED_LOGIN_ROLES:
        "select rolname::text from (
             select rolname, rolvaliduntil,
                    row_number() over (order by rolvaliduntil desc, rolname) as place
             from pg_catalog.pg_roles where rolname ~ $1
         ) r
         where (place > $2 or rolvaliduntil < now())
         and not exists (select from pg_catalog.pg_stat_activity where usename = rolname)",
        "Reads shared catalogs.";

    /// Gives the objects of role `%I` to the owner, and drops it. Its name three times.
    DROP_LOGIN_ROLE:
        "reassign owned by %I to postgres; drop owned by %I; drop role %I",
        "Changes owners and privileges in catalogs. What the role owned belongs to `postgres` when \
         privileges are dropped, so no object is dropped.";

    /// Whether a role with the name `$1` can be granted: it is among `$2`, or `$3` is a member.
    IS_GRANTABLE:
        "select not rolsuper and rolname not like 'pg\\_%' and rolname <> 'authenticator'
                and (rolname = any($2) or pg_has_role($3, oid, 'member'))
         from pg_catalog.pg_roles where rolname = $1",
        "Reads a shared catalog.";

    /// Creates role `%I`, which cannot log in.
    CREATE_ROLE:
        "create role %I nologin noinherit",
        "Changes a shared catalog.";

    /// Opens a login: group, role, login; login, role; login, expiry. At most ten concurrent
    /// sessions.
    OPEN_LOGIN:
        "begin; grant %I, %I to %I; alter role %I set role = %I;
         alter role %I login connection limit 10 valid until %L; commit",
        "Changes shared catalogs.";

    /// Does [`OPEN_LOGIN`], and sets the password verifier.
    OPEN_LOGIN_WITH_PASSWORD:
        "begin; grant %I, %I to %I; alter role %I set role = %I;
         alter role %I login connection limit 10 valid until %L password %L; commit",
        "Changes shared catalogs.";

    /// Whether a role exists.
    ROLE_EXISTS:
        "select from pg_catalog.pg_roles where rolname = $1",
        "Reads a shared catalog.";

    /// Closes the login of role `%I`.
    CLOSE_LOGIN:
        "alter role %I nologin password null valid until '-infinity'",
        "Changes a shared catalog.";

    /// Names of at most `$2` roles with the prefix `$1`.
    ROLES_WITH_PREFIX:
        "select rolname::text from pg_catalog.pg_roles
         where starts_with(rolname, $1) and not rolsuper order by 1 limit $2",
        "Reads a shared catalog.";

    /// Ends the sessions of role `$1`, and waits up to a second for each. Returns their number.
    END_SESSIONS:
        "select count(pg_terminate_backend(pid, 1000)) from pg_catalog.pg_stat_activity
         where usename = $1",
        "Calls functions of pg_catalog.";

    /// Ends the backend `$1` if it has existed for a second: a later one can have its number.
    END_OLD_BACKEND:
        "select pg_terminate_backend(pid) from pg_catalog.pg_stat_activity
         where pid = $1 and backend_start < clock_timestamp() - interval '1 second'",
        "Calls functions of pg_catalog.";

    /// Drops role `%I`, unless it does not exist.
    DROP_ROLE:
        "drop role if exists %I",
        "Changes a shared catalog.";

    /// Gives the objects of role `%I` in this database to the owner: the name twice.
    DISOWN_ROLE:
        "reassign owned by %I to postgres; drop owned by %I",
        "Changes owners and privileges in catalogs. What the role owned belongs to `postgres` when \
         privileges are dropped, so no object is dropped.";

    /// The login role of Realtime and the schema of its own tables. A role of the tenant with this
    /// name is left alone.
    PREPARE_REALTIME:
        include_str!("../recipes/realtime.sql"),
        "Creates a role and a schema, and grants privileges.";

    /// The platform's roles, and the database that every project has.
    REPAIR_ROLES:
        include_str!("../recipes/repair.sql"),
        "Changes shared catalogs. Its block is PL/pgSQL over pg_catalog.";
}
