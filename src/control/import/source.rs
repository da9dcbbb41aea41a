//! Properties of the source of an import, read in one query.

use serde::Deserialize;

use super::{ImportError, Result, programs::ImportPrograms};

/// Roles of the platform in sources that are projects of such a platform, and those of PostgreSQL.
/// They are not created.
const OWN_ROLES: [&str; 4] = ["dashboard_user", "postgres", "pgbouncer", "authenticator"];
/// Prefixes of further ones.
const OWN_PREFIXES: [&str; 4] = ["pg_", "supabase_", "pgsodium_", "cli_login_"];

/// An installed extension.
#[derive(Debug, Deserialize)]
pub(super) struct SourceExtension {
    pub(super) name: String,
    pub(super) schema: String,
}

/// A role of the customer.
#[derive(Debug, Deserialize)]
pub(super) struct SourceRole {
    pub(super) name: String,
    pub(super) login: bool,
    /// SCRAM verifier, if the source shows it.
    pub(super) verifier: Option<String>,
    #[serde(default)]
    pub(super) groups: Vec<String>,
}

/// Properties of the source.
#[derive(Debug, Deserialize)]
pub(super) struct SourceFacts {
    pub(super) version: String,
    major: u16,
    schemas: Vec<String>,
    pub(super) extensions: Vec<SourceExtension>,
    pub(super) roles: Vec<SourceRole>,
    /// Things that a dump of schemas does not contain, as `kind name`.
    others: Vec<String>,
}

/// The query. Its result is one JSON object. Verifiers are null unless the role may read them.
const FACTS: &str = "
select json_build_object(
    'version', current_setting('server_version'),
    'major', current_setting('server_version_num')::int / 10000,
    'schemas', (
        select coalesce(json_agg(nspname order by nspname), '[]') from pg_namespace n
        where nspname not like 'pg\\_%' and not exists (
            select from pg_depend d
            where d.objid = n.oid and d.classid = 'pg_namespace'::regclass and d.deptype = 'e')),
    'extensions', (
        select coalesce(json_agg(json_build_object(
            'name', extname, 'schema', nspname) order by e.oid), '[]')
        from pg_extension e join pg_namespace n on n.oid = extnamespace
        where extname <> 'plpgsql'),
    'roles', (
        select coalesce(json_agg(json_build_object(
            'name', r.rolname, 'login', r.rolcanlogin, 'verifier', VERIFIER,
            'groups', (
                select coalesce(json_agg(g.rolname), '[]')
                from pg_auth_members m join pg_roles g on g.oid = m.roleid
                where m.member = r.oid and g.rolname not like 'pg\\_%')
        ) order by r.oid), '[]') from pg_roles r where not r.rolsuper),
    'others', (select coalesce(json_agg(thing order by thing), '[]') from (
        select 'subscription ' || subname from pg_stat_subscription where subname is not null
        union all select 'publication ' || pubname from pg_publication
                  where pubname not like 'supabase\\_realtime%'
        union all select 'foreign server ' || srvname from pg_foreign_server
        union all select 'event trigger ' || evtname
                  from pg_event_trigger e join pg_roles r on r.oid = e.evtowner
                  where not r.rolsuper and r.rolname not like 'supabase\\_%'
        union all select 'prepared transaction ' || gid from pg_prepared_xacts
                  where database = current_database()
        union all select 'large objects: ' || count(*) from pg_largeobject_metadata
                  having count(*) > 0
        union all select 'replication slot ' || slot_name from pg_replication_slots
                  where database = current_database()
    ) as others (thing))
)";

/// Reads the properties of the source.
pub(super) async fn read(programs: &ImportPrograms) -> Result<SourceFacts> {
    let can_read = "select has_table_privilege('pg_catalog.pg_authid', 'select')";
    let shows = programs.query_source(can_read).await?;
    let verifier = if shows.trim() == "t" {
        "(select a.rolpassword from pg_authid a where a.oid = r.oid and a.rolpassword like 'SCRAM-SHA-256$%')"
    } else {
        "null"
    };
    let text = programs
        .query_source(&FACTS.replace("VERIFIER", verifier))
        .await?;
    let facts: SourceFacts = serde_json::from_str(&text)
        .map_err(|error| ImportError::Source(format!("it answered no JSON: {error}")))?;
    if facts.major > programs.major() {
        return Err(ImportError::Source(format!(
            "it is PostgreSQL {}, newer than the project's {}; create the project with a newer version",
            facts.version,
            programs.major()
        )));
    }
    Ok(SourceFacts {
        roles: facts
            .roles
            .into_iter()
            .filter(|role| {
                !OWN_ROLES.contains(&role.name.as_str())
                    && !OWN_PREFIXES
                        .iter()
                        .any(|prefix| role.name.starts_with(prefix))
            })
            .collect(),
        ..facts
    })
}

impl SourceFacts {
    /// Returns the schemas to import: those that are not `own`.
    pub(super) fn schemas(&self, own: &[&str]) -> Vec<String> {
        let schemas = self.schemas.iter();
        schemas
            .filter(|schema| !own.contains(&schema.as_str()))
            .cloned()
            .collect()
    }

    /// Returns what an import leaves out, with the remedy.
    pub(super) fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        for thing in &self.others {
            left.push(format!("{thing}: create it again in the project"));
        }
        left
    }
}
