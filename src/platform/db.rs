//! The control database: one pipelined connection for reads, and a small pool for transactions.
//!
//! Reads of many requests share one connection, which saves the checkout from a pool (measured: a
//! third less processor time on both sides).
//!
//! While the database is away ([`heartbeat`]) every statement fails within two seconds with
//! [`QueryError::Away`], and a request for a connection with [`Error::Unavailable`]. Connections
//! are reestablished when the database is back.

pub mod heartbeat;

use std::{collections::HashMap, error::Error as StdError, io, sync::Arc, time::Duration};

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use refinery::Target;
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::{
    Client, Config, Row, Statement, Transaction,
    error::{DbError, SqlState},
    types::ToSql,
};

use crate::platform::error::{Context, Error};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// `application_name` of the connections in `pg_stat_activity`.
const NAME: &str = "gantry";
/// Size of the pool for transactions.
const POOL_SIZE: usize = 8;
/// Longest wait for a connection of the pool while the database is available.
const POOL_WAIT: Duration = Duration::from_secs(5);
/// Longest time to establish a connection, login included.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Longest time to establish the connection for migrations at startup.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Key of the advisory lock that keeps two nodes from migrating at once. An arbitrary constant.
const MIGRATION_LOCK: i64 = 0x67_61_6e_74_72_79;

/// Handle to the control database. Cheap to clone.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    pool: Pool,
    config: Config,
    shared: RwLock<Option<Arc<SharedConnection>>>,
    /// Lock that permits one reconnection at a time.
    connecting: Mutex<()>,
    /// Whether the database responds. Always true unless [`heartbeat::run`] runs.
    available: watch::Sender<bool>,
}

struct SharedConnection {
    client: Client,
    prepared: RwLock<HashMap<&'static str, Statement>>,
}

/// Error of a statement.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The database does not respond, or the connection was lost. The statement may have been
    /// executed.
    #[error("the control database does not answer")]
    Away,
    /// The database rejected the statement.
    #[error(transparent)]
    Refused(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_lost(&error) {
            tracing::debug!(%error, "connection of a statement lost");
            return Self::Away;
        }
        Self::Refused(error)
    }
}

/// Versions of the schema: numbers of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaVersions {
    /// The newest applied migration. `None`: none was applied.
    pub applied: Option<i32>,
    /// The newest migration of this binary.
    pub known: i32,
}

/// A parameter of a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

impl Db {
    /// Returns a handle that connects on first use.
    pub fn new(mut config: Config) -> Result<Self, Error> {
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .application_name(NAME);
        let available = watch::Sender::new(true);
        let connector = Connector {
            available: available.subscribe(),
        };
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_connect(config.clone(), connector, recycling);
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(POOL_WAIT),
                create: Some(CONNECT_TIMEOUT),
                recycle: Some(CONNECT_TIMEOUT),
            })
            .build()
            .context("building the connection pool")?;
        Ok(Self(Arc::new(Inner {
            pool,
            config,
            shared: RwLock::new(None),
            connecting: Mutex::new(()),
            available,
        })))
    }

    /// Executes a statement over the shared connection. It is prepared once per connection.
    pub async fn query(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, QueryError> {
        if !self.is_available() {
            return Err(QueryError::Away);
        }
        let shared = self.shared().await?;
        let statement = shared.prepare(sql).await?;
        Ok(shared.client.query(&statement, params).await?)
    }

    /// Returns a connection for a transaction.
    ///
    /// Errors: [`Error::Unavailable`] if the database is away, or if all connections are in use for
    /// five seconds.
    pub async fn client(&self) -> Result<deadpool_postgres::Object, Error> {
        if !self.is_available() {
            return Err(Error::control_database_away());
        }
        tokio::select! {
            biased;
            client = self.0.pool.get() => Ok(client?),
            () = self.until_away() => Err(Error::control_database_away()),
        }
    }

    /// Returns a separate connection named `name`, and the task that drives it: for `listen`. It
    /// stays open while the database hangs; callers that must not wait watch [`Db::until_away`].
    pub async fn dedicated(
        &self,
        name: &str,
    ) -> Result<
        (
            Client,
            tokio_postgres::Connection<tokio_postgres::Socket, tls::TlsStream>,
        ),
        tokio_postgres::Error,
    > {
        self.0
            .config
            .clone()
            .application_name(name)
            .connect(tls::connector())
            .await
    }

    /// Returns whether the database responded to the last heartbeat.
    pub fn is_available(&self) -> bool {
        *self.0.available.borrow()
    }

    /// Waits until the database responds.
    pub async fn until_available(&self) {
        changed_to(self.0.available.subscribe(), true).await;
    }

    /// Waits until the database stops responding.
    pub async fn until_away(&self) {
        changed_to(self.0.available.subscribe(), false).await;
    }

    /// Migrates the schema to this binary's version. Safe to run on several nodes at once. Returns
    /// the applied migrations.
    pub async fn migrate(&self) -> Result<Vec<String>, Error> {
        self.migrate_to(None).await
    }

    /// As [`Self::migrate`], up to the migration of this number.
    pub async fn migrate_to(&self, version: Option<i32>) -> Result<Vec<String>, Error> {
        let (mut client, driver) = self.first_connection().await?;
        // A session lock is released when the connection ends for any reason.
        client
            .execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK])
            .await
            .context("waiting to migrate the control database")?;
        let target = version.map_or(Target::Latest, Target::Version);
        let report = embedded::migrations::runner()
            .set_target(target)
            .run_async(&mut client)
            .await
            .context("migrating the control database")?;
        drop(client);
        driver.abort();
        Ok(report
            .applied_migrations()
            .iter()
            .map(ToString::to_string)
            .collect())
    }

    /// Returns the version of the schema, and that of this binary. An error has the reason why the
    /// database cannot be reached.
    pub async fn schema_versions(&self) -> Result<SchemaVersions, Error> {
        let (client, driver) = self.first_connection().await?;
        let sql = "select max(version) from refinery_schema_history";
        let found = client.query_one(sql, &[]).await;
        drop(client);
        driver.abort();
        let applied = match found {
            Ok(row) => row.get(0),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
            Err(error) => return Err(error).context("reading the version of the schema"),
        };
        let runner = embedded::migrations::runner();
        let known = runner.get_migrations().iter();
        let known = known.map(refinery::Migration::version).max();
        Ok(SchemaVersions {
            applied,
            known: known.unwrap_or_default(),
        })
    }

    /// Opens a connection of its own, with the reason if that fails.
    async fn first_connection(
        &self,
    ) -> Result<(Client, JoinHandle<Result<(), tokio_postgres::Error>>), Error> {
        let connected = timeout(FIRST_CONNECT_TIMEOUT, self.dedicated(NAME))
            .await
            .map_err(|_| Error::control_database_away())?;
        let (client, connection) = connected.map_err(|error| unreachable(&error))?;
        Ok((client, tokio::spawn(connection)))
    }

    /// Closes every connection for a shutdown.
    pub fn close(&self) {
        self.0.pool.close();
        *self.0.shared.write() = None;
    }

    async fn shared(&self) -> Result<Arc<SharedConnection>, QueryError> {
        match self.live() {
            Some(shared) => Ok(shared),
            // The timeout includes waiting for another task's attempt.
            None => timeout(CONNECT_TIMEOUT, self.reconnect())
                .await
                .unwrap_or(Err(QueryError::Away)),
        }
    }

    /// Returns the shared connection if it is open.
    fn live(&self) -> Option<Arc<SharedConnection>> {
        self.0
            .shared
            .read()
            .clone()
            .filter(|shared| !shared.client.is_closed())
    }

    async fn reconnect(&self) -> Result<Arc<SharedConnection>, QueryError> {
        let _one_at_a_time = self.0.connecting.lock().await;
        if let Some(shared) = self.live() {
            return Ok(shared);
        }
        let (client, connection) = self.dedicated(NAME).await?;
        tokio::spawn(drive(connection, self.0.available.subscribe()));
        let shared = Arc::new(SharedConnection {
            client,
            prepared: RwLock::default(),
        });
        *self.0.shared.write() = Some(shared.clone());
        Ok(shared)
    }
}

/// Establishes the connections of the pool.
struct Connector {
    available: watch::Receiver<bool>,
}

impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(tls::connector()).await?;
            Ok((
                client,
                tokio::spawn(drive(connection, self.available.clone())),
            ))
        })
    }
}

/// Drives a connection until it ends or the database is away. In the latter case it is closed, and
/// statements on it fail.
async fn drive(
    connection: impl Future<Output = Result<(), tokio_postgres::Error>>,
    available: watch::Receiver<bool>,
) {
    let database = available.clone();
    tokio::select! {
        ended = connection => {
            // Without a sender, this process has closed the database itself.
            let open = database.has_changed().is_ok();
            if let Err(error) = ended && open {
                tracing::warn!(%error, "connection to the control database lost");
            }
        }
        () = changed_to(available, false) => {}
    }
}

/// Waits until the value is `wanted`. Never returns if the sender is dropped.
async fn changed_to(mut value: watch::Receiver<bool>, wanted: bool) {
    if value.wait_for(|now| *now == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl SharedConnection {
    async fn prepare(&self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.read().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.write().insert(sql, statement.clone());
        Ok(statement)
    }
}

/// Returns the error for operators: at the start of a server, or from a command.
fn unreachable(error: &tokio_postgres::Error) -> Error {
    Error::Unavailable {
        what: format!("the control database cannot be reached: {}", text(error)).into(),
        retry: CONNECT_TIMEOUT,
    }
}

/// Returns the text of an error together with its cause, which the driver leaves out.
fn text(error: &tokio_postgres::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Returns whether the connection was lost or the server accepts none at present, as opposed to a
/// rejected statement.
pub fn is_lost(error: &tokio_postgres::Error) -> bool {
    let passing = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
    ];
    match error.code() {
        Some(state) => passing.contains(state) || state.code().starts_with("08"),
        None => error.is_closed() || error.source().is_some_and(<dyn StdError>::is::<io::Error>),
    }
}

/// An error that may contain an error of the server.
pub trait HasServerError {
    /// Returns the error of the server.
    fn server_error(&self) -> Option<&DbError>;
}

impl HasServerError for tokio_postgres::Error {
    fn server_error(&self) -> Option<&DbError> {
        self.as_db_error()
    }
}

impl HasServerError for QueryError {
    fn server_error(&self) -> Option<&DbError> {
        match self {
            Self::Refused(error) => error.as_db_error(),
            Self::Away => None,
        }
    }
}

/// Returns the count that `sql` selects, of the rows of one parent. `doing` completes "failed while
/// …".
pub async fn count(
    transaction: &Transaction<'_>,
    sql: &str,
    parent: i64,
    doing: &'static str,
) -> Result<i64, Error> {
    let row = transaction.query_one(sql, &[&parent]).await;
    row.context(doing).map(|row| row.get(0))
}

/// Returns the constraint that a statement violated.
pub fn violated(error: &impl HasServerError) -> Option<&str> {
    error.server_error().and_then(DbError::constraint)
}

/// TLS to a control database on another machine: with the system's root certificates, or off with
/// `sslmode=disable`.
mod tls {
    use std::sync::LazyLock;

    use gantry_base::net::tls_client;
    use tokio_postgres_rustls::MakeRustlsConnect;

    pub(super) type TlsStream =
        <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream;

    static CONNECTOR: LazyLock<MakeRustlsConnect> = LazyLock::new(|| {
        let config = tls_client::config(tls_client::system_roots());
        MakeRustlsConnect::new(config.with_no_client_auth())
    });

    pub(super) fn connector() -> MakeRustlsConnect {
        CONNECTOR.clone()
    }
}
