//! Sessions of the owners of tables in a server in quarantine.
//!
//! A statement that changes or rewrites rows of a tenant's table can run code of the tenant. It
//! runs in a session that is logged in as the owner of the table, from which no other role can be
//! reached. For this time, all owners can log in, by their names in the map of peer
//! authentication.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::server::process::Server;
use crate::{
    background::blocking,
    clusters::{
        platform_roles,
        superuser::{self, SqlError, SuperuserSession},
        template,
    },
    error::{ClusterError, Result},
};

/// Maximum number of roles that own something.
const OWNERS_MAX: i64 = 10_000;
/// Time limit until the server uses changed rules of authentication.
const RELOAD_PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks for that.
const POLL: Duration = Duration::from_millis(2);
/// Settings of the sessions. They override those that are attached to the role and the database.
const OPTIONS: &str = "-c role=none -c search_path=pg_catalog \
    -c default_transaction_read_only=off -c statement_timeout=10min -c lock_timeout=10s \
    -c local_preload_libraries= -c client_min_messages=error";

/// The logins of all owners in a server. [`Self::close`] takes them back. A cluster that was not
/// closed must not be used.
#[derive(Debug)]
pub(super) struct OwnerLogins {
    server: Server,
    owners: Vec<String>,
    roles: Vec<(u32, bool, i32)>,
    databases: Vec<(u32, Option<String>, i32)>,
}

impl OwnerLogins {
    /// Lets all owners of objects log in. `session` is in any database.
    pub(super) async fn open(server: &Server, session: &SuperuserSession) -> Result<Self> {
        let owners = session
            .query(&superuser::OWNERS, &[&(OWNERS_MAX + 1)])
            .await;
        let owners = owners.map_err(sql_error)?;
        if i64::try_from(owners.len()).is_ok_and(|count| count > OWNERS_MAX) {
            let text = format!("more than {OWNERS_MAX} roles own objects");
            return Err(ClusterError::Isolation(text));
        }
        let numbers: Vec<u32> = columns(&owners, 0)?;
        let names: Vec<String> = columns(&owners, 1)?;
        if let Some(name) = names.iter().find(|name| name.contains(char::is_control)) {
            let text = format!("the name of role {name:?} has a control character; rename it");
            return Err(ClusterError::Isolation(text));
        }
        let mut logins = Self {
            server: server.clone(),
            owners: names,
            roles: Vec::new(),
            databases: Vec::new(),
        };
        let limited = session
            .query(&superuser::LOGIN_ATTRIBUTES, &[&numbers])
            .await;
        for row in limited.map_err(sql_error)? {
            let role: u32 = value(&row, 0)?;
            logins.roles.push((role, value(&row, 1)?, value(&row, 2)?));
            set_login(session, role, true, -1).await?;
        }
        let limited = session.query(&superuser::DATABASE_LIMITS, &[]).await;
        for row in limited.map_err(sql_error)? {
            let database: u32 = value(&row, 0)?;
            let before = (database, value(&row, 1)?, value(&row, 2)?);
            logins.databases.push(before);
            set_limits(session, database, None, -1).await?;
        }
        let names: Vec<&str> = logins.owners.iter().map(String::as_str).collect();
        let rules = template::quarantine_rules(&names)?;
        logins.use_rules(session, rules).await?;
        Ok(logins)
    }

    /// Roles that own something.
    pub(super) fn owners(&self) -> &[String] {
        &self.owners
    }

    /// Opens a session that is logged in as the owner of a table.
    pub(super) async fn session(&self, owner: &str, database: &str) -> Result<Client> {
        let mut config = tokio_postgres::Config::new();
        config
            .user(owner)
            .dbname(database)
            .application_name("gantry")
            .options(OPTIONS);
        self.server.connect_with(config).await
    }

    /// Opens a session that changes rows of the platform's tables.
    pub(super) async fn rows_session(&self, database: &str) -> Result<Client> {
        self.session(platform_roles::ROWS_LOGIN, database).await
    }

    /// Restores the attributes of roles and databases, and the rules of authentication.
    pub(super) async fn close(self, session: &SuperuserSession) -> Result<()> {
        for (role, can_log_in, limit) in &self.roles {
            set_login(session, *role, *can_log_in, *limit).await?;
        }
        for (database, privileges, limit) in &self.databases {
            set_limits(session, *database, privileges.as_deref(), *limit).await?;
        }
        self.use_rules(session, template::access_rules()?).await
    }

    /// Writes rules of authentication, and waits until the server uses them: it reads them before
    /// its sessions notice the change.
    async fn use_rules(
        &self,
        session: &SuperuserSession,
        rules: [(&'static str, String); 2],
    ) -> Result<()> {
        let (data, owner) = (self.server.data().to_owned(), self.server.run_as());
        let changed = blocking(move || template::write_rules(&data, owner, &rules)).await?;
        if !changed {
            return Ok(());
        }
        let before = loaded_at(session).await?;
        session.run(&superuser::RELOAD).await.map_err(sql_error)?;
        let until = Instant::now() + RELOAD_PATIENCE;
        while loaded_at(session).await? == before {
            if Instant::now() > until {
                let text = "the server did not read its configuration in time";
                return Err(ClusterError::Isolation(text.to_owned()));
            }
            sleep(POLL).await;
        }
        Ok(())
    }
}

/// Privileges on schemas that owners of tables in them lack. [`Self::revoke`] takes them back.
#[derive(Debug)]
pub(super) struct SchemaUsage(Vec<(u32, u32)>);

impl SchemaUsage {
    /// Lets every owner of a table use the schema of the table, in one database.
    pub(super) async fn grant(session: &SuperuserSession) -> Result<Self> {
        let rows = session.query(&superuser::SCHEMAS_WITHOUT_USAGE, &[]).await;
        let mut granted = Vec::new();
        for row in rows.map_err(sql_error)? {
            granted.push((value(&row, 0)?, value(&row, 1)?));
        }
        let granted = Self(granted);
        granted.run(session, &superuser::GRANT_USAGE).await?;
        Ok(granted)
    }

    /// Takes the privileges back.
    pub(super) async fn revoke(self, session: &SuperuserSession) -> Result<()> {
        self.run(session, &superuser::REVOKE_USAGE).await
    }

    async fn run(
        &self,
        session: &SuperuserSession,
        statement: &'static superuser::SuperuserStatement,
    ) -> Result<()> {
        for (schema, role) in &self.0 {
            let done = session.execute(statement, &[schema, role]).await;
            done.map_err(sql_error)?;
        }
        Ok(())
    }
}

async fn set_login(
    session: &SuperuserSession,
    role: u32,
    can_log_in: bool,
    limit: i32,
) -> Result<()> {
    let set = session
        .execute(
            &superuser::SET_LOGIN_ATTRIBUTES,
            &[&role, &can_log_in, &limit],
        )
        .await;
    set.map_err(sql_error).map(drop)
}

async fn set_limits(
    session: &SuperuserSession,
    database: u32,
    privileges: Option<&str>,
    limit: i32,
) -> Result<()> {
    let set = session
        .execute(
            &superuser::SET_DATABASE_LIMITS,
            &[&database, &privileges, &limit],
        )
        .await;
    set.map_err(sql_error).map(drop)
}

async fn loaded_at(session: &SuperuserSession) -> Result<String> {
    let row = session.query_one(&superuser::CONFIGURATION_TIME, &[]).await;
    value(&row.map_err(sql_error)?, 0)
}

/// Returns a column of a row. The catalogs are those of a tenant.
fn value<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    column: usize,
) -> Result<T> {
    row.try_get(column).map_err(sql_error)
}

fn columns<T>(rows: &[tokio_postgres::Row], column: usize) -> Result<Vec<T>>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    rows.iter().map(|row| value(row, column)).collect()
}

fn sql_error(cause: SqlError) -> ClusterError {
    ClusterError::Sql {
        doing: "opening sessions in quarantine",
        cause,
    }
}
