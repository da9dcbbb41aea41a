//! The control database: one pipelined connection for reads, a small pool for transactions.
//!
//! Reads of many requests share one connection: PostgreSQL answers them in order, and neither side pays for a
//! checkout (measured: a third less processor time than a pool on both sides).
//!
//! While the database is away ([`heartbeat`]) every statement fails within two seconds with [`QueryError::Away`], or with
//! [`Error::Unavailable`] where a connection is asked for. Connections are made again when it is back.

pub mod heartbeat;

use std::{collections::HashMap, error::Error as StdError, io, sync::Arc, time::Duration};

use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_postgres::{
    Client, Config, Row, Statement,
    error::{DbError, SqlState},
    types::ToSql,
};

use crate::base::error::{Context, Error};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// By this name our connections are known in `pg_stat_activity`.
const NAME: &str = "gantry";
/// Connections for transactions.
const POOL_SIZE: usize = 8;
/// How long a transaction waits for a connection while the database answers: others have them all.
const POOL_WAIT: Duration = Duration::from_secs(5);
/// How long a connection may take to be made, login included.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// The bound at the start of the server, when no request waits for an answer.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Key of the advisory lock that keeps two nodes from migrating at once. Any constant will do.
const MIGRATION_LOCK: i64 = 0x67_61_6e_74_72_79;

/// Handle to the control database. Cheap to clone.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    pool: Pool,
    config: Config,
    shared: RwLock<Option<Arc<Shared>>>,
    /// Held while the shared connection is made again, so that only one is.
    connecting: Mutex<()>,
    /// Whether the database answers. True where nothing runs [`heartbeat::run`].
    available: watch::Sender<bool>,
}

struct Shared {
    client: Client,
    prepared: RwLock<HashMap<&'static str, Statement>>,
}

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The database does not answer, or the connection to it was lost. Whether the statement was carried out is not known.
    #[error("the control database does not answer")]
    Away,
    /// The database refused it.
    #[error(transparent)]
    Refused(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for QueryError {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_lost(&error) {
            tracing::debug!(%error, "a statement was lost with its connection");
            return Self::Away;
        }
        Self::Refused(error)
    }
}

/// A value bound to a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

impl Db {
    /// A handle; connects when first used.
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

    /// Reads rows over the shared connection. The statement is prepared once a connection.
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

    /// A connection for a transaction.
    ///
    /// Errors: [`Error::Unavailable`] if the database is away, or if all connections are in use for five seconds.
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

    /// A connection of the caller's own under `name`, with the task that drives it still to be run: for `listen`. It stays open
    /// while the database hangs; callers that must not wait watch [`Db::until_away`].
    pub async fn dedicated(
        &self,
        name: &str,
    ) -> Result<
        (
            Client,
            tokio_postgres::Connection<tokio_postgres::Socket, tls::Stream>,
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

    /// Whether the database answered when it was last asked.
    pub fn is_available(&self) -> bool {
        *self.0.available.borrow()
    }

    /// Returns as soon as the database answers.
    pub async fn until_available(&self) {
        changed_to(self.0.available.subscribe(), true).await;
    }

    /// Returns as soon as the database does not answer.
    pub async fn until_away(&self) {
        changed_to(self.0.available.subscribe(), false).await;
    }

    /// Brings the schema up to this binary's. Safe to run on several nodes at once.
    pub async fn migrate(&self) -> Result<Vec<String>, Error> {
        let connected = timeout(FIRST_CONNECT_TIMEOUT, self.dedicated(NAME))
            .await
            .map_err(|_| Error::control_database_away())?;
        let (mut client, connection) = connected.map_err(|error| unreachable(&error))?;
        let driver = tokio::spawn(connection);
        // A session lock: it goes with this connection, whatever happens to us.
        client
            .execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK])
            .await
            .context("waiting to migrate the control database")?;
        let report = embedded::migrations::runner()
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

    /// Closes every connection: what follows is not an accident.
    pub fn close(&self) {
        self.0.pool.close();
        *self.0.shared.write() = None;
    }

    async fn shared(&self) -> Result<Arc<Shared>, QueryError> {
        match self.live() {
            Some(shared) => Ok(shared),
            // Waiting for another task's attempt counts as well.
            None => timeout(CONNECT_TIMEOUT, self.reconnect())
                .await
                .unwrap_or(Err(QueryError::Away)),
        }
    }

    /// The shared connection, if it has not ended.
    fn live(&self) -> Option<Arc<Shared>> {
        self.0
            .shared
            .read()
            .clone()
            .filter(|shared| !shared.client.is_closed())
    }

    async fn reconnect(&self) -> Result<Arc<Shared>, QueryError> {
        let _one_at_a_time = self.0.connecting.lock().await;
        if let Some(shared) = self.live() {
            return Ok(shared);
        }
        let (client, connection) = self.dedicated(NAME).await?;
        tokio::spawn(drive(connection, self.0.available.subscribe()));
        let shared = Arc::new(Shared {
            client,
            prepared: RwLock::default(),
        });
        *self.0.shared.write() = Some(shared.clone());
        Ok(shared)
    }
}

/// Makes the pool's connections.
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

/// Carries a connection's bytes until it ends, or until the database is away: then it is closed, and statements on it fail.
async fn drive(
    connection: impl Future<Output = Result<(), tokio_postgres::Error>>,
    available: watch::Receiver<bool>,
) {
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::warn!(%error, "a connection to the control database ended");
            }
        }
        () = changed_to(available, false) => {}
    }
}

/// Returns once the value is this one; never, if it can no longer change.
async fn changed_to(mut value: watch::Receiver<bool>, wanted: bool) {
    if value.wait_for(|now| *now == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Shared {
    async fn prepare(&self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.read().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.write().insert(sql, statement.clone());
        Ok(statement)
    }
}

/// The reason for an operator, who starts a server or runs a command.
fn unreachable(error: &tokio_postgres::Error) -> Error {
    Error::Unavailable {
        what: format!("the control database cannot be reached: {}", text(error)).into(),
        retry: CONNECT_TIMEOUT,
    }
}

/// The driver's word for an error, and the cause that it leaves out.
fn text(error: &tokio_postgres::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Whether the connection was lost, or the server takes none for now, rather than a statement refused.
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

/// An error that may carry what the server said.
pub trait Answered {
    /// The server's own error.
    fn answer(&self) -> Option<&DbError>;
}

impl Answered for tokio_postgres::Error {
    fn answer(&self) -> Option<&DbError> {
        self.as_db_error()
    }
}

impl Answered for QueryError {
    fn answer(&self) -> Option<&DbError> {
        match self {
            Self::Refused(error) => error.as_db_error(),
            Self::Away => None,
        }
    }
}

/// The constraint a statement ran into, if that is why it failed.
pub fn violated(error: &impl Answered) -> Option<&str> {
    error.answer().and_then(DbError::constraint)
}

/// TLS towards a control database on another machine: the system's roots, or none where `sslmode` says so.
mod tls {
    use std::sync::LazyLock;

    use rustls::{ClientConfig, RootCertStore};
    use tokio_postgres_rustls::MakeRustlsConnect;

    pub(super) type Stream =
        <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream;

    /// Read once: reading the system's roots takes long, and connections are made again and again while a server is away.
    static CONNECTOR: LazyLock<MakeRustlsConnect> = LazyLock::new(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        MakeRustlsConnect::new(
            ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth(),
        )
    });

    pub(super) fn connector() -> MakeRustlsConnect {
        CONNECTOR.clone()
    }
}
