//! Faults of a database that its catalog shows, with what to do about each.
//!
//! A lint is a value: what is looked for, how bad it is, and the SQL that finds it.

pub mod operations;
pub mod performance;
pub mod security;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    base::error::{Context as _, Error},
    data_plane::database_session::{
        DATABASE, READER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
};

/// Findings of one lint that are told. A thousand tables without a key are one decision, not a thousand.
pub const FINDINGS_MAX: usize = 500;

/// Something to look for.
#[derive(Debug)]
pub struct Lint {
    /// The contract's name.
    pub name: &'static str,
    /// A few words.
    pub title: &'static str,
    /// How bad it is.
    pub level: LintLevel,
    /// What is wrong with it.
    pub description: &'static str,
    /// What to do.
    pub remediation: &'static str,
    /// Finds it. Answers, for each place: schema, name and kind of the object; what is wrong there; what tells it from
    /// others with that name; and more facts as JSON. `search_path` is `pg_catalog`.
    pub sql: &'static str,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Level")]
pub enum LintLevel {
    /// Data is, or may be, open to the wrong people.
    Error,
    /// Worth changing.
    Warn,
    /// Worth knowing.
    Info,
}

/// What a lint is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Category")]
pub enum LintCategory {
    /// Speed.
    Performance,
    /// Who gets at what.
    Security,
}

/// Who can see the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "Facing")]
pub enum LintFacing {
    /// The project's own people.
    External,
}

/// A fault that was found.
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
    /// The same for the same fault, each time.
    cache_key: String,
}

/// Where a fault is.
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
    /// What is looked for.
    pub fn lints(self) -> &'static [Lint] {
        match self {
            Self::Performance => performance::LINTS,
            Self::Security => security::LINTS,
        }
    }
}

/// Looks for every fault of a category.
///
/// Errors: [`Error::DatabaseUnreachable`]; [`Error::Sql`] if the time is up.
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

/// Lints of the contract that are not looked for: most are about services that a project here does not have.
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

/// A lint that can be asked for by its name.
#[derive(Debug, Clone, Copy)]
pub enum LintSelection {
    /// One that is looked for.
    Checked(LintCategory, &'static Lint),
    /// One that is not.
    Unchecked(&'static str),
}

impl LintSelection {
    /// The lint of this name, if the contract has one.
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

/// Looks for these faults only. One that is not looked for is a finding that says so.
///
/// Errors: as of [`advise`].
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
                findings.append(&mut lint.look(&mut session, *category).await?)
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
        description: "This server does not look for that fault.",
        detail: format!("`{name}` is not checked"),
        remediation: "Nothing here says whether there is a fault: look for it in another way.",
        metadata: LintMetadata {
            name: name.to_owned(),
            kind: "health".to_owned(),
            ..LintMetadata::default()
        },
        cache_key: format!("advisor_check_unavailable_{name}"),
    }
}

/// Conditions that several lints share.
macro_rules! customers {
    // A schema of the customer's: neither PostgreSQL's own nor one that tools keep their state in.
    () => {
        "n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'extensions', 'supabase_migrations', 'auth', 'storage', 'realtime', 'vault')"
    };
}

macro_rules! exposed {
    // A relation `c` in `n` that the data API serves, and that somebody without a password may reach.
    () => {
        "n.nspname = 'public' and exists (select from pg_roles api where api.rolname in ('anon', 'authenticated') \
         and has_table_privilege(api.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE'))"
    };
}

macro_rules! no_extensions {
    // Objects of extensions are not the customer's to change.
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
