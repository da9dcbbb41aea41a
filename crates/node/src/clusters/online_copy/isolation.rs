//! Removes from a copied cluster what acts on the outside or belongs to its original only.
//!
//! Runs while the copy is in quarantine: no libraries of extensions, no workers, no network, and
//! only sessions of Gantry. Every step is idempotent and reports a count, never a value.
//!
//! The superuser changes catalogs only. Rows of the platform's tables are changed by a login that
//! is no superuser, while their triggers and rules are hidden; rows of the tenant's tables by their
//! owner. A table is the platform's by its owner and its extension, never by its name alone.

use std::{collections::BTreeMap, fmt::Write as _};

use postgres_protocol::escape::escape_identifier;
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::{Client, Row, types::FromSql};

use crate::{
    clusters::{
        online_copy::{
            emptying, masking,
            progress::{CopyPhase, CopyProgress},
        },
        platform_roles::{REPAIR_DATABASE, SERVICE_ROLES},
        privileges,
        quarantine::{OwnerLogins, SchemaUsage},
        server::process::Server,
        superuser::{self, SqlArgument, SuperuserSession, SuperuserStatement},
    },
    error::{ClusterError, Result, sql_text},
};

/// Maximum number of databases of a copied cluster.
const DATABASES_MAX: i64 = 64;

/// One kind of change, with the number of things that it changed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IsolationStep {
    /// The things, in words of PostgreSQL.
    pub name: String,
    /// Their number.
    pub count: u64,
}

/// The counts by kind, in the order of execution.
#[derive(Debug, Default)]
pub(super) struct IsolationLog(Vec<IsolationStep>);

impl IsolationLog {
    pub(super) fn add(&mut self, name: &str, count: u64) {
        match self.0.iter_mut().find(|step| step.name == name) {
            Some(step) => step.count += count,
            None => self.0.push(IsolationStep {
                name: name.to_owned(),
                count,
            }),
        }
    }

    pub(super) fn into_steps(self) -> Vec<IsolationStep> {
        self.0
    }
}

/// The identity of the copy, and the secrets of the original to replace.
#[derive(Debug)]
pub(in crate::clusters) struct Isolation<'a> {
    /// Identifier that SQL in the copy reads with `current_setting('gantry.branch')`. Empty for a
    /// cluster that is no branch. `None`: that of the original stays.
    pub(in crate::clusters) marker: Option<&'a str>,
    /// Secrets of the original, each with its replacement.
    pub(in crate::clusters) secrets: &'a [(SecretString, SecretString)],
    /// SQL that masks data, in order.
    pub(in crate::clusters) masking: &'a [String],
    /// Whether tables are emptied.
    pub(in crate::clusters) schema_only: bool,
    /// Phase of the copy.
    pub(in crate::clusters) progress: &'a CopyProgress,
}

/// Options of foreign servers that name no place and hold no secret.
const SERVER_OPTIONS: &[&str] = &[
    "analyze_sampling",
    "async_capable",
    "batch_size",
    "dbname",
    "extensions",
    "fdw_startup_cost",
    "fdw_tuple_cost",
    "fetch_size",
    "truncatable",
    "updatable",
    "use_remote_estimate",
];

/// Changes of the catalogs of one database.
const CATALOG_STEPS: &[(&str, &SuperuserStatement)] = &[
    ("subscriptions disabled", &superuser::DISABLE_SUBSCRIPTIONS),
    ("user mappings cleared", &superuser::CLEAR_USER_MAPPINGS),
    (
        "foreign data wrappers cleared",
        &superuser::CLEAR_DATA_WRAPPERS,
    ),
];

/// Tables of the platform's services that hold sessions, pending requests and secrets.
const EMPTIED: &[(&str, &str)] = &[
    ("refresh tokens deleted", "auth.refresh_tokens"),
    ("session claims deleted", "auth.mfa_amr_claims"),
    ("sessions deleted", "auth.sessions"),
    ("one-time tokens deleted", "auth.one_time_tokens"),
    ("sign-in flows deleted", "auth.flow_state"),
    ("sign-in flows deleted", "auth.saml_relay_states"),
    ("sign-in flows deleted", "auth.oauth_client_states"),
    ("sign-in flows deleted", "auth.oauth_authorizations"),
    ("challenges deleted", "auth.mfa_challenges"),
    ("challenges deleted", "auth.webauthn_challenges"),
    ("vault secrets deleted", "vault.secrets"),
    ("queued requests deleted", "net.http_request_queue"),
    ("queued requests deleted", "net._http_response"),
    (
        "uploads in progress deleted",
        "storage.s3_multipart_uploads_parts",
    ),
    (
        "uploads in progress deleted",
        "storage.s3_multipart_uploads",
    ),
    ("runs of scheduled jobs deleted", "cron.job_run_details"),
];

/// Columns of `auth.users` with tokens of links that were sent by mail.
const USER_TOKENS: &[&str] = &[
    "confirmation_token",
    "recovery_token",
    "email_change_token_new",
    "email_change_token_current",
    "phone_change_token",
    "reauthentication_token",
];

/// Table of users. Their pending links are removed.
const USERS: &str = "auth.users";
/// Table of scheduled jobs, which are deactivated. They name the port of the original's server.
const JOBS: &str = "cron.job";

/// Catalogs with secrets in their old rows.
const REWRITTEN: &[&SuperuserStatement] = &[
    &superuser::REWRITE_USER_MAPPINGS,
    &superuser::REWRITE_FOREIGN_SERVERS,
    &superuser::REWRITE_DATA_WRAPPERS,
    &superuser::REWRITE_STATISTICS,
];
const REWRITTEN_SHARED: &[&SuperuserStatement] = &[
    &superuser::REWRITE_ROLES,
    &superuser::REWRITE_SETTINGS,
    &superuser::REWRITE_SUBSCRIPTIONS,
];

/// Isolates the cluster of a server in quarantine, and moves its WAL to a new segment.
pub(in crate::clusters) async fn isolate(
    server: &Server,
    isolation: &Isolation<'_>,
) -> Result<Vec<IsolationStep>> {
    let mut log = IsolationLog::default();
    let shared = server.isolator(REPAIR_DATABASE).await?;
    // The original can be from before the logins of this version.
    let repaired = shared.run(&superuser::REPAIR_ROLES).await;
    repaired.map_err(sql_error)?;
    let found = privileges::find(&shared).await?;
    privileges::revoke(&shared, server.major(), &found).await?;
    log.add("privileges revoked", found.len() as u64);
    let logins = OwnerLogins::open(server, &shared).await?;
    isolate_databases(server, &shared, &logins, isolation, &mut log).await?;
    isolate_cluster(&shared, isolation, &mut log).await?;
    if !isolation.masking.is_empty() && !isolation.schema_only {
        isolation.progress.enter(CopyPhase::Masking);
        let own = server.isolator(masking::DATABASE).await?;
        let usage = SchemaUsage::grant(&own).await?;
        let tables = masking::apply(&logins, isolation.masking).await?;
        masking::rewrite(&own, &logins, &tables).await?;
        usage.revoke(&own).await?;
        log.add("masking rules applied", isolation.masking.len() as u64);
        log.add("tables masked", tables.len() as u64);
    }
    logins.close(&shared).await?;
    let gained = privileges::find(&shared).await?;
    if let Some(finding) = gained.first() {
        let text = format!("{finding} after it was isolated");
        return Err(ClusterError::Isolation(text));
    }
    for catalog in REWRITTEN_SHARED {
        run(&shared, catalog).await?;
    }
    // The last segment then contains nothing but the end of the shutdown.
    for _ in 0..2 {
        run(&shared, &superuser::CHECKPOINT).await?;
        run(&shared, &superuser::SWITCH_SEGMENT).await?;
    }
    Ok(log.into_steps())
}

async fn isolate_databases(
    server: &Server,
    shared: &SuperuserSession,
    logins: &OwnerLogins,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    for database in &databases(shared).await? {
        let name = [SqlArgument::Identifier(&database.name)];
        if !database.open {
            run_with(shared, &superuser::OPEN_DATABASE, &name).await?;
        }
        let own = DatabaseIsolation {
            session: server.isolator(&database.name).await?,
            database: &database.name,
            logins,
        };
        let isolated = own.isolate(isolation, log).await;
        drop(own);
        if !database.open {
            run_with(shared, &superuser::CLOSE_DATABASE, &name).await?;
        }
        isolated?;
    }
    Ok(())
}

struct DatabaseRow {
    name: String,
    open: bool,
}

/// Lists the databases of the cluster. Completes interrupted removals of databases.
async fn databases(shared: &SuperuserSession) -> Result<Vec<DatabaseRow>> {
    let limit = DATABASES_MAX + 1;
    let rows = shared.query(&superuser::DATABASES, &[&limit]).await;
    let rows = rows.map_err(sql_error)?;
    if i64::try_from(rows.len()).is_ok_and(|count| count > DATABASES_MAX) {
        let text = format!("it has more than {DATABASES_MAX} databases");
        return Err(ClusterError::Isolation(text));
    }
    let mut found = Vec::new();
    for row in rows {
        let name: String = value(&row, 0)?;
        if value(&row, 2)? {
            let name = [SqlArgument::Identifier(&name)];
            run_with(shared, &superuser::DROP_DATABASE, &name).await?;
            continue;
        }
        found.push(DatabaseRow {
            name,
            open: value(&row, 1)?,
        });
    }
    Ok(found)
}

/// A table of the platform.
struct PlatformTable {
    quoted: String,
    oid: u32,
    is_superusers: bool,
}

/// The isolation of one database.
struct DatabaseIsolation<'a> {
    session: SuperuserSession,
    database: &'a str,
    logins: &'a OwnerLogins,
}

impl DatabaseIsolation<'_> {
    async fn isolate(&self, isolation: &Isolation<'_>, log: &mut IsolationLog) -> Result<()> {
        let session = &self.session;
        roll_back_prepared(session, log).await?;
        session.begin().await.map_err(sql_error)?;
        for (name, statement) in CATALOG_STEPS {
            let changed = session.execute(statement, &[]).await;
            log.add(name, changed.map_err(sql_error)?);
        }
        let cleared = session.execute(&superuser::CLEAR_FOREIGN_SERVERS, &[&SERVER_OPTIONS]);
        log.add(
            "foreign servers disconnected",
            cleared.await.map_err(sql_error)?,
        );
        replace_setting_secrets(session, isolation, log).await?;
        session.commit().await.map_err(sql_error)?;
        self.change_rows(log).await?;
        if isolation.schema_only {
            emptying::empty(session, self.logins, self.database, log).await?;
        }
        for catalog in REWRITTEN {
            run(session, catalog).await?;
        }
        Ok(())
    }

    /// Changes rows of the platform's tables, and rewrites these: deleted rows stay in the files.
    async fn change_rows(&self, log: &mut IsolationLog) -> Result<()> {
        let tables = self.platform_tables().await?;
        if tables.is_empty() {
            return Ok(());
        }
        let numbers: Vec<u32> = tables.values().map(|table| table.oid).collect();
        let hidden = self
            .session
            .execute(&superuser::HIDE_TRIGGERS, &[&numbers])
            .await;
        hidden.map_err(sql_error)?;
        let rows = self.logins.rows_session(self.database).await?;
        let changed = change_rows(&rows, &self.session, &tables, log).await?;
        for table in &changed {
            if !table.is_superusers {
                execute(&rows, &format!("vacuum full {}", table.quoted)).await?;
                continue;
            }
            let name = [SqlArgument::Quoted(&table.quoted)];
            run_with(&self.session, &superuser::REWRITE_PLATFORM_TABLE, &name).await?;
        }
        drop(rows);
        let changed: Vec<u32> = changed.iter().map(|table| table.oid).collect();
        let deleted = self
            .session
            .execute(&superuser::DELETE_STATISTICS, &[&changed])
            .await;
        deleted.map_err(sql_error)?;
        let shown = self.session.execute(&superuser::SHOW_TRIGGERS, &[]).await;
        shown.map_err(sql_error).map(drop)
    }

    /// Returns the platform's tables with rows to change, by their names.
    async fn platform_tables(&self) -> Result<BTreeMap<String, PlatformTable>> {
        let mut names: Vec<&str> = EMPTIED.iter().map(|(_, table)| *table).collect();
        names.extend([USERS, JOBS]);
        let found = self
            .session
            .query(
                &superuser::PLATFORM_TABLES,
                &[&names, &SERVICE_ROLES.as_slice()],
            )
            .await;
        let mut tables = BTreeMap::new();
        for row in found.map_err(sql_error)? {
            let table = PlatformTable {
                quoted: value(&row, 1)?,
                oid: value(&row, 2)?,
                is_superusers: value(&row, 3)?,
            };
            tables.insert(value(&row, 0)?, table);
        }
        Ok(tables)
    }
}

/// Deletes and updates rows in one transaction. Returns the changed tables.
async fn change_rows<'a>(
    rows: &Client,
    session: &SuperuserSession,
    tables: &'a BTreeMap<String, PlatformTable>,
    log: &mut IsolationLog,
) -> Result<Vec<&'a PlatformTable>> {
    let mut changed = Vec::new();
    execute(rows, "begin").await?;
    for (name, table) in EMPTIED {
        if let Some(table) = tables.get(*table) {
            let count = delete_rows(rows, session, table).await?;
            log.add(name, count);
            if count > 0 {
                changed.push(table);
            }
        }
    }
    if let Some(jobs) = tables.get(JOBS).filter(|table| table.is_superusers) {
        let name = [SqlArgument::Quoted(&jobs.quoted)];
        let changed = session.execute_with(&superuser::DEACTIVATE_JOBS, &name);
        let count = changed.await.map_err(sql_error)?;
        log.add("scheduled jobs deactivated", count);
    }
    if let Some(users) = tables.get(USERS)
        && clear_user_tokens(rows, session, users, log).await?
    {
        changed.push(users);
    }
    execute(rows, "commit").await?;
    Ok(changed)
}

/// Deletes the rows of a table: of the superuser, or of a role of the platform's services.
async fn delete_rows(
    rows: &Client,
    session: &SuperuserSession,
    table: &PlatformTable,
) -> Result<u64> {
    if !table.is_superusers {
        return execute(rows, &format!("delete from only {}", table.quoted)).await;
    }
    let name = [SqlArgument::Quoted(&table.quoted)];
    let deleted = session.execute_with(&superuser::DELETE_ROWS, &name).await;
    deleted.map_err(sql_error)
}

/// Ends prepared transactions, which hold locks of the copied moment.
async fn roll_back_prepared(session: &SuperuserSession, log: &mut IsolationLog) -> Result<()> {
    let prepared = session.query(&superuser::PREPARED_TRANSACTIONS, &[]).await;
    for row in prepared.map_err(sql_error)? {
        let gid: String = value(&row, 0)?;
        let gid = [SqlArgument::Literal(&gid)];
        run_with(session, &superuser::ROLL_BACK_PREPARED, &gid).await?;
        log.add("prepared transactions rolled back", 1);
    }
    Ok(())
}

/// Clears tokens of links that were sent by mail. Returns whether there was one.
async fn clear_user_tokens(
    rows: &Client,
    session: &SuperuserSession,
    users: &PlatformTable,
    log: &mut IsolationLog,
) -> Result<bool> {
    let there = session
        .query(&superuser::COLUMNS, &[&users.oid, &USER_TOKENS])
        .await;
    let (mut sets, mut conditions) = (String::new(), String::new());
    for row in there.map_err(sql_error)? {
        let column = escape_identifier(value(&row, 0)?);
        let separator = if sets.is_empty() { "" } else { ", " };
        let _ = write!(sets, "{separator}{column} = ''");
        let separator = if conditions.is_empty() { "" } else { " or " };
        let _ = write!(conditions, "{separator}{column} <> ''");
    }
    if sets.is_empty() {
        return Ok(false);
    }
    let sql = format!("update only {} set {sets} where {conditions}", users.quoted);
    let count = execute(rows, &sql).await?;
    log.add("users without pending links", count);
    Ok(count > 0)
}

/// Replaces known secrets of the original in the settings of roles and databases. The settings of
/// all databases are in one catalog, so the first database does the work.
async fn replace_setting_secrets(
    session: &SuperuserSession,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    let attached = session.query(&superuser::ATTACHED_SETTINGS, &[]).await;
    for row in attached.map_err(sql_error)? {
        let (database, role): (u32, u32) = (value(&row, 0)?, value(&row, 1)?);
        let settings: Vec<String> = value(&row, 2)?;
        let replaced: Vec<String> = settings
            .iter()
            .map(|setting| isolation.replace(setting))
            .collect();
        if replaced != settings {
            let changed = session
                .execute(&superuser::REPLACE_SETTINGS, &[&database, &role, &replaced])
                .await;
            log.add(
                "settings with secrets replaced",
                changed.map_err(sql_error)?,
            );
        }
    }
    Ok(())
}

impl Isolation<'_> {
    fn replace(&self, setting: &str) -> String {
        let mut text = setting.to_owned();
        for (old, new) in self.secrets {
            if !old.expose_secret().is_empty() {
                text = text.replace(old.expose_secret(), new.expose_secret());
            }
        }
        text
    }
}

/// Changes what belongs to the whole cluster: replication origins, passwords, login roles, marker.
async fn isolate_cluster(
    session: &SuperuserSession,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    let slots = session.query_one(&superuser::SLOTS, &[]).await;
    if value::<i64>(&slots.map_err(sql_error)?, 0)? != 0 {
        return Err(ClusterError::Isolation(
            "it has replication slots; drop them in the original".to_owned(),
        ));
    }
    let dropped = session.query(&superuser::DROP_ORIGINS, &[]).await;
    let dropped = dropped.map_err(sql_error)?;
    log.add("replication origins dropped", dropped.len() as u64);
    let count = session.execute(&superuser::REMOVE_PASSWORDS, &[]).await;
    log.add("passwords removed", count.map_err(sql_error)?);
    let count = session
        .execute(&superuser::CLOSE_TEMPORARY_LOGINS, &[])
        .await;
    log.add("temporary logins closed", count.map_err(sql_error)?);
    let named = session.query_opt(&superuser::PROJECT_DATABASE, &[]).await;
    if let (Some(row), Some(marker)) = (named.map_err(sql_error)?, isolation.marker) {
        let database: String = value(&row, 0)?;
        let arguments = [
            SqlArgument::Identifier(&database),
            SqlArgument::Literal(marker),
        ];
        if marker.is_empty() {
            run_with(session, &superuser::RESET_MARKER, &arguments[..1]).await?;
        } else {
            run_with(session, &superuser::SET_MARKER, &arguments).await?;
        }
    }
    Ok(())
}

/// Executes a statement of a session that is no superuser's. Returns the number of changed rows.
pub(super) async fn execute(client: &Client, sql: &str) -> Result<u64> {
    client.execute(sql, &[]).await.map_err(sql_error)
}

/// Executes statements of a superuser session.
pub(super) async fn run(
    session: &SuperuserSession,
    statement: &'static SuperuserStatement,
) -> Result<()> {
    session.run(statement).await.map_err(sql_error)
}

/// Executes statements of a superuser session, with values in their text.
pub(super) async fn run_with(
    session: &SuperuserSession,
    statement: &'static SuperuserStatement,
    arguments: &[SqlArgument<'_>],
) -> Result<()> {
    let done = session.run_with(statement, arguments).await;
    done.map_err(sql_error)
}

/// Returns a column of a row. The catalogs are those of a tenant.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(sql_error)
}

/// Returns the error of a statement: permanent if it is about the statement or an object, temporary
/// if it is about the server.
pub(super) fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    /// Classes of errors that a repetition can avoid: connection, transaction, resources, state of
    /// an object, intervention, system, configuration, internal.
    const TEMPORARY: [&str; 8] = ["08", "40", "53", "55", "57", "58", "F0", "XX"];
    let code = cause.as_db_error().map(|error| error.code().code());
    match code {
        Some(code) if !TEMPORARY.iter().any(|class| code.starts_with(class)) => {
            ClusterError::Isolation(sql_text(&cause))
        }
        _ => ClusterError::Sql {
            doing: "isolating a copied cluster",
            cause,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_inside_of_settings() {
        let secrets = [(SecretString::from("old"), SecretString::from("new"))];
        let isolation = Isolation {
            marker: Some("m"),
            secrets: &secrets,
            masking: &[],
            schema_only: false,
            progress: &CopyProgress::default(),
        };
        assert_eq!(
            isolation.replace("app.jwt=Bearer old"),
            "app.jwt=Bearer new"
        );
        assert_eq!(
            isolation.replace("search_path=public"),
            "search_path=public"
        );
    }

    #[test]
    fn log_adds_counts_of_several_databases() {
        let mut log = IsolationLog::default();
        log.add("a", 1);
        log.add("b", 0);
        log.add("a", 2);
        let steps = log.into_steps();
        let counts: Vec<_> = steps.iter().map(|step| (&*step.name, step.count)).collect();
        assert_eq!(counts, [("a", 3), ("b", 0)]);
    }
}
