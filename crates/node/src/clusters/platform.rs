//! The contents of a project's database: schemas, roles, tables and functions that migrations of
//! applications and the platform's services expect.
//!
//! Each object is a script under `recipes/platform`, named after the object:
//! `<schema>/<kind>/<name>.sql`. Scripts of tables and types run once; all others describe a state
//! and run again in existing projects when their text changes.

use std::{collections::HashSet, fmt};

use sha2::{Digest, Sha256};
use tokio_postgres::{Client, error::SqlState};

use super::platform_roles::SERVICE_ROLES;
use crate::{
    clusters::{
        superuser::SuperuserSession,
        template::{self},
    },
    error::{ClusterError, Result},
};

/// A part of the platform that was not applied, because an object of the tenant has the name of one
/// of its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformConflict {
    /// Name of the part, such as `auth`.
    pub part: &'static str,
    /// The conflicting object, as PostgreSQL or `Part::conflict` words it.
    pub cause: String,
}

impl fmt::Display for PlatformConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.part, self.cause)
    }
}

/// A part of the platform, applied in one transaction.
#[derive(Debug)]
struct Part {
    /// Name in reports, such as `auth`.
    name: &'static str,
    /// Schemas that must not belong to the tenant.
    schemas: &'static [&'static str],
    /// The part is skipped if the engine lacks this extension.
    requires: Option<&'static str>,
    scripts: &'static [Script],
}

/// A script under `recipes/platform`.
#[derive(Debug)]
struct Script {
    /// Path without the extension, such as `auth/tables/users`.
    path: &'static str,
    sql: &'static str,
}

/// The scripts of a list of paths.
macro_rules! scripts {
    ($($path:literal),* $(,)?) => {
        &[$(Script { path: $path, sql: include_str!(concat!("recipes/platform/", $path, ".sql")) }),*]
    };
}

/// All parts in the order of their dependencies.
const PARTS: &[Part] = &[
    Part {
        name: "roles",
        schemas: &[],
        requires: None,
        scripts: scripts!["roles"],
    },
    Part {
        name: "schemas",
        schemas: &[
            "auth",
            "storage",
            "realtime",
            "vault",
            "graphql",
            "graphql_public",
            "pgbouncer",
            "supabase_functions",
        ],
        requires: None,
        scripts: scripts!["schemas", "extensions"],
    },
    Part {
        name: "auth",
        schemas: &["auth"],
        requires: None,
        scripts: scripts![
            "auth/types/aal_level",
            "auth/types/code_challenge_method",
            "auth/types/factor_status",
            "auth/types/factor_type",
            "auth/types/oauth_authorization_status",
            "auth/types/oauth_client_type",
            "auth/types/oauth_registration_type",
            "auth/types/oauth_response_type",
            "auth/types/one_time_token_type",
            "auth/tables/schema_migrations",
            "auth/tables/instances",
            "auth/tables/audit_log_entries",
            "auth/tables/users",
            "auth/tables/identities",
            "auth/tables/oauth_clients",
            "auth/tables/sessions",
            "auth/tables/refresh_tokens",
            "auth/tables/one_time_tokens",
            "auth/tables/mfa_factors",
            "auth/tables/mfa_challenges",
            "auth/tables/mfa_amr_claims",
            "auth/tables/sso_providers",
            "auth/tables/sso_domains",
            "auth/tables/saml_providers",
            "auth/tables/flow_state",
            "auth/tables/saml_relay_states",
            "auth/tables/oauth_authorizations",
            "auth/tables/oauth_consents",
            "auth/tables/oauth_client_states",
            "auth/tables/custom_oauth_providers",
            "auth/tables/webauthn_credentials",
            "auth/tables/webauthn_challenges",
            "auth/functions/jwt",
            "auth/functions/uid",
            "auth/functions/role",
            "auth/functions/email",
            "auth/recorded_migrations",
        ],
    },
    Part {
        name: "storage",
        schemas: &["storage"],
        requires: None,
        scripts: scripts![
            "storage/types/buckettype",
            "storage/tables/migrations",
            "storage/tables/buckets",
            "storage/tables/objects",
            "storage/tables/s3_multipart_uploads",
            "storage/tables/s3_multipart_uploads_parts",
            "storage/tables/buckets_analytics",
            "storage/tables/iceberg_namespaces",
            "storage/tables/iceberg_tables",
            "storage/tables/buckets_vectors",
            "storage/tables/vector_indexes",
            "storage/functions/filename",
            "storage/functions/foldername",
            "storage/functions/extension",
            "storage/functions/operation",
            "storage/functions/allow_any_operation",
            "storage/functions/allow_only_operation",
            "storage/functions/can_insert_object",
            "storage/functions/enforce_bucket_name_length",
            "storage/functions/protect_delete",
            "storage/functions/update_updated_at_column",
            "storage/functions/get_common_prefix",
            "storage/functions/get_size_by_bucket",
            "storage/functions/list_objects_with_delimiter",
            "storage/functions/list_multipart_uploads_with_delimiter",
            "storage/functions/search",
            "storage/functions/search_by_timestamp",
            "storage/functions/search_v2",
            "storage/triggers",
            "storage/recorded_migrations",
        ],
    },
    Part {
        name: "realtime",
        schemas: &["realtime"],
        requires: None,
        scripts: scripts![
            "realtime/types/action",
            "realtime/types/equality_op",
            "realtime/types/user_defined_filter",
            "realtime/types/wal_column",
            "realtime/types/wal_rls",
            "realtime/functions/to_regrole",
            "realtime/tables/schema_migrations",
            "realtime/tables/messages",
            "realtime/tables/subscription",
            "realtime/functions/topic",
            "realtime/functions/create_message_partition",
            "realtime/functions/send",
            "realtime/functions/send_binary",
            "realtime/functions/broadcast_changes",
            "realtime/functions/cast",
            "realtime/functions/wal2json_escape_identifier",
            "realtime/functions/quote_wal2json",
            "realtime/functions/check_equality_op",
            "realtime/functions/is_visible_through_filters",
            "realtime/functions/build_prepared_statement_sql",
            "realtime/functions/subscription_check_filters",
            "realtime/functions/wal_columns",
            "realtime/functions/apply_rls",
            "realtime/functions/list_changes",
            "realtime/triggers",
            "realtime/recorded_migrations",
            "publications/supabase_realtime",
        ],
    },
    Part {
        name: "vault",
        schemas: &["vault"],
        requires: Some("pgcrypto"),
        scripts: scripts![
            "vault/tables/secrets",
            "vault/functions/_sealing",
            "vault/functions/create_secret",
            "vault/functions/update_secret",
            "vault/views",
            "vault/extension",
        ],
    },
    Part {
        name: "pgbouncer",
        schemas: &["pgbouncer"],
        requires: None,
        scripts: scripts!["pgbouncer/functions/get_auth"],
    },
    Part {
        name: "graphql_public",
        schemas: &["graphql_public"],
        requires: None,
        scripts: scripts!["graphql_public/functions/graphql"],
    },
    Part {
        name: "tenant",
        schemas: &["auth", "storage", "realtime", "extensions"],
        requires: None,
        scripts: scripts![
            "event_triggers/pgrst_watch",
            "event_triggers/platform_guard",
            "extensions/tables/platform_window",
            "tenant_policies",
            "tenant_settings"
        ],
    },
];

/// Grants to the roles of the Data API on new objects in `public`.
const NEW_TABLE_GRANTS: &str = include_str!("recipes/platform/new_table_grants.sql");

/// Settings of the transaction of a part. Names in scripts are those of `pg_catalog` or qualified,
/// and no trigger of the tenant on the platform's tables runs as superuser.
const BEGIN: &str = "begin; set local search_path = pg_catalog, pg_temp; set local session_replication_role = replica; \
                     set local client_min_messages = warning";

/// Owner of each object of the schemas `$1`, with whether the platform owns it: a superuser does,
/// or one of the roles `$2`, which the tenant can neither create nor administer.
const OWNERS: &str = "
    select o.kind, o.oid, o.schema, o.name, r.rolname::text,
           r.rolsuper or (r.rolname = any ($2) and not exists (
               select from pg_auth_members m join pg_roles a on a.oid = m.member
               where m.roleid = r.oid and m.admin_option and not a.rolsuper))
    from (
        select 'schema' as kind, oid, nspname::text as schema, '' as name, nspowner as owner
        from pg_namespace
        union all
        select 'relation', c.oid, n.nspname::text, c.relname::text, c.relowner
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S', 'c')
        union all
        select 'type', t.oid, n.nspname::text, t.typname::text, t.typowner
        from pg_type t join pg_namespace n on n.oid = t.typnamespace
        where t.typtype in ('e', 'd')
        union all
        select 'function', p.oid, n.nspname::text, p.proname::text, p.proowner
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    ) as o
    join pg_roles r on r.oid = o.owner
    where o.schema = any ($1)";

/// Roles that own objects of the platform, besides the superuser.
const PLATFORM_OWNERS: [&str; 6] = [
    SERVICE_ROLES[0],
    SERVICE_ROLES[1],
    SERVICE_ROLES[2],
    "supabase_functions_admin",
    "pgbouncer",
    "gantry_realtime",
];

/// Functions among the given ones that the current transaction has changed.
const CHANGED_FUNCTIONS: &str = "
    select oid::regprocedure::text from pg_proc
    where oid = any ($1) and xmin::text::bigint = pg_current_xact_id()::text::bigint & 4294967295";

/// An object of a schema, and its owner.
#[derive(Debug)]
struct Owned {
    kind: String,
    oid: u32,
    schema: String,
    name: String,
    owner: String,
    by_platform: bool,
}

impl Script {
    /// Schema and name of the table or type that this script creates. `None` for scripts that can
    /// run again.
    fn creates(&self) -> Option<(&'static str, &'static str)> {
        let mut segments = self.path.split('/');
        match (segments.next(), segments.next(), segments.next()) {
            (Some(schema), Some("tables" | "types"), Some(name)) => Some((schema, name)),
            _ => None,
        }
    }
}

impl Part {
    /// Returns the first object that belongs to the tenant and has a name of this part.
    fn conflict(&self, objects: &[Owned]) -> Option<String> {
        let in_the_way = objects
            .iter()
            .filter(|object| !object.by_platform)
            .find(|object| {
                object.kind == "schema"
                    || self
                        .scripts
                        .iter()
                        .any(|script| script.creates() == Some((&object.schema, &object.name)))
            })?;
        let Owned {
            kind,
            schema,
            name,
            owner,
            ..
        } = in_the_way;
        let object = if kind == "schema" {
            format!("schema {schema}")
        } else {
            format!("{kind} {schema}.{name}")
        };
        Some(format!("{object} belongs to role {owner}; rename it"))
    }

    /// Joins the scripts of objects that do not exist, and those that can run again.
    fn sql(&self, objects: &[Owned]) -> String {
        let exists = |(schema, name): (&str, &str)| {
            objects.iter().any(|object| {
                object.kind != "function" && object.schema == schema && object.name == name
            })
        };
        let missing = self
            .scripts
            .iter()
            .filter(|script| !script.creates().is_some_and(exists));
        missing
            .map(|script| script.sql)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Applies this part. Returns what is in the way instead if the tenant has an object with the
    /// name of one of its objects; nothing is changed then.
    async fn apply(&self, admin: &Client) -> Result<Option<String>> {
        let rows = admin
            .query(OWNERS, &[&self.schemas, &PLATFORM_OWNERS.as_slice()])
            .await
            .map_err(sql_error)?;
        let objects: Vec<Owned> = rows
            .iter()
            .map(|row| Owned {
                kind: row.get(0),
                oid: row.get(1),
                schema: row.get(2),
                name: row.get(3),
                owner: row.get(4),
                by_platform: row.get(5),
            })
            .collect();
        if let Some(conflict) = self.conflict(&objects) {
            return Ok(Some(conflict));
        }
        admin.batch_execute(BEGIN).await.map_err(sql_error)?;
        let applied = self.apply_in_transaction(admin, &objects).await;
        let end = if matches!(applied, Ok(None)) {
            "commit"
        } else {
            "rollback"
        };
        match applied {
            // The connection is of no use after any other error.
            Ok(outcome) => {
                admin.batch_execute(end).await.map_err(sql_error)?;
                Ok(outcome)
            }
            Err(error) => match conflict_of(&error) {
                Some(conflict) => {
                    admin.batch_execute(end).await.map_err(sql_error)?;
                    Ok(Some(conflict))
                }
                None => Err(sql_error(error)),
            },
        }
    }

    async fn apply_in_transaction(
        &self,
        admin: &Client,
        objects: &[Owned],
    ) -> std::result::Result<Option<String>, tokio_postgres::Error> {
        admin.batch_execute(&self.sql(objects)).await?;
        // CREATE OR REPLACE would have replaced a function of the tenant with the same arguments.
        let of_tenant: Vec<u32> = objects
            .iter()
            .filter(|object| object.kind == "function" && !object.by_platform)
            .map(|object| object.oid)
            .collect();
        let changed = admin.query_opt(CHANGED_FUNCTIONS, &[&of_tenant]).await?;
        Ok(changed.map(|row| {
            let function: String = row.get(0);
            format!("function {function} belongs to the tenant; rename it")
        }))
    }
}

/// Returns the message of an error that names an object in the way. Other errors are temporary.
fn conflict_of(error: &tokio_postgres::Error) -> Option<String> {
    let conflicts = [
        SqlState::DUPLICATE_OBJECT,
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_FUNCTION,
        SqlState::DUPLICATE_SCHEMA,
        SqlState::WRONG_OBJECT_TYPE,
        SqlState::INVALID_FUNCTION_DEFINITION,
        SqlState::UNDEFINED_OBJECT,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_COLUMN,
        SqlState::DATATYPE_MISMATCH,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
    ];
    let error = error.as_db_error()?;
    conflicts
        .contains(error.code())
        .then(|| error.message().to_owned())
}

fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    ClusterError::Sql {
        doing: "applying the platform's schemas",
        cause,
    }
}

/// Brings a database to this version of the platform. Idempotent; each part is a transaction. Parts
/// with a conflict, and parts that need them, are left out and returned.
///
/// The scripts run in a session of the superuser: they change definitions, and rows of tables that
/// only the platform can alter. No rule, default, constraint or index of a tenant is on these, and
/// triggers do not fire. Objects of the tenant that have a name of the platform's are conflicts.
pub(super) async fn apply(session: &SuperuserSession) -> Result<Vec<PlatformConflict>> {
    let admin = session.scripts();
    let rows = admin
        .query("select name::text from pg_available_extensions", &[])
        .await
        .map_err(sql_error)?;
    let available: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let mut conflicts = Vec::new();
    for part in PARTS {
        if part
            .requires
            .is_some_and(|extension| !available.contains(extension))
        {
            continue;
        }
        if let Some(cause) = part.apply(admin).await? {
            conflicts.push(PlatformConflict {
                part: part.name,
                cause,
            });
        }
    }
    Ok(conflicts)
}

/// Opens new tables, sequences and functions in `public` to the roles of the Data API. Idempotent.
pub(super) async fn grant_on_new_tables(session: &SuperuserSession) -> Result<()> {
    session
        .scripts()
        .batch_execute(NEW_TABLE_GRANTS)
        .await
        .map_err(sql_error)
}

/// Grants the privileges of the roles, and defines the rules of creating extensions. Idempotent.
/// Changes catalogs and functions of the platform's schemas only.
pub(super) async fn grant(session: &SuperuserSession) -> Result<()> {
    let granted = session.scripts().batch_execute(template::GRANTS).await;
    granted.map_err(|cause| ClusterError::Sql {
        doing: "granting privileges to roles",
        cause,
    })
}

/// Adds all scripts to a digest.
pub(super) fn hash_into(digest: &mut Sha256) {
    for script in PARTS.iter().flat_map(|part| part.scripts) {
        digest.update(script.sql.len().to_le_bytes());
        digest.update(script.sql);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    fn files(dir: &Path, found: &mut BTreeSet<String>, root: &Path) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found, root);
            } else {
                let relative = path.strip_prefix(root).unwrap().with_extension("");
                found.insert(relative.to_string_lossy().into_owned());
            }
        }
    }

    #[test]
    fn every_script_file_belongs_to_one_part() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clusters/recipes/platform");
        let mut found = BTreeSet::new();
        files(&root, &mut found, &root);
        found.remove("new_table_grants");
        let listed: Vec<_> = PARTS
            .iter()
            .flat_map(|part| part.scripts)
            .map(|script| script.path.to_owned())
            .collect();
        let unique: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(unique.len(), listed.len());
        assert_eq!(unique, found);
    }

    #[test]
    fn objects_of_the_tenant_conflict_and_those_of_the_platform_are_kept() {
        let auth = &PARTS[2];
        let owned = |kind: &str, schema: &str, name: &str, by_platform| Owned {
            kind: kind.to_owned(),
            oid: 1,
            schema: schema.to_owned(),
            name: name.to_owned(),
            owner: "someone".to_owned(),
            by_platform,
        };
        let users = "create table auth.users";
        assert_eq!(auth.conflict(&[]), None);
        assert!(auth.sql(&[]).contains(users));
        let ours = [
            owned("schema", "auth", "", true),
            owned("relation", "auth", "users", true),
        ];
        assert_eq!(auth.conflict(&ours), None);
        assert!(!auth.sql(&ours).contains(users));
        assert!(auth.sql(&ours).contains("auth.uid()"));
        for (object, cause) in [
            (
                owned("schema", "auth", "", false),
                "schema auth belongs to role someone; rename it",
            ),
            (
                owned("relation", "auth", "users", false),
                "relation auth.users belongs to role someone; rename it",
            ),
        ] {
            assert_eq!(auth.conflict(&[object]).as_deref(), Some(cause));
        }
        // Tables of other names in the platform's schemas belong to the application.
        assert_eq!(
            auth.conflict(&[owned("relation", "auth", "my_users", false)]),
            None
        );
    }
}
