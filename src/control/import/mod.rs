//! Import of a database into a project (decision 0137).
//!
//! `pg_dump` reads the source, and `pg_restore` writes to the project as its owner: no statement
//! of the source runs with rights that the owner lacks. The two are connected by a pipe, so memory
//! is bounded. Passwords are in a file that only the two programs read, never in arguments.

mod platform_rows;
mod programs;
pub mod settings;
mod source;

use std::{collections::BTreeSet, path::PathBuf};

use gantry_base::ids::ProjectRef;
use gantry_node::{
    clusters::{self, ServerSocket},
    engines::Engine,
    error::ClusterError,
    supervisor::ProcessOwner,
};
use postgres_protocol::escape::{escape_identifier, escape_literal};
use secrecy::SecretString;
use serde::Serialize;
use tokio_postgres::{Client, NoTls};

use self::{
    programs::ImportPrograms,
    source::{SourceFacts, SourceRole},
};
use super::database_session::{DATABASE, OWNER};

/// Schemas that belong to the platform or to PostgreSQL. Their objects are not imported.
const OWN_SCHEMAS: [&str; 17] = [
    "_analytics",
    "_realtime",
    "auth",
    "cron",
    "extensions",
    "graphql",
    "graphql_public",
    "information_schema",
    "net",
    "pgbouncer",
    "pgsodium",
    "pgsodium_masks",
    "realtime",
    "storage",
    "supabase_functions",
    "supavisor",
    "vault",
];
/// Maximum number of lines about rejected statements in a report.
const PROBLEMS_MAX: usize = 200;

/// The connection parameters of a source. They contain no password.
#[derive(Debug, Clone)]
pub struct SourceDatabase {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Role.
    pub user: String,
    /// Database.
    pub database: String,
    /// Mode of TLS, as libpq names it.
    pub tls: String,
}

/// An import to make.
#[derive(Debug)]
pub struct Import {
    /// The database to read.
    pub source: SourceDatabase,
    /// The password of its role.
    pub password: SecretString,
    /// The data folder.
    pub home: PathBuf,
    /// The project. Its server must be running.
    pub project: ProjectRef,
    /// The engine of the client programs.
    pub engine: Engine,
    /// The account of the client programs.
    pub account: ProcessOwner,
    /// Whether objects of an earlier import are replaced.
    pub replace: bool,
    /// Whether only the report is made.
    pub dry_run: bool,
}

/// The result of an import.
#[derive(Debug, Default, Serialize)]
pub struct ImportReport {
    /// Version of the source's PostgreSQL.
    pub source_version: String,
    /// Schemas that were imported with their data.
    pub schemas: Vec<String>,
    /// Extensions that were created.
    pub extensions: Vec<String>,
    /// Roles that were created.
    pub roles: Vec<String>,
    /// Rows of the platform's tables, by table.
    pub platform_rows: Vec<(String, u64)>,
    /// Things that cannot be imported, each with what to do instead.
    pub not_imported: Vec<String>,
    /// Statements that the project's server rejected.
    pub rejected: Vec<String>,
}

/// An import could not be made. Each message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The source could not be read.
    #[error("the source cannot be read: {0}")]
    Source(String),
    /// The project's server could not be reached.
    #[error("the project's server cannot be reached: {0}; is the project running?")]
    Target(String),
    /// The project has objects already.
    #[error(
        "the project has tables in {0}; import into a new project, or replace them with --replace"
    )]
    NotEmpty(String),
    /// A client program is missing, or failed.
    #[error("{0}")]
    Program(String),
    /// A statement for the project failed.
    #[error("{doing}: {cause}")]
    Sql {
        /// The operation, as a participle.
        doing: &'static str,
        /// The error message.
        cause: String,
    },
    /// A file operation failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Another error of a cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

type Result<T, E = ImportError> = std::result::Result<T, E>;

impl Import {
    /// Makes the import. It can be repeated.
    pub async fn run(self) -> Result<ImportReport> {
        let socket = ServerSocket::in_home(&self.home, &self.project);
        let programs = ImportPrograms::prepare(&self, &socket)?;
        let facts = source::read(&programs).await?;
        let owner = session(&socket, OWNER).await?;
        let target = TargetFacts::read(&owner).await?;
        let mut report = ImportReport {
            source_version: facts.version.clone(),
            not_imported: facts.left_behind(),
            ..ImportReport::default()
        };
        let schemas = facts.schemas(&OWN_SCHEMAS);
        let filled: Vec<&str> = schemas
            .iter()
            .map(String::as_str)
            .filter(|schema| target.filled.contains(*schema))
            .collect();
        if !filled.is_empty() && !self.replace {
            return Err(ImportError::NotEmpty(filled.join(", ")));
        }
        create_extensions(&owner, &facts, &target, self.dry_run, &mut report).await?;
        create_roles(&owner, &facts.roles, &target, self.dry_run, &mut report).await?;
        if self.dry_run {
            report.schemas = schemas;
            return Ok(report);
        }
        // Before the schemas: their triggers on these tables would run for each row.
        platform_rows::copy(&programs, &socket, &mut report).await?;
        for schema in &schemas {
            // The owner of the project owns it.
            let sql = format!("create schema if not exists {}", escape_identifier(schema));
            run(&owner, "creating a schema", &sql).await?;
        }
        drop(owner);
        if !schemas.is_empty() {
            report.rejected = programs.copy_schemas(&schemas, self.replace).await?;
        }
        report.schemas = schemas;
        Ok(report)
    }
}

/// Opens a session in the project's database, as its owner or as the login for rows of the
/// platform's tables.
async fn session(socket: &ServerSocket, role: &str) -> Result<Client> {
    let target = |error: &dyn std::fmt::Display| ImportError::Target(error.to_string());
    let stream = socket.connect().await.map_err(|error| target(&error))?;
    let mut config = tokio_postgres::Config::new();
    let (user, setting) = clusters::peer_login(role);
    config
        .user(user)
        .dbname(DATABASE)
        .application_name("gantry import");
    let (libraries, none) = clusters::NO_LIBRARIES;
    let mut options = format!("-c {libraries}={none}");
    if let Some((name, value)) = setting {
        options.extend([" -c ", name, "=", value]);
    }
    config.options(options);
    let connected = config.connect_raw(stream, NoTls).await;
    let (client, connection) = connected.map_err(|error| target(&error))?;
    tokio::spawn(connection);
    Ok(client)
}

/// The state of the project before an import.
struct TargetFacts {
    /// Extensions that exist, and those that can be created.
    existing: BTreeSet<String>,
    available: BTreeSet<String>,
    roles: BTreeSet<String>,
    schemas: BTreeSet<String>,
    /// Schemas with tables that belong to no extension.
    filled: BTreeSet<String>,
    creates_roles: bool,
}

impl TargetFacts {
    async fn read(owner: &Client) -> Result<Self> {
        let creates = "select case when rolcreaterole then 'yes' end from pg_roles where rolname = current_user";
        Ok(Self {
            existing: names(owner, "select extname::text from pg_extension").await?,
            available: names(owner, "select name::text from pg_available_extensions").await?,
            roles: names(owner, "select rolname::text from pg_roles").await?,
            schemas: names(owner, "select nspname::text from pg_namespace").await?,
            filled: names(
                owner,
                "select distinct n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where c.relkind in ('r', 'p') and not exists (
                     select from pg_depend d where d.objid = c.oid and d.classid = 'pg_class'::regclass and d.deptype = 'e')",
            )
            .await?,
            creates_roles: names(owner, creates).await?.contains("yes"),
        })
    }
}

async fn names(session: &Client, sql: &str) -> Result<BTreeSet<String>> {
    let rows = session.query(sql, &[]).await;
    let rows = rows.map_err(sql_error("reading the project's database"))?;
    let found = rows
        .iter()
        .map(|row| row.try_get::<_, Option<String>>(0))
        .collect::<Result<Vec<_>, _>>();
    let found = found.map_err(sql_error("reading the project's database"))?;
    Ok(found.into_iter().flatten().collect())
}

async fn create_extensions(
    owner: &Client,
    facts: &SourceFacts,
    target: &TargetFacts,
    dry_run: bool,
    report: &mut ImportReport,
) -> Result<()> {
    for extension in &facts.extensions {
        if target.existing.contains(&extension.name) {
            continue;
        }
        if !target.available.contains(&extension.name) {
            report.not_imported.push(format!(
                "extension {0}: not available; the operator can install it, see: gantry extension install {0}",
                extension.name
            ));
            continue;
        }
        if !dry_run {
            let name = escape_identifier(&extension.name);
            let schema = escape_identifier(&extension.schema);
            if !target.schemas.contains(&extension.schema) {
                let sql = format!("create schema if not exists {schema}");
                run(owner, "creating a schema", &sql).await?;
            }
            let sql = format!("create extension if not exists {name} schema {schema} cascade");
            if let Err(error) = run(owner, "creating an extension", &sql).await {
                let text = format!("extension {}: {error}", extension.name);
                report.not_imported.push(text);
                continue;
            }
        }
        report.extensions.push(extension.name.clone());
    }
    Ok(())
}

async fn create_roles(
    owner: &Client,
    roles: &[SourceRole],
    target: &TargetFacts,
    dry_run: bool,
    report: &mut ImportReport,
) -> Result<()> {
    for role in roles {
        if target.roles.contains(&role.name) {
            continue;
        }
        if !target.creates_roles {
            report.not_imported.push(format!(
                "role {}: owners of projects on PostgreSQL 15 cannot create roles",
                role.name
            ));
            continue;
        }
        let name = escape_identifier(&role.name);
        let login = if role.login { "login" } else { "nologin" };
        let password = role.verifier.as_ref().map_or_else(String::new, |verifier| {
            format!(" password {}", escape_literal(verifier))
        });
        if role.login && role.verifier.is_none() {
            report.not_imported.push(format!(
                "password of role {}: the source does not show it; set one with ALTER ROLE",
                role.name
            ));
        }
        if !dry_run {
            let sql = format!("create role {name} {login}{password}");
            if let Err(error) = run(owner, "creating a role", &sql).await {
                report
                    .not_imported
                    .push(format!("role {}: {error}", role.name));
                continue;
            }
            for group in &role.groups {
                let sql = format!("grant {} to {name}", escape_identifier(group));
                if let Err(error) = run(owner, "granting a role", &sql).await {
                    let text = format!("membership of role {} in {group}: {error}", role.name);
                    report.not_imported.push(text);
                }
            }
        }
        report.roles.push(role.name.clone());
    }
    Ok(())
}

async fn run(session: &Client, doing: &'static str, sql: &str) -> Result<()> {
    session.batch_execute(sql).await.map_err(sql_error(doing))
}

/// Returns a function that adds the operation to an error. The message contains no statement.
fn sql_error(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> ImportError {
    move |error| ImportError::Sql {
        doing,
        cause: error
            .as_db_error()
            .map_or_else(|| error.to_string(), |refusal| refusal.message().to_owned()),
    }
}
