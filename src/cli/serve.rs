//! Starting and stopping the server: what `gantry serve` and `gantry dev` share.

use std::{
    fs::File,
    iter::once,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use futures_util::{FutureExt, TryFutureExt};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use secrecy::ExposeSecret;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};
use tower::ServiceExt;
use uuid::Uuid;

use crate::{
    api::{
        accounts::{provider, provider::Provider},
        logs, oauth,
    },
    app::{
        App, Settings,
        config::{Config, UnderscoreHeaders},
        operator_api,
    },
    base::{
        clock::{Clock, Entropy},
        db::Db,
        sealing::SealingKey,
    },
    cli::{
        databases::{Choice, Databases},
        edges::Edges,
    },
    data_plane::{
        clusters::{
            Account, Control, ControlGroups, Embedded, EngineError, Home, Installed, Launcher,
            Location, OldVersions, Resources, sandbox_available, server::Host,
        },
        domains::{
            hostnames::{acme::Authority, dns::Resolver},
            zone,
            zone::Zone,
        },
        postgres_proxy::Published,
        projects::{lease, warm_pool},
        service_proxy,
    },
    platform::{
        http::{Body, Transport, openapi::PublishedLinks, server},
        rate_limits::{Capacity, Journal, snapshot},
        telemetry,
    },
};

/// What a kill can take back from the counters.
const LIMITS_KEPT_EVERY: Duration = Duration::from_secs(1);
const OTHER_SEALING_KEY: &str = "the secrets in this control database are encrypted with another key than this server's: start it with \
                                 --sealing-key and the file that the first server on this database uses (`sealing-key` in its data folder)";
const STOPPED_EARLY: &str = "stopped before it was ready";

/// A server that answers.
pub(super) struct Running {
    pub(super) app: App,
    /// Where it answers: the port chosen, if the configuration left it open.
    pub(super) address: SocketAddr,
    /// Where databases are reached.
    pub(super) databases: Reached,
    /// Where projects' services are reached.
    pub(super) services: Vec<SocketAddr>,
    stop: server::Stop,
    background: JoinSet<()>,
    routers: JoinSet<()>,
    edges: JoinSet<()>,
    listeners: JoinSet<()>,
    control: Option<Supervised>,
    home: Arc<Home>,
    /// The lock of whoever keeps its counters in the data folder.
    keeps_limits: Option<File>,
    signals: Signals,
}

/// The control cluster, started again whenever its server ends by itself.
struct Supervised {
    control: Arc<Control>,
    /// Dropping it ends the supervision.
    stop: oneshot::Sender<()>,
    supervision: JoinHandle<()>,
}

impl Supervised {
    fn new(control: Control) -> Self {
        let control = Arc::new(control);
        let (stop, stopping) = oneshot::channel();
        let supervised = control.clone();
        let supervision = tokio::spawn(async move {
            // An error means that the sender is gone, which asks for the same.
            supervised.supervise(async { drop(stopping.await) }).await;
        });
        Self {
            control,
            stop,
            supervision,
        }
    }

    /// Stops the server for good.
    async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        self.supervision.await?;
        Ok(self.control.stop().await?)
    }
}

/// Where databases are reached, and what there is to say about it.
pub(super) struct Reached {
    pub(super) addresses: Vec<SocketAddr>,
    /// Ports that were meant to be used, and that somebody else has.
    pub(super) taken: Vec<u16>,
    /// The certificate of the authority that clients may trust.
    pub(super) authority: Option<PathBuf>,
}

/// Requests to stop. Taken from the start on: one that comes while the server starts is obeyed as soon as it can be.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn take() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    fn asked_already(&mut self) -> bool {
        self.asked().now_or_never().is_some()
    }
}

/// `gantry serve`: until SIGINT or SIGTERM. Projects' clusters go on running, and are adopted by the next start.
pub(super) async fn serve(config: Config) -> anyhow::Result<()> {
    let mut running = start(config, Choice::Options).await?;
    for address in &running.databases.addresses {
        tracing::info!(%address, "taking connections to databases");
    }
    for address in &running.services {
        tracing::info!(%address, "taking requests to projects' services");
    }
    tracing::info!(address = %running.address, "listening");
    running.wait().await;
    tracing::info!("stopping: requests in flight are finished first");
    running.stop(Clusters::Leave).await
}

/// What becomes of projects' clusters when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clusters {
    Leave,
    Stop,
}

/// Starts everything the configuration names.
pub(super) async fn start(config: Config, choice: Choice) -> anyhow::Result<Running> {
    let mut signals = Signals::take()?;
    telemetry::log(&config.log, config.log_format)?;
    config.check()?;
    // Before anything is started: the commonest mistake should cost nothing.
    let listener = TcpListener::from_std(bind(config.listen, "--listen")?)?;
    let admin = config
        .admin_listen
        .map(|address| anyhow::Ok(TcpListener::from_std(bind(address, "--admin-listen")?)?))
        .transpose()?;
    let operator = config
        .operator_socket
        .as_deref()
        .map(operator_socket)
        .transpose()?;
    let issuer = issuer(&config, choice, listener.local_addr()?);
    let mut databases = Databases::bind(&config, choice)?;
    let mut edges = Edges::bind(&config, choice)?;
    let tls = tls(&config)?;

    let installed = installed(&config)?;
    let control_engine = installed
        .fitting(&Home::control_data_of(&config.control.home()))
        .clone();
    let engines = installed.offer(old_versions(&config))?;
    let launcher = Launcher {
        sandbox: !config.unsafe_no_sandbox && sandbox_available(),
        ..Launcher::default()
    };
    let account = Account::for_servers()?;
    let home = match config.control.database_url {
        Some(_) => Home::share(&config.control.home(), account)?,
        None => Home::open(&config.control.home(), account)?,
    };
    let home = Arc::new(home);
    if config.control.database_url.is_none() {
        // Its control database would tell a copy the same as the original.
        Location::confirm(home.dir())?;
    }
    // Before anything is started: Gantry itself may have to move to a control group beside those of projects.
    let resources = resources(&config, &home)?;
    let warnings = warnings(
        launcher.sandbox,
        Account::current()?.uid == 0,
        resources.groups().enforced(),
    );
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    databases.certify(&config, &home)?;
    edges.certify(&config, &home)?;
    let host = Host {
        engine: control_engine,
        launcher,
    };
    let (entropy, clock) = (Entropy::system(), Clock::system());
    let (db, control) = if let Some(url) = &config.control.database_url {
        (
            Db::new(
                url.expose_secret()
                    .parse()
                    .context("--database-url is not a PostgreSQL URL")?,
            )?,
            None,
        )
    } else {
        let control = Control::ensure(&home, &host, &entropy).await?;
        (Db::new(control.config())?, Some(control))
    };
    let begun = async {
        tokio::select! {
            migrated = db.migrate() => migrated.context("the control database could not be brought up to date")?,
            () = signals.asked() => anyhow::bail!(STOPPED_EARLY),
        };
        let mut settings = first_steps(
            &config,
            databases.published(&config),
            home.clone(),
            &db,
            entropy.clone(),
        )
        .await?;
        settings.public_url = issuer;
        if settings.public_url.is_none() && oauth::applications::any(&db).await? {
            tracing::warn!(
                "OAuth applications are registered, and none can ask for consent before --public-url is set"
            );
        }
        anyhow::ensure!(settings.sealing.fits(&db).await?, OTHER_SEALING_KEY);
        let clusters = Embedded::open(home.clone(), host, entropy.clone())
            .with_engines(engines)
            .with_resources(resources);
        let operations = App::operations();
        let memory = snapshot::open(
            &limits_file(&home),
            Capacity::default(),
            &operations,
            &clock,
            &entropy,
        );
        let (app, background) = App::new(settings, clock, entropy, db, clusters, memory)?;
        app.analytics.ready().await?;
        // Nothing of the folder is started before.
        lease::claim(&app).await?;
        if app.lease.refusal().is_none() {
            app.clusters.prepare().await?;
            let reflink = app.clusters.shares_blocks().await?;
            tracing::info!(
                reflink,
                "new clusters are copied from the template{}",
                if reflink { ", sharing its blocks" } else { "" }
            );
        }
        anyhow::Ok((app, background, listener.local_addr()?))
    };
    let (app, background, address) = match begun.await {
        Ok(begun) => begun,
        Err(error) => {
            // Nobody is left who would stop it.
            if let Some(control) = &control {
                control.stop().await?;
            }
            // Ctrl-C reaches `initdb` too, whose complaint then says nothing.
            return Err(if signals.asked_already() {
                anyhow::anyhow!(STOPPED_EARLY)
            } else {
                error
            });
        }
    };
    tracing::info!(
        by = app
            .clusters
            .resources()
            .map_or("nothing", |resources| resources.groups().name()),
        "the resources of projects are bounded"
    );
    let mut background = background.spawn();
    // Of several processes only the first keeps what it counted by itself; the others' would overwrite it.
    let keeps_limits = home.try_lock("limits.lock")?;
    if keeps_limits.is_some() {
        match Journal::open(
            app.limits.memory().clone(),
            app.clock.clone(),
            limits_file(&home),
        ) {
            Ok(journal) => {
                let journal = Arc::new(journal);
                app.limits.keep(journal.clone());
                background.spawn(snapshot::run(journal, app.clock.clone(), LIMITS_KEPT_EVERY));
            }
            Err(error) => {
                tracing::warn!(%error, "rate limits cannot be kept: a restart begins with whole quotas")
            }
        }
    }
    let reached = Reached {
        addresses: databases.addresses(),
        taken: databases.taken.clone(),
        authority: databases.authority.clone(),
    };
    let services = edges.addresses();
    let routers = databases.listen(&app)?;
    let edges = edges.listen(&app)?;
    let (stop, mut listeners, api) = (server::Stop::default(), JoinSet::new(), app.api());
    listeners.spawn(server::serve(
        listener,
        tls,
        move |peer| api.connection(peer),
        stop.clone(),
    ));
    if let Some(admin) = admin {
        let router = admin_router(app.clone(), &warnings);
        listeners.spawn(server::serve(
            admin,
            None,
            move |_| admin_service(router.clone()),
            stop.clone(),
        ));
    }
    if let Some(socket) = operator {
        listeners.spawn(operator_api::serve(app.clone(), socket, stop.clone()));
    }
    Ok(Running {
        app,
        address,
        databases: reached,
        services,
        stop,
        background,
        routers,
        edges,
        listeners,
        control: control.map(Supervised::new),
        home,
        keeps_limits,
        signals,
    })
}

impl Running {
    /// Returns when the server is asked to stop.
    pub(super) async fn wait(&mut self) {
        self.signals.asked().await;
    }

    /// Finishes what was begun, then stops what this process started.
    pub(super) async fn stop(mut self, clusters: Clusters) -> anyhow::Result<()> {
        self.stop.stop();
        self.app.router.stop();
        self.app.edge.stop();
        while self.listeners.join_next().await.is_some() {}
        while self.routers.join_next().await.is_some() {}
        while self.edges.join_next().await.is_some() {}
        let led = self.app.lease.leads();
        self.app.reconciler.stop().await;
        if clusters == Clusters::Stop && led {
            self.app.clusters.stop_all().await?;
        }
        self.app.analytics.close().await;
        self.background.shutdown().await;
        self.app.lease.hand_back(&self.app).await;
        if self.keeps_limits.is_some()
            && let Some(Err(error)) = self.app.limits.kept().map(|journal| journal.close())
        {
            tracing::warn!(%error, "rate limits could not be saved: the next start begins a little behind");
        }
        self.app.db.close();
        if let Some(control) = self.control {
            control.stop().await?;
        }
        tracing::debug!(data = %self.home.dir().display(), "stopped");
        Ok(())
    }
}

pub(super) fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{address} is in use by another program; stop it, or choose another address with {flag}")
        }
        _ => anyhow::anyhow!("cannot listen on {address}: {error}"),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn operator_socket(file: &Path) -> anyhow::Result<operator_api::Socket> {
    operator_api::Socket::bind(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "{} is in use: by another server, or by something that is no socket; choose another file with --operator-socket",
            file.display()
        ),
        _ => anyhow::anyhow!("cannot listen at {}: {error}", file.display()),
    })
}

fn tls(config: &Config) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else {
        return Ok(None);
    };
    let unreadable = |file: &Path| format!("cannot read {}", file.display());
    let chain = CertificateDer::pem_file_iter(cert)
        .with_context(|| unreadable(cert))?
        .collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| unreadable(key))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain.with_context(|| unreadable(cert))?, key)
        .context("the certificate and the key do not fit")?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(server)))
}

/// The PostgreSQL installations of this machine.
pub(super) fn installed(config: &Config) -> Result<Installed, EngineError> {
    Installed::find(
        config.control.postgres_bin.as_deref(),
        &Home::engines_of(&config.control.home()),
    )
}

/// Which versions before 16 projects may have. Without a sandbox nothing else contains their owner's role.
pub(super) fn old_versions(config: &Config) -> OldVersions {
    match (
        sandbox_available() || config.unsafe_no_sandbox,
        config.allow_postgres_15,
    ) {
        (false, _) => OldVersions::Unusable,
        (true, true) => OldVersions::Offered,
        (true, false) => OldVersions::Existing,
    }
}

/// What is made when a data folder is first used, by one process at a time.
async fn first_steps(
    config: &Config,
    databases: Option<Published>,
    home: Arc<Home>,
    db: &Db,
    entropy: Entropy,
) -> anyhow::Result<Settings> {
    let locked = home.clone();
    let _once = tokio::task::spawn_blocking(move || locked.lock_start()).await??;
    let rows = db.query("select id from installation", &[]).await?;
    let id: Uuid = rows
        .first()
        .context("the control database does not say which it is")?
        .get(0);
    let file = home.dir().join("database");
    let known = identity(&file, || id)?;
    anyhow::ensure!(
        known == id,
        "the clusters in {} belong to another control database, which knows what is in them; name that one with --database-url, choose \
         another --data-dir, or, if this is meant, remove {}",
        home.dir().display(),
        file.display()
    );
    settings(config, databases, &home, &entropy)
}

/// The issuer of OAuth tokens: `--public-url`, and without it, for `gantry dev`, the address it listens on. Never a name that
/// requests bring along.
fn issuer(config: &Config, choice: Choice, address: SocketAddr) -> Option<String> {
    let scheme = if config.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    let own = (choice == Choice::Convenient && !address.ip().is_unspecified())
        .then(|| format!("{scheme}://{address}"));
    config.public_url().or(own)
}

fn settings(
    config: &Config,
    databases: Option<Published>,
    home: &Home,
    entropy: &Entropy,
) -> anyhow::Result<Settings> {
    Ok(Settings {
        transport: Transport {
            tls: config.tls_cert.is_some(),
            trusted_proxies: config.trusted_proxies.clone(),
            client_header: config.client_address_header.clone(),
        },
        project_domain: config.project_domain.clone(),
        databases,
        links: PublishedLinks {
            terms: config.terms_url.clone(),
            pricing: config.pricing_url.clone(),
        },
        node: identity(&home.dir().join("node"), || entropy.uuid())?,
        own_database: config.control.database_url.is_none(),
        project_uid_base: config.project_uid_base,
        prepared: warm_pool::Wanted {
            folders: config.warm_clusters,
            servers: config.spare_clusters.unwrap_or(0),
        },
        idle_pause_after: config
            .idle_pause_after
            .map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
        counting: config.counting(),
        dns: Arc::new(Resolver::new(&config.dns_resolver)?),
        authority: authority(config)?,
        upstreams: config.upstream.iter().cloned().collect(),
        edge: service_proxy::Options {
            check_keys: config.edge_check_keys,
            underscore_headers: config.edge_underscore_headers == UnderscoreHeaders::Pass,
            ..service_proxy::Options::default()
        },
        sealing: match &config.sealing_key {
            Some(file) => SealingKey::read(file)?,
            None => SealingKey::read_or_make(&home.dir().join("sealing-key"), entropy)?,
        },
        public_url: config.public_url(),
        oauth: oauth::Settings {
            access_life: config.oauth_access_life(),
        },
        provider: provider(config)?.map(Arc::new),
        logs: logs::Options {
            folder: config.logs_folder.clone(),
            retention_days: config.logs_retention_days,
            place: config.logs_store.place()?,
        },
    })
}

/// Who certifies hostnames, if anybody is named.
fn authority(config: &Config) -> anyhow::Result<Option<Authority>> {
    let Some(directory) = config.acme_directory.clone() else {
        return Ok(None);
    };
    let writer = match (
        config.acme_dns_server,
        &config.acme_dns_key,
        &config.acme_dns_hook,
    ) {
        (Some(server), Some(key), _) => Some(zone::Writer::Update(server, zone::Key::read(key)?)),
        (_, _, Some(hook)) => Some(zone::Writer::Hook(zone::Hook::new(hook)?)),
        _ => None,
    };
    let zone = config
        .acme_dns_zone
        .as_deref()
        .zip(writer)
        .map(|(name, writer)| Zone::new(name, writer))
        .transpose()?;
    Ok(Some(Authority {
        directory,
        root: config.acme_root.clone(),
        contact: config.acme_contact.clone(),
        issuer: config.acme_issuer.clone(),
        zone,
        wildcard: config.edge_acme_wildcard,
    }))
}

/// The provider through which people can sign in, if one is named.
fn provider(config: &Config) -> anyhow::Result<Option<Provider>> {
    let (Some(issuer), Some(client_id), Some(file)) = (
        &config.oidc_issuer,
        &config.oidc_client_id,
        &config.oidc_client_secret,
    ) else {
        return Ok(None);
    };
    let secret =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let options = provider::Options {
        issuer: issuer.clone(),
        client_id: client_id.clone(),
        client_secret: secret.into(),
        name: config.oidc_name.clone(),
        domains: config.oidc_email_domains.clone(),
    };
    Ok(Some(Provider::new(options)?))
}

/// Where counters outlive the process.
fn limits_file(home: &Home) -> PathBuf {
    home.dir().join("limits")
}

/// The identity that a file of the data folder holds, made when it is first used: the folder's own, which rows of projects
/// name, and its control database's.
fn identity(file: &Path, new: impl FnOnce() -> Uuid) -> anyhow::Result<Uuid> {
    match std::fs::read_to_string(file) {
        Ok(text) => text
            .trim()
            .parse()
            .with_context(|| format!("{} does not hold a UUID", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = new();
            // Renamed in place, so that a crash never leaves half an identity.
            let unfinished = file.with_extension("tmp");
            std::fs::write(&unfinished, format!("{id}\n"))
                .and_then(|()| std::fs::rename(&unfinished, file))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// The limits of projects, and the kernel's means to enforce them.
fn resources(config: &Config, home: &Home) -> anyhow::Result<Resources> {
    let groups = ControlGroups::find(home.dir(), config.cgroup_parent.as_deref());
    if let Some(parent) = config
        .cgroup_parent
        .as_deref()
        .filter(|_| !groups.enforced())
    {
        anyhow::bail!(
            "no control groups can be made under {}: it must exist, hand on the controllers memory and pids, and be writable for Gantry; \
             choose another with --cgroup-parent, or leave that out",
            parent.display()
        );
    }
    Ok(Resources::new(config.resource_limits(), groups))
}

/// What projects are less apart by than they could be: said in the log, and to whoever watches the process's health.
fn warnings(sandbox: bool, root: bool, groups: bool) -> Vec<&'static str> {
    let unsafe_sandbox =
        "clusters run without the Landlock sandbox: a project's SQL can reach files of its user id";
    let shared_uid = "not running as root: the servers of all projects share one user id, and only the sandbox is between them";
    let measured = "no control groups: the memory of a project is bounded for each process, and as a whole only by looking every second";
    [
        (sandbox, unsafe_sandbox),
        (root, shared_uid),
        (groups, measured),
    ]
    .into_iter()
    .filter(|(holds, _)| !holds)
    .map(|(_, warning)| warning)
    .collect()
}

fn admin_service(router: Router) -> impl server::Service {
    hyper::service::service_fn(move |request| {
        router
            .clone()
            .oneshot(request)
            .map_ok(|answer| answer.map(Body::new))
    })
}

/// For the operator's own tools: not counted, not authenticated, on a listener of its own.
fn admin_router(app: App, warnings: &[&str]) -> Router {
    let health: String = once("ok\n".to_owned())
        .chain(
            warnings
                .iter()
                .map(|warning| format!("warning: {warning}\n")),
        )
        .collect();
    Router::new()
        .route("/healthz", get(|| async { health }))
        .route("/readyz", get(ready))
        .route(
            "/metrics",
            get(|State(app): State<App>| async move { app.metrics.render() }),
        )
        .with_state(app)
}

/// Ready while the control database answers.
async fn ready(State(app): State<App>) -> (StatusCode, &'static str) {
    match app.db.query("select 1", &[]).await {
        Ok(_) => (StatusCode::OK, "ready\n"),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the control database does not answer\n",
        ),
    }
}

/// Binds a listener for a caller that only needs to know whether it can.
pub(super) async fn can_bind(address: SocketAddr) -> bool {
    TcpListener::bind(address).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_lacks_is_warned_of() {
        assert!(warnings(true, true, true).is_empty());
        assert_eq!(warnings(false, false, false).len(), 3);
        assert!(warnings(true, true, false)[0].starts_with("no control groups: "));
    }
}
