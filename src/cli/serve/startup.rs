//! Startup of the server.

use std::{fs::File, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use gantry_base::clock::{Clock, Entropy};
use gantry_node::clusters::{Control, Home, LocalDriver};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    admin,
    machine::{Listeners, Machine},
    running::{DatabaseEndpoints, Running, ShutdownSignals, SupervisedControl},
    settings,
};
use crate::{
    api::oauth,
    app::{App, Background, config::Config, operator_api},
    cli::listeners::ListenerDefaults,
    control::{fleet, projects::lease},
    platform::{
        db::Db,
        http::server,
        rate_limits::{CounterCapacity, Journal, snapshot},
        telemetry,
    },
    proxy::postgres_proxy::PublishedAddress,
};

/// Interval between saves of the rate limit counters: a kill loses at most this much.
const COUNTERS_SAVE_INTERVAL: Duration = Duration::from_secs(1);
const OTHER_SEALING_KEY: &str = "the control database is encrypted with a different sealing key: set --sealing-key to the key \
     file of the first server that used this database (`sealing-key` in its data folder)";
const INTERRUPTED: &str = "stopped before startup was complete";

/// Starts the server: listeners, control database, background tasks and project clusters.
pub(in crate::cli) async fn start(
    config: Config,
    defaults: ListenerDefaults,
) -> anyhow::Result<Running> {
    let mut signals = ShutdownSignals::register()?;
    let log_filter = telemetry::log(&config.process_log.log, config.process_log.log_format)?;
    config.check()?;
    let mut listeners = Listeners::bind(&config, defaults)?;
    let machine = Machine::prepare(&config)?;
    let home = machine.home.clone();
    let warnings = machine.warnings.clone();
    listeners.databases.certify(&config, &home)?;
    listeners.services.certify(&config, &home)?;
    let clock = Clock::system();
    let entropy = Entropy::system();
    let (db, control) = connect(&config, &machine, &entropy).await?;
    let issuer = settings::issuer(&config, defaults, listeners.address);
    let published = Published {
        databases: listeners.databases.published(&config),
        fleet: match &listeners.fleet {
            Some(listener) => Some(listener.local_addr()?),
            None => None,
        },
    };
    let opened = async {
        migrate(&db, &mut signals).await?;
        open_app(&config, issuer, published, machine, db, clock, entropy).await
    };
    let (app, background) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            if let Some(control) = &control {
                control.stop().await?;
            }
            // Ctrl-C also reaches `initdb`, and its error message would hide the cause.
            return Err(if signals.received() {
                anyhow::anyhow!(INTERRUPTED)
            } else {
                error
            });
        }
    };
    let mut background = background.spawn();
    let counters_lock = save_counters(&app, &home, &mut background)?;
    let databases = DatabaseEndpoints {
        addresses: listeners.databases.addresses(),
        taken: listeners.databases.taken.clone(),
        authority: listeners.databases.authority.clone(),
    };
    let address = listeners.address;
    let services = listeners.services.addresses();
    let shutdown = CancellationToken::new();
    let routers = listeners.databases.listen(&app)?;
    let edges = listeners.services.listen(&app)?;
    let mut tasks = JoinSet::new();
    let api = app.api();
    tasks.spawn(server::serve(
        listeners.api,
        listeners.tls,
        move |peer| api.connection(peer),
        shutdown.clone(),
    ));
    if let Some(listener) = listeners.admin {
        let router = admin::router(app.clone(), &warnings);
        tasks.spawn(server::serve(
            listener,
            None,
            move |_| admin::service(router.clone()),
            shutdown.clone(),
        ));
    }
    if let Some(listener) = listeners.fleet {
        tasks.spawn(fleet::serve(app.control.clone(), app.api(), listener));
    }
    if let Some(socket) = listeners.operator {
        tasks.spawn(operator_api::serve(app.clone(), socket, shutdown.clone()));
    }
    Ok(Running {
        app,
        address,
        databases,
        services,
        shutdown,
        background,
        routers,
        edges,
        listeners: tasks,
        control: control.map(SupervisedControl::new),
        home,
        counters_lock,
        signals,
        log_filter,
    })
}

/// Addresses that are known once the listeners are bound.
struct Published {
    databases: Option<PublishedAddress>,
    fleet: Option<SocketAddr>,
}

/// Connects to the control database. Starts the embedded control cluster if no URL is configured.
async fn connect(
    config: &Config,
    machine: &Machine,
    entropy: &Entropy,
) -> anyhow::Result<(Db, Option<Control>)> {
    if let Some(url) = &config.control.database_url {
        let url = url
            .expose_secret()
            .parse()
            .context("--database-url is not a PostgreSQL URL")?;
        return Ok((Db::new(url)?, None));
    }
    let control = Control::ensure(&machine.home, &machine.host, entropy).await?;
    Ok((Db::new(control.config())?, Some(control)))
}

/// Migrates the control database, unless a shutdown signal arrives first.
async fn migrate(db: &Db, signals: &mut ShutdownSignals) -> anyhow::Result<()> {
    tokio::select! {
        migrated = db.migrate() => {
            migrated.context("migrating the control database failed")?;
            Ok(())
        }
        () = signals.recv() => anyhow::bail!(INTERRUPTED),
    }
}

/// Creates the application, acquires the lease of the data folder and prepares the template.
async fn open_app(
    config: &Config,
    issuer: Option<String>,
    published: Published,
    machine: Machine,
    db: Db,
    clock: Clock,
    entropy: Entropy,
) -> anyhow::Result<(App, Background)> {
    let home = machine.home;
    let mut settings = settings::load(
        config,
        published.databases,
        published.fleet,
        home.clone(),
        &db,
        entropy.clone(),
    )
    .await?;
    settings.public_url = issuer;
    if settings.public_url.is_none() && oauth::applications::any_registered(&db).await? {
        tracing::warn!("OAuth applications cannot request consent: --public-url is not set");
    }
    anyhow::ensure!(settings.sealing.fits(&db).await?, OTHER_SEALING_KEY);
    let resource_groups = machine.resources.groups().name();
    tracing::info!(by = resource_groups, "project resource limits enabled");
    let clusters = LocalDriver::open(home.clone(), machine.host, entropy.clone())
        .with_engines(machine.engines)
        .with_archives(!config.backups.no_backups)
        .with_resources(machine.resources);
    let memory = snapshot::open(
        &counters_file(&home),
        CounterCapacity::default(),
        &App::operations(),
        &clock,
        &entropy,
    );
    let (app, background) = App::new(
        settings,
        clock,
        entropy,
        db,
        Arc::new(clusters.clone()),
        home,
        memory,
    )?;
    app.analytics.ready().await?;
    // The lease must be held before any cluster of the data folder is started.
    lease::claim(&app).await?;
    if app.lease.refusal().is_none() {
        clusters.prepare().await?;
        let reflink = clusters.shares_blocks().await?;
        tracing::info!(reflink, "cluster template is ready");
        fleet::register(&app.control).await?;
    }
    Ok((app, background))
}

/// Saves the rate limit counters periodically. Of several processes on a data folder only the
/// first does: the others would overwrite its file. Returns the lock of the saving process.
fn save_counters(
    app: &App,
    home: &Home,
    background: &mut JoinSet<()>,
) -> anyhow::Result<Option<File>> {
    let Some(lock) = home.try_lock("limits.lock")? else {
        return Ok(None);
    };
    let memory = app.limits.memory().clone();
    match Journal::open(memory, app.clock.clone(), counters_file(home)) {
        Ok(journal) => {
            let journal = Arc::new(journal);
            app.limits.set_journal(journal.clone());
            background.spawn(snapshot::run(
                journal,
                app.clock.clone(),
                COUNTERS_SAVE_INTERVAL,
            ));
        }
        Err(error) => {
            tracing::warn!(%error, "rate limit counters cannot be saved; a restart resets them");
        }
    }
    Ok(Some(lock))
}

/// Path of the saved rate limit counters.
fn counters_file(home: &Home) -> PathBuf {
    home.dir().join("limits")
}
