//! Advisors: checks of a database's catalog with remediations.
//!
//! A lint is a value with title, level and the SQL that returns its findings.

pub mod operations;
pub mod performance;
pub mod security;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    control::database_session::{
        DATABASE, READER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::{Context as _, Error},
};

/// Maximum number of findings per lint.
pub const FINDINGS_MAX: usize = 500;

/// A check.
#[derive(Debug)]
pub struct Lint {
    /// Name in the contract.
    pub name: &'static str,
    /// Title.
    pub title: &'static str,
    /// Level.
    pub level: LintLevel,
    /// Description of the problem.
    pub description: &'static str,
    /// Remediation.
    pub remediation: &'static str,
    /// SQL that returns one row per finding: schema, name and kind of the object; detail; key that
    /// distinguishes findings of the object; additional metadata as JSON. `search_path` is
    /// `pg_catalog`.
    pub sql: &'static str,
}

/// Level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Level")]
pub enum LintLevel {
    /// Data is or may be exposed.
    Error,
    /// A change is recommended.
    Warn,
    /// Information.
    Info,
}

/// Category of a lint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Category")]
pub enum LintCategory {
    /// Performance.
    Performance,
    /// Access control.
    Security,
}

/// Audience of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Facing")]
pub enum LintFacing {
    /// Users of the project.
    External,
}

/// A problem that was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub struct LintFinding {
    name: &'static str,
    title: &'static str,
    level: LintLevel,
    facing: LintFacing,
    categories: Vec<LintCategory>,
    description: &'static str,
    detail: String,
    remediation: &'static str,
    metadata: LintMetadata,
    /// Stable identifier of the finding.
    cache_key: String,
}

/// Object of a finding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Metadata")]
pub struct LintMetadata {
    #[serde(default)]
    schema: String,
    #[serde(default)]
    name: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fkey_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fkey_columns: Option<Vec<i64>>,
}

impl LintCategory {
    /// Returns the lints of the category.
    pub fn lints(self) -> &'static [Lint] {
        match self {
            Self::Performance => performance::LINTS,
            Self::Security => security::LINTS,
        }
    }
}

/// Runs the lints of a category.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] after the time limit.
pub async fn advise(
    target: &ConnectTarget,
    category: LintCategory,
    limits: SessionLimits,
) -> Result<Vec<LintFinding>, Error> {
    let mut session = open(target, limits).await?;
    let mut findings = Vec::new();
    for lint in category.lints() {
        findings.append(&mut lint.look(&mut session, category).await?);
    }
    Ok(findings)
}

async fn open(target: &ConnectTarget, limits: SessionLimits) -> Result<DatabaseSession, Error> {
    let settings = [
        ("default_transaction_read_only", "on"),
        ("search_path", "pg_catalog"),
    ];
    DatabaseSession::open(target, READER, DATABASE, &settings, limits).await
}

impl Lint {
    async fn look(
        &self,
        session: &mut DatabaseSession,
        category: LintCategory,
    ) -> Result<Vec<LintFinding>, Error> {
        let sql = format!(
            "select * from ({}) as found order by 1, 2, 5 limit {FINDINGS_MAX}",
            self.sql
        );
        session
            .simple_query(&sql)
            .await?
            .rows
            .texts()
            .into_iter()
            .map(|row| self.finding(category, row))
            .collect()
    }

    fn finding(
        &self,
        category: LintCategory,
        row: Vec<Option<String>>,
    ) -> Result<LintFinding, Error> {
        let [schema, name, kind, detail, key, extra] = <[_; 6]>::try_from(row)
            .map_err(|row| format!("{} columns", row.len()))
            .context("reading a lint's findings")?;
        let extra: LintMetadata = extra
            .map_or(Ok(LintMetadata::default()), |text| {
                serde_json::from_str(&text)
            })
            .context("reading a lint's facts")?;
        let key = key.unwrap_or_default();
        let parts = [
            Some(self.name),
            schema.as_deref(),
            name.as_deref(),
            Some(key.as_str()),
        ];
        let cache_key = parts
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("_");
        Ok(LintFinding {
            name: self.name,
            title: self.title,
            level: self.level,
            facing: LintFacing::External,
            categories: vec![category],
            description: self.description,
            detail: detail.unwrap_or_default(),
            remediation: self.remediation,
            metadata: LintMetadata {
                schema: schema.unwrap_or_default(),
                name: name.unwrap_or_default(),
                kind: kind.unwrap_or_default(),
                ..extra
            },
            cache_key,
        })
    }
}

/// Lints of the contract that are not implemented, mostly about services that a project does not
/// have.
const UNCHECKED: &[&str] = &[
    "auth_insufficient_mfa_options",
    "auth_leaked_password_protection",
    "auth_otp_long_expiry",
    "auth_otp_short_length",
    "auth_password_policy_missing",
    "auth_users_exposed",
    "db_connection_failing",
    "db_connection_limit_reached",
    "db_not_reachable",
    "instance_alert_firing",
    "instance_db_down",
    "instance_telemetry_lost",
    "leaked_service_key",
    "log_auth_error_rate_high",
    "log_connections_not_enabled",
    "log_data_api_error_rate_high",
    "log_edge_function_error_rate_high",
    "log_storage_error_rate_high",
    "network_restrictions_not_set",
    "no_backup_admin",
    "password_requirements_min_length",
    "pitr_not_enabled",
    "realtime_authorization_timeouts",
    "realtime_concurrent_users_near_limit",
    "realtime_postgres_changes_spike",
    "ssl_not_enforced",
    "vulnerable_postgres_version",
];

/// A lint selected by name.
#[derive(Debug, Clone, Copy)]
pub enum LintSelection {
    /// An implemented lint.
    Checked(LintCategory, &'static Lint),
    /// A lint of the contract that is not implemented.
    Unchecked(&'static str),
}

impl LintSelection {
    /// Returns the lint with this name, if the contract has one.
    pub fn named(name: &str) -> Option<Self> {
        let checked = [LintCategory::Performance, LintCategory::Security]
            .into_iter()
            .find_map(|category| {
                let lint = category.lints().iter().find(|lint| lint.name == name)?;
                Some(Self::Checked(category, lint))
            });
        checked.or_else(|| {
            UNCHECKED
                .iter()
                .find(|unchecked| **unchecked == name)
                .map(|name| Self::Unchecked(name))
        })
    }
}

/// Runs these lints. One that is not implemented yields a finding that reports so.
///
/// Errors: those of [`advise`].
pub async fn run(
    target: &ConnectTarget,
    asked: &[LintSelection],
    limits: SessionLimits,
) -> Result<Vec<LintFinding>, Error> {
    let mut session = open(target, limits).await?;
    let mut findings = Vec::new();
    for lint in asked {
        match lint {
            LintSelection::Checked(category, lint) => {
                findings.append(&mut lint.look(&mut session, *category).await?);
            }
            LintSelection::Unchecked(name) => findings.push(unavailable(name)),
        }
    }
    Ok(findings)
}

fn unavailable(name: &str) -> LintFinding {
    LintFinding {
        name: "advisor_check_unavailable",
        title: "Check unavailable",
        level: LintLevel::Info,
        facing: LintFacing::External,
        categories: Vec::new(),
        description: "This server does not implement the check.",
        detail: format!("`{name}` is not checked"),
        remediation: "Check for the problem in another way.",
        metadata: LintMetadata {
            name: name.to_owned(),
            kind: "health".to_owned(),
            ..LintMetadata::default()
        },
        cache_key: format!("advisor_check_unavailable_{name}"),
    }
}

/// Conditions of several lints.
macro_rules! customers {
    // Schemas of the customer, except those of PostgreSQL and of tools.
    () => {
        "n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'extensions', 'supabase_migrations', 'auth', 'storage', \
         'realtime', '_realtime', 'vault', 'graphql', 'graphql_public', 'pgbouncer', 'supabase_functions')"
    };
}

macro_rules! exposed {
    // A relation `c` in `n` that the data API serves and that API roles can access.
    () => {
        "n.nspname = 'public' and exists (select from pg_roles api where api.rolname in ('anon', 'authenticated') \
         and has_table_privilege(api.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE'))"
    };
}

macro_rules! no_extensions {
    // Excludes objects of extensions, which the customer cannot change.
    ($class:literal, $id:literal) => {
        concat!(
            "not exists (select from pg_depend d where d.classid = '",
            $class,
            "'::regclass and d.objid = ",
            $id,
            " and d.deptype = 'e')"
        )
    };
}

use {customers, exposed, no_extensions};
