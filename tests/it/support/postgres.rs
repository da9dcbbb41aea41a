//! The shared PostgreSQL of a test run, and a control database for every test.
//!
//! The schema is migrated once a run, into a template database. Test databases are not dropped: the
//! whole cluster is deleted after the run.

use std::{env, fs, path::PathBuf, sync::Arc};

use gantry::platform::db::Db;
use gantry_base::clock::Entropy;
use gantry_node::{
    clusters::{Control, Home},
    supervisor::Account,
};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Config, NoTls};

use super::machine::{Janitor, host, place};

/// Key of the advisory lock on creating the template: an arbitrary constant.
const LOCK: i64 = 0x7465_7374;

static SHARED: OnceCell<Shared> = OnceCell::const_new();

struct Shared {
    config: Config,
    /// Deletes a cluster that this process started. A static is never dropped, but its pipe closes
    /// with the process.
    _janitor: Option<Janitor>,
}

/// Creates a migrated, empty control database.
pub(crate) async fn database() -> Config {
    let shared = SHARED.get_or_init(shared).await;
    let admin = connect(&shared.config).await;
    let template = template(&admin, &shared.config).await;
    let name = format!("it_{}", Entropy::system().letters(12));
    admin
        .batch_execute(&format!("create database {name} template {template}"))
        .await
        .unwrap();
    let mut config = shared.config.clone();
    config.dbname(name);
    config
}

/// Creates a control database without a schema.
pub(crate) async fn empty_database() -> Config {
    let shared = SHARED.get_or_init(shared).await;
    let admin = connect(&shared.config).await;
    let name = format!("it_{}", Entropy::system().letters(12));
    admin
        .batch_execute(&format!("create database {name}"))
        .await
        .unwrap();
    let mut config = shared.config.clone();
    config.dbname(name);
    config
}

/// Opens another connection.
pub(crate) async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The cluster that `gantry with-postgres` started around the run, or one of this process.
async fn shared() -> Shared {
    if let Some(dir) = env::var_os("GANTRY_TEST_HOME") {
        return Shared {
            config: Control::config_in(&PathBuf::from(dir)),
            _janitor: None,
        };
    }
    let home = Arc::new(Home::open(&place(), Account::for_servers().unwrap()).unwrap());
    let janitor = Janitor::of(home.dir());
    let control = Control::ensure(&home, &host(), &Entropy::system())
        .await
        .unwrap();
    Shared {
        config: control.config(),
        _janitor: Some(janitor),
    }
}

/// Returns the name of the migrated template. The first caller creates it.
async fn template(admin: &Client, config: &Config) -> String {
    let name = format!("template_{}", schema());
    let exists = async || {
        admin
            .query_opt("select from pg_database where datname = $1", &[&name])
            .await
            .unwrap()
            .is_some()
    };
    if exists().await {
        return name;
    }
    admin
        .execute("select pg_advisory_lock($1)", &[&LOCK])
        .await
        .unwrap();
    if !exists().await {
        // Renamed when complete, so that an interrupted test leaves no incomplete template.
        let unfinished = format!("{name}_unfinished");
        admin
            .batch_execute(&format!(
                "drop database if exists {unfinished} with (force)"
            ))
            .await
            .unwrap();
        admin
            .batch_execute(&format!("create database {unfinished}"))
            .await
            .unwrap();
        let mut config = config.clone();
        Db::new(config.dbname(&unfinished).clone())
            .unwrap()
            .migrate()
            .await
            .unwrap();
        admin
            .batch_execute(&format!("alter database {unfinished} rename to {name}"))
            .await
            .unwrap();
    }
    admin
        .execute("select pg_advisory_unlock($1)", &[&LOCK])
        .await
        .unwrap();
    name
}

/// Returns a digest of the migrations, which names the template.
fn schema() -> String {
    let mut files: Vec<_> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        digest.update(file.file_name().unwrap().as_encoded_bytes());
        digest.update(fs::read(&file).unwrap());
    }
    hex::encode(&digest.finalize()[..8])
}
