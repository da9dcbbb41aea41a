//! Faults of a database that its catalog shows, with what to do about each.
//!
//! A lint is a value: what is looked for, how bad it is, and the SQL that finds it.

pub mod api;
pub mod performance;
pub mod security;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    DATABASE, READER,
    session::{Limits, Session, Target},
};
use crate::error::{Context as _, Error};

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
    pub level: Level,
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
pub enum Level {
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
pub enum Category {
    /// Speed.
    Performance,
    /// Who gets at what.
    Security,
}

/// Who can see the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Facing {
    /// The project's own people.
    External,
}

/// A fault that was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Finding {
    name: &'static str,
    title: &'static str,
    level: Level,
    facing: Facing,
    categories: Vec<Category>,
    description: &'static str,
    detail: String,
    remediation: &'static str,
    metadata: Metadata,
    /// The same for the same fault, each time.
    cache_key: String,
}

/// Where a fault is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
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

impl Category {
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
pub async fn advise(target: &Target, category: Category, limits: Limits) -> Result<Vec<Finding>, Error> {
    let settings = [("default_transaction_read_only", "on"), ("search_path", "pg_catalog")];
    let mut session = Session::open(target, READER, DATABASE, &settings, limits).await?;
    let mut findings = Vec::new();
    for lint in category.lints() {
        let sql = format!("select * from ({}) as found order by 1, 2, 5 limit {FINDINGS_MAX}", lint.sql);
        for row in session.simple(&sql).await?.rows.texts() {
            findings.push(lint.finding(category, row)?);
        }
    }
    Ok(findings)
}

impl Lint {
    fn finding(&self, category: Category, row: Vec<Option<String>>) -> Result<Finding, Error> {
        let [schema, name, kind, detail, key, extra] =
            <[_; 6]>::try_from(row).map_err(|row| format!("{} columns", row.len())).context("reading a lint's findings")?;
        let extra: Metadata =
            extra.map_or(Ok(Metadata::default()), |text| serde_json::from_str(&text)).context("reading a lint's facts")?;
        let key = key.unwrap_or_default();
        let parts = [Some(self.name), schema.as_deref(), name.as_deref(), Some(key.as_str())];
        let cache_key = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_");
        Ok(Finding {
            name: self.name,
            title: self.title,
            level: self.level,
            facing: Facing::External,
            categories: vec![category],
            description: self.description,
            detail: detail.unwrap_or_default(),
            remediation: self.remediation,
            metadata: Metadata {
                schema: schema.unwrap_or_default(),
                name: name.unwrap_or_default(),
                kind: kind.unwrap_or_default(),
                ..extra
            },
            cache_key,
        })
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
