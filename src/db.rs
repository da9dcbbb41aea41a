//! The control database: one pipelined connection for reads, a small pool for transactions.
//!
//! Reads of many requests share one connection: PostgreSQL answers them in order, and neither side pays for a
//! checkout (measured: a third less processor time than a pool on both sides).

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio_postgres::{Client, Config, Row, Statement, types::ToSql};

use crate::error::{Context, Error};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// By this name our connections are known in `pg_stat_activity`.
const NAME: &str = "gantry";
/// Connections for transactions.
const POOL_SIZE: usize = 8;
/// How long a transaction waits for a connection.
const POOL_WAIT: Duration = Duration::from_secs(5);
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
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
}

struct Shared {
    client: Client,
    prepared: RwLock<HashMap<&'static str, Statement>>,
}

/// A value bound to a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

impl Db {
    /// A handle; connects when first used.
    pub fn new(mut config: Config) -> Result<Self, Error> {
        config.connect_timeout(CONNECT_TIMEOUT).application_name(NAME);
        let manager = Manager::from_config(config.clone(), tls::connector(), ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts { wait: Some(POOL_WAIT), create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) })
            .build()
            .context("building the connection pool")?;
        Ok(Self(Arc::new(Inner { pool, config, shared: RwLock::new(None), connecting: Mutex::new(()) })))
    }

    /// Reads rows over the shared connection. The statement is prepared once a connection.
    pub async fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let shared = self.shared().await?;
        let statement = shared.prepare(sql).await?;
        shared.client.query(&statement, params).await
    }

    /// A connection for a transaction.
    pub async fn client(&self) -> Result<deadpool_postgres::Object, Error> {
        Ok(self.0.pool.get().await?)
    }

    /// A connection of the caller's own under `name`, with the task that drives it still to be run: for `listen`.
    pub async fn dedicated(
        &self,
        name: &str,
    ) -> Result<(Client, tokio_postgres::Connection<tokio_postgres::Socket, tls::Stream>), tokio_postgres::Error> {
        self.0.config.clone().application_name(name).connect(tls::connector()).await
    }

    /// Brings the schema up to this binary's. Safe to run on several nodes at once.
    pub async fn migrate(&self) -> Result<Vec<String>, Error> {
        let (mut client, connection) = self.dedicated(NAME).await.context("connecting to the control database")?;
        let driver = tokio::spawn(connection);
        // A session lock: it goes with this connection, whatever happens to us.
        client.execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await.context("waiting to migrate the control database")?;
        let report = embedded::migrations::runner().run_async(&mut client).await.context("migrating the control database")?;
        drop(client);
        driver.abort();
        Ok(report.applied_migrations().iter().map(ToString::to_string).collect())
    }

    /// Closes every connection: what follows is not an accident.
    pub fn close(&self) {
        self.0.pool.close();
        *self.0.shared.write() = None;
    }

    async fn shared(&self) -> Result<Arc<Shared>, tokio_postgres::Error> {
        let live = || self.0.shared.read().clone().filter(|shared| !shared.client.is_closed());
        if let Some(shared) = live() {
            return Ok(shared);
        }
        let _one_at_a_time = self.0.connecting.lock().await;
        if let Some(shared) = live() {
            return Ok(shared);
        }
        let (client, connection) = self.dedicated(NAME).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "the shared connection to the control database ended");
            }
        });
        let shared = Arc::new(Shared { client, prepared: RwLock::default() });
        *self.0.shared.write() = Some(shared.clone());
        Ok(shared)
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

/// The constraint a statement ran into, if that is why it failed.
pub fn violated(error: &tokio_postgres::Error) -> Option<&str> {
    error.as_db_error().and_then(tokio_postgres::error::DbError::constraint)
}

/// TLS towards a control database on another machine: the system's roots, or none where `sslmode` says so.
mod tls {
    use std::sync::LazyLock;

    use rustls::{ClientConfig, RootCertStore};
    use tokio_postgres_rustls::MakeRustlsConnect;

    pub(super) type Stream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream;

    /// Read once: reading the system's roots takes long, and connections are made again and again while a server is away.
    static CONNECTOR: LazyLock<MakeRustlsConnect> = LazyLock::new(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        MakeRustlsConnect::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    });

    pub(super) fn connector() -> MakeRustlsConnect {
        CONNECTOR.clone()
    }
}
