//! Removes from a copied cluster what acts on the outside or belongs to its original only.
//!
//! Runs while the copy is in quarantine: no libraries of extensions, no workers, no network, and
//! only this session can log in. Every step is idempotent and reports a count, never a value.
//!
//! Tables of a schema are changed as their owner, so that a trigger of the tenant runs with no
//! rights that the tenant lacks.

use std::fmt::Write as _;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::{Client, Row, types::FromSql};

use super::{
    super::{ClusterError, Result, server::Server, template},
    emptying, masking,
    progress::{CopyPhase, CopyProgress},
};

/// Maximum number of databases of a copied cluster.
const DATABASES_MAX: usize = 64;
/// Settings of the sessions, which override those that the tenant attached to roles and databases.
const OPTIONS: &str = "-c search_path=pg_catalog -c default_transaction_read_only=off \
    -c statement_timeout=10min -c lock_timeout=10s -c session_replication_role=replica \
    -c row_security=off -c session_preload_libraries= -c local_preload_libraries= \
    -c log_statement=none -c log_min_duration_statement=-1 -c log_min_error_statement=panic";

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
pub(in crate::data_plane::clusters) struct Isolation<'a> {
    /// Identifier that SQL in the copy reads with `current_setting('gantry.branch')`. Empty for a
    /// cluster that is no branch. `None`: that of the original stays.
    pub(in crate::data_plane::clusters) marker: Option<&'a str>,
    /// Secrets of the original, each with its replacement.
    pub(in crate::data_plane::clusters) secrets: &'a [(SecretString, SecretString)],
    /// SQL that masks data, in order.
    pub(in crate::data_plane::clusters) masking: &'a [String],
    /// Whether tables are emptied.
    pub(in crate::data_plane::clusters) schema_only: bool,
    /// Phase of the copy.
    pub(in crate::data_plane::clusters) progress: &'a CopyProgress,
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

/// Changes of the catalogs of one database. Each returns the number of changed rows.
const CATALOG_STEPS: &[(&str, &str)] = &[
    (
        "subscriptions disabled",
        "update pg_catalog.pg_subscription set subenabled = false, subslotname = null, subconninfo = 'host=/isolated'
         where subdbid = (select oid from pg_catalog.pg_database
                          where datname = pg_catalog.current_database())
         and (subenabled or subslotname is not null or subconninfo <> 'host=/isolated')",
    ),
    (
        "user mappings cleared",
        "update pg_catalog.pg_user_mapping set umoptions = nullif(array(select o from unnest(umoptions) o where o like 'user=%'), '{}')
         where exists (select from unnest(umoptions) o where o not like 'user=%')",
    ),
    (
        "foreign data wrappers cleared",
        "update pg_catalog.pg_foreign_data_wrapper set fdwoptions = null where fdwoptions is not null",
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

/// Catalogs with secrets in their old rows.
const REWRITTEN: &[&str] = &[
    "pg_catalog.pg_user_mapping",
    "pg_catalog.pg_foreign_server",
    "pg_catalog.pg_foreign_data_wrapper",
    "pg_catalog.pg_statistic",
];
const REWRITTEN_SHARED: &[&str] = &[
    "pg_catalog.pg_authid",
    "pg_catalog.pg_db_role_setting",
    "pg_catalog.pg_subscription",
];

/// Isolates the cluster of a server in quarantine, and moves its WAL to a new segment.
pub(in crate::data_plane::clusters) async fn isolate(
    server: &Server,
    isolation: &Isolation<'_>,
) -> Result<Vec<IsolationStep>> {
    let mut log = IsolationLog::default();
    let shared = session(server, "template1").await?;
    let databases = databases(&shared).await?;
    for database in &databases {
        if !database.open {
            let name = escape_identifier(&database.name);
            run(
                &shared,
                &format!("alter database {name} allow_connections true"),
            )
            .await?;
        }
        let own = session(server, &database.name).await?;
        let isolated = isolate_database(&own, isolation, &mut log).await;
        drop(own);
        if !database.open {
            let name = escape_identifier(&database.name);
            run(
                &shared,
                &format!("alter database {name} allow_connections false"),
            )
            .await?;
        }
        isolated?;
    }
    isolate_cluster(&shared, isolation, &mut log).await?;
    if !isolation.masking.is_empty() && !isolation.schema_only {
        isolation.progress.enter(CopyPhase::Masking);
        let tables = masking::apply(server, isolation.masking).await?;
        let own = session(server, masking::DATABASE).await?;
        masking::rewrite(&own, &tables).await?;
        log.add("masking rules applied", isolation.masking.len() as u64);
        log.add("tables masked", tables.len() as u64);
    }
    for catalog in REWRITTEN_SHARED {
        run(&shared, &format!("vacuum full {catalog}")).await?;
    }
    // The last segment then contains nothing but the end of the shutdown.
    run(&shared, "checkpoint").await?;
    run(&shared, "select pg_catalog.pg_switch_wal()").await?;
    run(&shared, "checkpoint").await?;
    run(&shared, "select pg_catalog.pg_switch_wal()").await?;
    Ok(log.into_steps())
}

struct DatabaseRow {
    name: String,
    open: bool,
}

/// Lists the databases of the cluster. Completes interrupted removals of databases.
async fn databases(shared: &Client) -> Result<Vec<DatabaseRow>> {
    let sql = "select datname::text, datallowconn, datconnlimit = -2 from pg_catalog.pg_database order by oid limit 65";
    let rows = shared.query(sql, &[]).await.map_err(sql_error)?;
    if rows.len() > DATABASES_MAX {
        let text = format!("it has more than {DATABASES_MAX} databases");
        return Err(ClusterError::Isolation(text));
    }
    let mut found = Vec::new();
    for row in rows {
        let name: String = value(&row, 0)?;
        if value(&row, 2)? {
            let statement = format!("drop database {}", escape_identifier(&name));
            run(shared, &statement).await?;
            continue;
        }
        found.push(DatabaseRow {
            name,
            open: value(&row, 1)?,
        });
    }
    Ok(found)
}

async fn session(server: &Server, database: &str) -> Result<Client> {
    let mut config = server.config(template::SUPERUSER, database);
    let mut options = OPTIONS.to_owned();
    if server.major() >= 17 {
        options.push_str(" -c event_triggers=off");
    }
    config.options(options);
    server.connect_with(config).await
}

async fn isolate_database(
    client: &Client,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    roll_back_prepared(client, log).await?;
    run(client, "begin").await?;
    for (name, sql) in CATALOG_STEPS {
        log.add(name, client.execute(*sql, &[]).await.map_err(sql_error)?);
    }
    clear_foreign_servers(client, log).await?;
    pause_cron(client, log).await?;
    let mut emptied = Vec::new();
    for (name, table) in EMPTIED {
        if let Some(owner) = owner(client, table).await? {
            let count = run_as(client, &owner, &format!("delete from {table}")).await?;
            log.add(name, count);
            if count > 0 {
                emptied.push(*table);
            }
        }
    }
    if clear_user_tokens(client, log).await? {
        emptied.push("auth.users");
    }
    for table in &emptied {
        let sql = format!(
            "delete from pg_catalog.pg_statistic where starelid = {}::regclass",
            escape_literal(table)
        );
        run(client, &sql).await?;
    }
    replace_setting_secrets(client, isolation, log).await?;
    run(client, "commit").await?;
    if isolation.schema_only {
        emptying::empty(client, log).await?;
    }
    // Rewritten, because deleted rows stay in the files.
    for table in REWRITTEN.iter().chain(&emptied) {
        run(client, &format!("vacuum full {table}")).await?;
    }
    Ok(())
}

/// Ends prepared transactions, which hold locks of the copied moment.
async fn roll_back_prepared(client: &Client, log: &mut IsolationLog) -> Result<()> {
    let sql = "select gid from pg_catalog.pg_prepared_xacts where database = pg_catalog.current_database()";
    for row in client.query(sql, &[]).await.map_err(sql_error)? {
        let gid: String = value(&row, 0)?;
        run(
            client,
            &format!("rollback prepared {}", escape_literal(&gid)),
        )
        .await?;
        log.add("prepared transactions rolled back", 1);
    }
    Ok(())
}

/// Removes places and secrets from foreign servers. Those of PostgreSQL get a place that does not
/// exist, because without one they would use a default.
async fn clear_foreign_servers(client: &Client, log: &mut IsolationLog) -> Result<()> {
    let sql = "
        update pg_catalog.pg_foreign_server s set srvoptions = n.options
        from (
            select s.oid, nullif(array(
                select o from unnest(s.srvoptions) o where split_part(o, '=', 1) = any ($1)
            ) || case when w.fdwname in ('postgres_fdw', 'dblink_fdw')
                        or h.proname = 'postgres_fdw_handler'
                      then array['host=/isolated'] else '{}' end, '{}') as options
            from pg_catalog.pg_foreign_server s
            join pg_catalog.pg_foreign_data_wrapper w on w.oid = s.srvfdw
            left join pg_catalog.pg_proc h on h.oid = w.fdwhandler
        ) n
        where n.oid = s.oid and s.srvoptions is distinct from n.options";
    let count = client
        .execute(sql, &[&SERVER_OPTIONS])
        .await
        .map_err(sql_error)?;
    log.add("foreign servers disconnected", count);
    Ok(())
}

/// Deactivates the jobs of `pg_cron`. They name the port of the original's server, too.
async fn pause_cron(client: &Client, log: &mut IsolationLog) -> Result<()> {
    let Some(owner) = owner(client, "cron.job").await? else {
        return Ok(());
    };
    let sql = "update cron.job set active = false, nodename = '', nodeport = 5432 where active or nodename <> ''";
    let count = run_as(client, &owner, sql).await?;
    log.add("scheduled jobs deactivated", count);
    Ok(())
}

/// Clears tokens of links that were sent by mail. Returns whether there was one.
async fn clear_user_tokens(client: &Client, log: &mut IsolationLog) -> Result<bool> {
    let Some(owner) = owner(client, "auth.users").await? else {
        return Ok(false);
    };
    let sql = "select attname::text from pg_catalog.pg_attribute
               where attrelid = 'auth.users'::regclass and attname = any ($1) and not attisdropped";
    let rows = client
        .query(sql, &[&USER_TOKENS])
        .await
        .map_err(sql_error)?;
    let (mut sets, mut conditions) = (String::new(), String::new());
    for row in rows {
        let column = escape_identifier(value(&row, 0)?);
        let separator = if sets.is_empty() { "" } else { ", " };
        let _ = write!(sets, "{separator}{column} = ''");
        let separator = if conditions.is_empty() { "" } else { " or " };
        let _ = write!(conditions, "{separator}{column} <> ''");
    }
    if sets.is_empty() {
        return Ok(false);
    }
    let sql = format!("update auth.users set {sets} where {conditions}");
    let count = run_as(client, &owner, &sql).await?;
    log.add("users without pending links", count);
    Ok(count > 0)
}

/// Replaces known secrets of the original in the settings of roles and databases. The settings of
/// all databases are in one catalog, so the first database does the work.
async fn replace_setting_secrets(
    client: &Client,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    let sql = "select setdatabase, setrole, setconfig from pg_catalog.pg_db_role_setting";
    for row in client.query(sql, &[]).await.map_err(sql_error)? {
        let (database, role): (u32, u32) = (value(&row, 0)?, value(&row, 1)?);
        let settings: Vec<String> = value(&row, 2)?;
        let replaced: Vec<String> = settings
            .iter()
            .map(|setting| isolation.replace(setting))
            .collect();
        if replaced != settings {
            let sql = "update pg_catalog.pg_db_role_setting set setconfig = $3 where (setdatabase, setrole) = ($1, $2)";
            let changed = client.execute(sql, &[&database, &role, &replaced]).await;
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
    client: &Client,
    isolation: &Isolation<'_>,
    log: &mut IsolationLog,
) -> Result<()> {
    let slots = client
        .query_one("select count(*) from pg_catalog.pg_replication_slots", &[])
        .await
        .map_err(sql_error)?;
    if value::<i64>(&slots, 0)? != 0 {
        return Err(ClusterError::Isolation(
            "it has replication slots".to_owned(),
        ));
    }
    let sql = "select pg_catalog.pg_replication_origin_drop(o.roname) from pg_catalog.pg_replication_origin o
               where not exists (select from pg_catalog.pg_subscription s where 'pg_' || s.oid = o.roname)";
    let dropped = client.query(sql, &[]).await.map_err(sql_error)?;
    log.add("replication origins dropped", dropped.len() as u64);
    let sql = "update pg_catalog.pg_authid set rolpassword = null where rolpassword is not null";
    let count = client.execute(sql, &[]).await.map_err(sql_error)?;
    log.add("passwords removed", count);
    let sql = "update pg_catalog.pg_authid set rolcanlogin = false where rolname like 'cli\\_login\\_%' and rolcanlogin";
    let count = client.execute(sql, &[]).await.map_err(sql_error)?;
    log.add("temporary logins closed", count);
    let sql = "select datname::text from pg_catalog.pg_database where oid = 5 or datname = 'postgres' order by oid limit 1";
    let named = client.query_opt(sql, &[]).await.map_err(sql_error)?;
    if let (Some(row), Some(marker)) = (named, isolation.marker) {
        let database = escape_identifier(value(&row, 0)?);
        let change = if marker.is_empty() {
            "reset \"gantry.branch\"".to_owned()
        } else {
            format!("set \"gantry.branch\" = {}", escape_literal(marker))
        };
        run(client, &format!("alter database {database} {change}")).await?;
    }
    Ok(())
}

/// Returns the owner of a table, or `None` if there is no table of this name.
async fn owner(client: &Client, table: &str) -> Result<Option<String>> {
    let sql = "select r.rolname::text from pg_catalog.pg_class c join pg_catalog.pg_roles r on r.oid = c.relowner
               where c.oid = pg_catalog.to_regclass($1) and c.relkind in ('r', 'p')";
    let row = client.query_opt(sql, &[&table]).await.map_err(sql_error)?;
    row.map(|row| value(&row, 0)).transpose()
}

/// Runs a change as the owner of its table, within the open transaction.
async fn run_as(client: &Client, owner: &str, sql: &str) -> Result<u64> {
    let role = format!("set local role {}", escape_identifier(owner));
    run(client, &role).await?;
    let count = client.execute(sql, &[]).await.map_err(sql_error)?;
    run(client, "reset role").await?;
    Ok(count)
}

/// Runs statements.
pub(super) async fn run(client: &Client, sql: &str) -> Result<()> {
    client.batch_execute(sql).await.map_err(sql_error)
}

/// Returns a column of a row. The catalogs are those of a tenant.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(sql_error)
}

/// Returns the error of a statement.
pub(super) fn sql_error(cause: tokio_postgres::Error) -> ClusterError {
    ClusterError::Sql {
        doing: "isolating a copied cluster",
        cause,
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
