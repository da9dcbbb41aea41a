//! Settings of the server, derived from the configuration and the data folder.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use chrono::TimeDelta;
use gantry_base::{clock::Entropy, net::outbound::OutboundPolicy};
use gantry_node::{
    clusters::Home,
    kits::shelf::KitShelf,
    supervisor::{Launcher, sandbox_available},
};
use uuid::Uuid;

use crate::{
    api::{
        accounts::oidc::{self, OidcProvider},
        log_drains, logs, oauth,
    },
    app::{
        Settings,
        config::{Config, UnderscoreHeaders},
    },
    cli::listeners::ListenerDefaults,
    control::{
        domains::{
            hostnames::{dns::DnsResolver, state::CertificateAuthority},
            zone::{self, Zone},
        },
        projects::state::warm_pool::WarmPoolSize,
        services::state::ServiceOptions,
    },
    platform::{context::PublishedLinks, db::Db, http::Transport, sealing::SealingKey},
    proxy::{postgres_proxy::PublishedAddress, service_proxy},
};

/// Loads the settings, and creates the identity files of a data folder on its first use. Holds the
/// start lock, so that only one process creates them.
pub(super) async fn load(
    config: &Config,
    databases: Option<PublishedAddress>,
    fleet: Option<SocketAddr>,
    home: Arc<Home>,
    db: &Db,
    entropy: Entropy,
) -> anyhow::Result<Settings> {
    let locked = home.clone();
    let _once = tokio::task::spawn_blocking(move || locked.lock_start()).await??;
    let rows = db.query("select id from installation", &[]).await?;
    let id: Uuid = rows
        .first()
        .context("the control database has no installation id")?
        .get(0);
    let file = home.dir().join("database");
    let recorded = identity(&file, || id)?;
    anyhow::ensure!(
        recorded == id,
        "the clusters in {} belong to another control database; set --database-url to that database, choose \
         another --data-dir, or remove {} to use them with this one anyway",
        home.dir().display(),
        file.display()
    );
    from_config(config, databases, fleet, &home, &entropy)
}

/// Returns the issuer of OAuth tokens: `--public-url`, or the listening address for `gantry dev`.
/// It never comes from the `Host` header of a request.
pub(super) fn issuer(
    config: &Config,
    defaults: ListenerDefaults,
    address: SocketAddr,
) -> Option<String> {
    let scheme = if config.api.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    let local = (defaults == ListenerDefaults::Local && !address.ip().is_unspecified())
        .then(|| format!("{scheme}://{address}"));
    config.public_url().or(local)
}

/// Derives the settings from the configuration and the files of the data folder.
fn from_config(
    config: &Config,
    databases: Option<PublishedAddress>,
    fleet: Option<SocketAddr>,
    home: &Home,
    entropy: &Entropy,
) -> anyhow::Result<Settings> {
    Ok(Settings {
        transport: Transport {
            tls: config.api.tls_cert.is_some(),
            trusted_proxies: config.api.trusted_proxies.clone(),
            client_header: config.api.client_address_header.clone(),
        },
        project_domain: config.projects.project_domain.clone(),
        databases,
        links: PublishedLinks {
            terms: config.api.terms_url.clone(),
            pricing: config.api.pricing_url.clone(),
        },
        node: identity(&home.dir().join("node"), || entropy.uuid())?,
        own_database: config.control.database_url.is_none(),
        project_uid_base: config.projects.project_uid_base,
        new_table_grants: config.projects.new_table_grants,
        prepared: WarmPoolSize {
            folders: config.projects.warm_clusters,
            servers: config.projects.spare_clusters.unwrap_or(0),
        },
        idle_pause_after: config
            .projects
            .idle_pause_after
            .map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
        hold: TimeDelta::days(config.projects.hold.deleted_project_days.into()),
        compute_sizes: config.projects.project_limits.size_table(),
        project_disk_choice_max: config.projects.project_limits.project_disk_choice_max(),
        branches: config.branches.options(),
        backups: config.backups.options(&config.logs.store)?,
        fleet: config.node.settings(fleet),
        counting: config.counting(),
        dns: Arc::new(DnsResolver::new(&config.acme.dns_resolver)?),
        authority: authority(config)?,
        service_proxy: service_proxy::Options {
            upstreams: config.services.upstream.iter().cloned().collect(),
            check_keys: config.edge.edge_check_keys,
            underscore_headers: config.edge.edge_underscore_headers == UnderscoreHeaders::Pass,
            ..service_proxy::Options::default()
        },
        services: ServiceOptions {
            shelf: KitShelf::new(
                config.services.services_dir.clone(),
                Home::kits_of(home.dir()),
            ),
            launcher: Launcher {
                sandbox: !config.projects.unsafe_no_sandbox && sandbox_available(),
                ..Launcher::default()
            },
            egress: config.services.functions_egress_ports.clone(),
        },
        sealing: match &config.sealing_key {
            Some(file) => SealingKey::read(file)?,
            None => SealingKey::read_or_make(&home.dir().join("sealing-key"), entropy)?,
        },
        public_url: config.public_url(),
        oauth: oauth::OAuthSettings {
            access_lifetime: config.oauth_access_life(),
        },
        provider: provider(config)?.map(Arc::new),
        logs: logs::Options {
            folder: config.logs.logs_folder.clone(),
            retention_days: config.logs.logs_retention_days,
            place: config.logs.store.place()?,
            ..logs::Options::default()
        },
        outbound: OutboundPolicy::new(config.outbound.outbound_networks.clone())
            .denying(config.outbound.outbound_denied_networks.clone()),
        log_drains: log_drains::Options {
            datadog_url: config.outbound.log_drain_datadog_url.clone(),
        },
    })
}

/// Returns the certificate authority of custom hostnames, if configured.
fn authority(config: &Config) -> anyhow::Result<Option<CertificateAuthority>> {
    let Some(directory) = config.acme.acme_directory.clone() else {
        return Ok(None);
    };
    let writer = match (
        config.acme.acme_dns_server,
        &config.acme.acme_dns_key,
        &config.acme.acme_dns_hook,
    ) {
        (Some(server), Some(key), _) => {
            Some(zone::ZoneWriter::Update(server, zone::TsigKey::read(key)?))
        }
        (_, _, Some(hook)) => Some(zone::ZoneWriter::Hook(zone::ZoneHook::new(hook)?)),
        _ => None,
    };
    let zone = config
        .acme
        .acme_dns_zone
        .as_deref()
        .zip(writer)
        .map(|(name, writer)| Zone::new(name, writer))
        .transpose()?;
    Ok(Some(CertificateAuthority {
        directory,
        root: config.acme.acme_root.clone(),
        contact: config.acme.acme_contact.clone(),
        issuer: config.acme.acme_issuer.clone(),
        zone,
        wildcard: config.edge.edge_acme_wildcard,
    }))
}

/// Returns the external OpenID Connect provider, if configured.
fn provider(config: &Config) -> anyhow::Result<Option<OidcProvider>> {
    let (Some(issuer), Some(client_id), Some(file)) = (
        &config.sign_in.oidc_issuer,
        &config.sign_in.oidc_client_id,
        &config.sign_in.oidc_client_secret,
    ) else {
        return Ok(None);
    };
    let secret =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let options = oidc::OidcOptions {
        issuer: issuer.clone(),
        client_id: client_id.clone(),
        client_secret: secret.into(),
        name: config.sign_in.oidc_name.clone(),
        domains: config.sign_in.oidc_email_domains.clone(),
    };
    Ok(Some(OidcProvider::new(options)?))
}

/// Reads the UUID in `file`, or writes a new one. The data folder has two such files: its node id
/// and the installation id of its control database.
fn identity(file: &Path, new: impl FnOnce() -> Uuid) -> anyhow::Result<Uuid> {
    match std::fs::read_to_string(file) {
        Ok(text) => text
            .trim()
            .parse()
            .with_context(|| format!("{} does not contain a UUID", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = new();
            // Renamed, so that a crash never leaves a partial file.
            let unfinished = file.with_extension("tmp");
            std::fs::write(&unfinished, format!("{id}\n"))
                .and_then(|()| std::fs::rename(&unfinished, file))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}
