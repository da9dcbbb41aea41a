//! Statements of upgrades, on copies in quarantine and on the clusters that are made of them.
//!
//! `pg_upgrade` restores the schemas in a session of the superuser. Reading a definition can call
//! functions: the constraint of a domain for the elements of an array literal, an immutable
//! function with constant arguments in a partition key. Therefore the functions of tenants are
//! blocked in the copy, and constraints of their domains are removed; both come back before the
//! upgraded cluster is used. A definition that needs such a call while it is restored fails the
//! upgrade, and is named.

use crate::clusters::superuser::session::statements;

/// Value of `default_tablespace` that blocks a function: PostgreSQL accepts it in a definition, and
/// rejects it at a call, because there is no tablespace of this name.
macro_rules! blocked {
    () => {
        "default_tablespace=functions do not run during an upgrade"
    };
}

statements! {
    /// Size of a segment of the write-ahead log in MB, and whether pages have checksums.
    UPGRADE_FACTS:
        "select (pg_size_bytes(current_setting('wal_segment_size')) >> 20)::bigint,
                current_setting('data_checksums') = 'on'",
        "Reads settings.";

    /// Drops physical replication slots.
    DROP_SLOTS:
        "select pg_drop_replication_slot(slot_name) from pg_catalog.pg_replication_slots
         where slot_type = 'physical'",
        "Calls a function of pg_catalog.";

    /// Databases besides `template0`, and whether they accept connections.
    UPGRADED_DATABASES:
        "select datname::text, datallowconn from pg_catalog.pg_database
         where datname <> 'template0' order by oid limit $1",
        "Reads a shared catalog.";

    /// Removes what another version cannot restore: privileges on a function that has other
    /// arguments from version 17 on, which the platform's grants set again; and the marks that
    /// 17.12 adds to the options of columns, which 18.4 rejects.
    REMOVE_NOT_RESTORABLE:
        "update pg_catalog.pg_proc set proacl = null
         where pronamespace = 'pg_catalog'::regnamespace and proname = 'pg_logical_emit_message';
         update pg_catalog.pg_attribute set attoptions = nullif(
             array(select o from unnest(attoptions) o where o not like 'pg_attver=%'), '{}')
         where attoptions::text like '%pg_attver=%'",
        "Changes catalogs.";

    /// Functions of tenants that set the setting which blocks functions.
    NOT_BLOCKABLE:
        "select p.oid::regprocedure::text from pg_catalog.pg_proc p
         join pg_catalog.pg_roles r on r.oid = p.proowner
         where not r.rolsuper and p.prokind <> 'a'
         and exists (select from unnest(p.proconfig) o where o like 'default\\_tablespace=%')
         order by 1 limit $1",
        "Reads catalogs.";

    /// Blocks the functions of all roles but the superuser.
    BLOCK_FUNCTIONS:
        concat!("update pg_catalog.pg_proc
         set proconfig = coalesce(proconfig, '{}') || array['", blocked!(), "']
         where prokind <> 'a'
         and proowner not in (select oid from pg_catalog.pg_authid where rolsuper)"),
        "Changes a catalog.";

    /// Lets blocked functions run again.
    UNBLOCK_FUNCTIONS:
        concat!("update pg_catalog.pg_proc
         set proconfig = nullif(array_remove(proconfig, '", blocked!(), "'), '{}')
         where '", blocked!(), "' = any (proconfig)"),
        "Changes a catalog.";

    /// Constraints of domains that belong to no superuser: quoted domain, constraint, definition,
    /// owner, and whether it is valid.
    DOMAIN_CONSTRAINTS:
        "select format('%I.%I', n.nspname, t.typname), c.conname::text,
                pg_get_constraintdef(c.oid), r.rolname::text, c.convalidated
         from pg_catalog.pg_constraint c
         join pg_catalog.pg_type t on t.oid = c.contypid
         join pg_catalog.pg_namespace n on n.oid = t.typnamespace
         join pg_catalog.pg_roles r on r.oid = t.typowner
         where c.contype = 'c' and not r.rolsuper order by c.oid limit $1",
        "Reads catalogs. The definition is printed, not evaluated.";

    /// Removes constraint `%I` of a domain, which is quoted.
    DROP_DOMAIN_CONSTRAINT:
        "alter domain %S drop constraint %I",
        "Removes an entry of a catalog.";

    /// Marks constraint `%L` of the quoted domain `%L` as valid: it was before the upgrade.
    MARK_CONSTRAINT_VALID:
        "update pg_catalog.pg_constraint set convalidated = true
         where contypid = to_regtype(%L)::oid and conname = %L",
        "Changes a catalog.";

    /// Lets roles create roles that must not in earlier versions: `%I`.
    LET_CREATE_ROLES:
        "alter role %I createrole",
        "Changes a shared catalog.";

    /// Extensions with another version than that of the engine.
    OUTDATED_EXTENSIONS:
        "select e.extname::text from pg_catalog.pg_extension e
         join pg_catalog.pg_available_extensions a on a.name = e.extname
         where a.default_version <> e.extversion order by e.oid",
        "Reads catalogs.";

    /// Updates the extension `%I`.
    UPDATE_EXTENSION:
        "alter extension %I update",
        "Functions of tenants are blocked, so its script can call none of them.";

    /// Prepared transactions, at most `$1`.
    PREPARED_NAMES:
        "select gid from pg_catalog.pg_prepared_xacts order by 1 limit $1",
        "Reads a view of pg_catalog.";

    /// Tablespaces besides those of PostgreSQL, at most `$1`.
    TABLESPACES:
        "select spcname::text from pg_catalog.pg_tablespace
         where spcname not in ('pg_default', 'pg_global') order by 1 limit $1",
        "Reads a shared catalog.";

    /// Logical replication slots, at most `$1`.
    LOGICAL_SLOTS:
        "select slot_name::text from pg_catalog.pg_replication_slots
         where slot_type = 'logical' order by 1 limit $1",
        "Reads a view of pg_catalog.";

    /// Size of all databases in bytes.
    SIZE:
        "select coalesce(sum(pg_catalog.pg_database_size(oid)), 0)::bigint
         from pg_catalog.pg_database",
        "Reads a shared catalog.";

    /// Names of extensions, at most `$1`.
    EXTENSION_NAMES:
        "select extname::text from pg_catalog.pg_extension order by 1 limit $1",
        "Reads a catalog.";

    /// Columns of types that store numbers of catalog rows, which an upgrade changes. Also through
    /// domains and arrays, as far as one level.
    CATALOG_NUMBERS:
        "select format('%I.%I.%I', n.nspname, c.relname, a.attname), t.typname::text
         from pg_catalog.pg_attribute a
         join pg_catalog.pg_class c on c.oid = a.attrelid and c.relkind in ('r', 'm', 'i', 'p')
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         join pg_catalog.pg_type u on u.oid = a.atttypid
         join pg_catalog.pg_type t
             on t.oid in (u.oid, nullif(u.typbasetype, 0), nullif(u.typelem, 0))
         where t.typnamespace = 'pg_catalog'::regnamespace and not a.attisdropped
         and t.typname in ('regcollation', 'regconfig', 'regdictionary', 'regnamespace', 'regoper',
                           'regoperator', 'regproc', 'regprocedure')
         and n.nspname not like 'pg\\_%' and n.nspname <> 'information_schema'
         order by 1 limit $1",
        "Reads catalogs.";
}
