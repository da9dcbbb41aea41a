//! `gantry dev`: start Gantry on this machine without configuration.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use gantry_base::ids::UserId;
use gantry_node::{
    clusters::Home,
    engines::{Engine, catalog::DEFAULT_MAJOR, extensions, install::Release},
    kits::{Service, shelf::KitShelf},
};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    api::{
        accounts::{self, sign_in_links},
        organizations, tokens,
    },
    app::config::Config,
    cli::{
        engine::{self, EngineName},
        files::DevFiles,
        listeners::ListenerDefaults,
        serve::{self, ClusterShutdown, DatabaseEndpoints, Running},
        service::{self, InstallableProgram},
    },
    control::services::has_kit,
    platform::access::{credential::SecretDigest, sessions::SessionSecret},
};

#[derive(Debug, Args)]
pub(super) struct DevCommand {
    #[command(flatten)]
    config: Box<Config>,
}

/// Email address of the user that the first start creates. The domain is reserved for examples (RFC
/// 2606).
const FIRST_EMAIL: &str = "owner@example.com";
const FIRST_ORGANIZATION: &str = "First organization";

/// Extensions that the greeting names, if they are installed.
const NAMED_EXTENSIONS: [&str; 6] = ["vector", "pg_cron", "pgaudit", "postgis", "http", "hypopg"];

/// Spare clusters that are started in advance, so that the first project is ready quickly.
const SPARE_CLUSTERS: u16 = 1;

/// User, organization and token that the first start creates and later starts reuse.
struct DevSession {
    token: SecretString,
    organization: String,
    /// Id of the owner of the token.
    owner: UserId,
    /// Whether this start created the token.
    fresh: bool,
}

impl DevCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut config = *self.config;
        config.projects.spare_clusters.get_or_insert(SPARE_CLUSTERS);
        provide_engine(&config).await?;
        let kits = KitProvision::of(&config);
        let files = DevFiles::new(&config.control.data_dir);
        let scheme = if config.api.tls_cert.is_some() {
            "https"
        } else {
            "http"
        };
        let project_domain = config.projects.project_domain.clone();
        let mut running = serve::start(config, ListenerDefaults::Local).await?;
        // Not before: the start checks everything that it needs.
        kits.install().await;
        let used = greet_and_wait(&mut running, &files, scheme, &project_domain).await;
        // Stop all started processes, also after an error.
        let stopped = running.stop(ClusterShutdown::Stop).await;
        used.and(stopped)
    }
}

/// Installs the engine with the most extensions into the data folder, unless an installed version
/// is configured or has the extension `vector`. If that fails, an installed version is used, or
/// that of the npm registry.
async fn provide_engine(config: &Config) -> anyhow::Result<()> {
    // The start itself reports every other problem.
    let Ok(installed) = serve::installed(config) else {
        return Ok(());
    };
    if config.control.postgres_bin.is_some() || installed.has_vector(DEFAULT_MAJOR) {
        return Ok(());
    }
    let usable = installed.offer(serve::old_versions(config));
    let home = config.control.home();
    Home::create(&home)?;
    let best = EngineName::best(DEFAULT_MAJOR);
    anstream::eprintln!("Installing {best} with its extensions into the data folder …");
    let Err(failed) = engine::install(&home, best, Release::Pinned).await else {
        return Ok(());
    };
    anstream::eprintln!("Installing {best} failed: {failed:#}");
    let Err(missing) = usable else {
        return Ok(());
    };
    let other = EngineName::npm(DEFAULT_MAJOR);
    anstream::eprintln!("Installing {other} into the data folder …");
    engine::install(&home, other, Release::Pinned)
        .await
        .with_context(|| missing.to_string())?;
    Ok(())
}

/// The decision which programs of services `gantry dev` installs.
struct KitProvision {
    home: PathBuf,
    missing: Vec<InstallableProgram>,
}

impl KitProvision {
    /// Decides by the configuration: installed programs and upstreams are used as they are.
    fn of(config: &Config) -> Self {
        let home = config.control.home();
        let shelf = KitShelf::new(config.services.services_dir.clone(), Home::kits_of(&home));
        let mut missing = Vec::new();
        for service in [Service::Rest, Service::Functions, Service::Pooler] {
            let mut upstreams = config.services.upstream.iter();
            let has_upstream = upstreams.any(|upstream| upstream.service == service);
            if !has_upstream && matches!(shelf.find(service), Ok(None)) {
                missing.push(InstallableProgram::Service(service));
            }
        }
        if matches!(shelf.find_diff(), Ok(None)) {
            missing.push(InstallableProgram::SchemaDiff);
        }
        Self { home, missing }
    }

    /// Installs the missing programs. Prints the reason if that fails: everything else works
    /// without them.
    async fn install(&self) {
        for missing in &self.missing {
            let (program, purpose, verb) = match missing {
                InstallableProgram::SchemaDiff => {
                    ("pg-delta", "comparison of the schemas of branches", "is")
                }
                InstallableProgram::Service(Service::Functions) => {
                    ("Deno", "Edge Functions of projects", "are")
                }
                InstallableProgram::Service(Service::Pooler) => {
                    ("PgBouncer", "connection pooler of projects", "is")
                }
                InstallableProgram::Service(_) => ("PostgREST", "Data API of projects", "is"),
            };
            anstream::eprintln!("Installing {program} for the {purpose} into the data folder …");
            if let Err(error) = service::install_program(&self.home, *missing).await {
                anstream::eprintln!(
                    "The {purpose} {verb} not available: {error:#}. \
                     Install it later with: gantry service install {missing}"
                );
            }
        }
    }
}

/// Prints the addresses and credentials, then waits for a shutdown signal.
async fn greet_and_wait(
    running: &mut Running,
    files: &DevFiles,
    scheme: &str,
    project_domain: &str,
) -> anyhow::Result<()> {
    let url = format!("{scheme}://{}", running.address);
    let start = open_session(running, files).await?;
    files.write(&url, &start.token, &start.organization, project_domain)?;
    let link = sign_in_link(running, &start, &url).await?;
    print_greeting(running, files, &url, &start, &link);
    running.wait().await;
    anstream::eprintln!("\nStopping …");
    Ok(())
}

/// Returns the user, organization and token of an earlier start, or creates them.
async fn open_session(running: &Running, files: &DevFiles) -> anyhow::Result<DevSession> {
    let app = &running.app;
    if let Some((token, organization)) = files.read()
        && let Some(user) = app
            .directory
            .token_user(
                &SecretDigest::of(token.expose_secret()),
                Ipv4Addr::LOCALHOST.into(),
                app.clock.ticks(),
            )
            .await?
    {
        return Ok(DevSession {
            token,
            organization,
            owner: user.id,
            fresh: false,
        });
    }
    let now = app.clock.now();
    let owner = match accounts::by_email(&app.db, FIRST_EMAIL).await {
        Ok(owner) => owner,
        Err(crate::platform::error::Error::NotFound) => {
            accounts::create(&app.db, &app.entropy, FIRST_EMAIL, None, now, None).await?
        }
        Err(error) => return Err(error.into()),
    };
    let organization = match organizations::list(&app.db, owner.id, None)
        .await?
        .into_iter()
        .next()
    {
        Some(organization) => organization,
        None => {
            organizations::create(
                &app.db,
                &app.entropy,
                FIRST_ORGANIZATION,
                None,
                owner.id,
                now,
                None,
            )
            .await?
        }
    };
    let minted = tokens::mint_classic(&app.entropy);
    tokens::create(&app.db, owner.id, "gantry dev", &minted, now, None, None)
        .await
        .context("making the first token")?;
    Ok(DevSession {
        token: minted.token,
        organization: organization.slug().to_string(),
        owner: owner.id,
        fresh: true,
    })
}

/// Returns a sign-in link, so that the first visit of the web pages needs no password.
async fn sign_in_link(running: &Running, start: &DevSession, url: &str) -> anyhow::Result<String> {
    let app = &running.app;
    let link = SessionSecret::generate(&app.entropy);
    sign_in_links::create(&app.db, start.owner, &link, app.clock.now()).await?;
    Ok(format!("{url}{}", sign_in_links::path(&link)))
}

fn print_greeting(running: &Running, files: &DevFiles, url: &str, start: &DevSession, link: &str) {
    let bold = anstyle::Style::new().bold();
    let env = files.env();
    let profile = files.profile();
    let env = quoted(&env);
    let profile = quoted(&profile);
    let token = if start.fresh {
        format!(
            "{}  (shown once; kept in {env})",
            start.token.expose_secret()
        )
    } else {
        format!("in {env}")
    };
    let bearer = if start.fresh {
        start.token.expose_secret().to_owned()
    } else {
        format!("$(. {env}; echo $GANTRY_TOKEN)")
    };
    let engines = running.app.driver.engines();
    let engine = engines.default_engine().text();
    let extensions = extensions(engines.default_engine());
    let databases = databases(running);
    let services = services(running);
    anstream::println!(
        "\n{bold}Gantry is ready.{bold:#}  PostgreSQL {engine}\n\
         \n  Extensions  {extensions}\
         \n  API         {url}\
         \n  Reference   {url}/docs\
         \n  Databases   {databases}\
         \n  Services    {services}\
         \n  Pages       {link}  (signs you in, once, within 15 minutes)\
         \n  Token       {token}\
         \n  Variables   . {env}\
         \n  CLI         export SUPABASE_PROFILE={profile} SUPABASE_ACCESS_TOKEN=$GANTRY_TOKEN\n\
         \nCreate a project, a real PostgreSQL cluster:\n\
         \n  curl -s {url}/v1/projects -H 'Content-Type: application/json' \\\
         \n    -H \"Authorization: Bearer {bearer}\" \\\
         \n    -d '{{\"name\": \"first\", \"organization_slug\": \"{organization}\", \"db_pass\": \"correct horse battery staple\"}}'\n\
         \nCtrl-C stops everything; the next start finds it again.\n",
        organization = start.organization,
    );
}

/// Formats the extensions that projects can create: names of those that are not part of
/// PostgreSQL, and the number of all.
fn extensions(engine: &Engine) -> String {
    let permitted: Vec<&str> = extensions::PERMITTED
        .iter()
        .copied()
        .filter(|name| engine.has_extension(name))
        .collect();
    let named: Vec<&str> = NAMED_EXTENSIONS
        .iter()
        .copied()
        .filter(|name| permitted.contains(name))
        .collect();
    match named.as_slice() {
        [] => format!("{} of PostgreSQL itself", permitted.len()),
        named => format!(
            "{} and {} more  (gantry extension list)",
            named.join(", "),
            permitted.len() - named.len()
        ),
    }
}

/// Formats the database addresses for terminal output.
fn databases(running: &Running) -> String {
    let DatabaseEndpoints {
        addresses,
        taken,
        authority,
    } = &running.databases;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let taken: Vec<_> = taken.iter().map(ToString::to_string).collect();
    let instead = if taken.is_empty() {
        String::new()
    } else {
        format!("  ({} in use by another program)", taken.join(" and "))
    };
    let trust = authority
        .as_deref()
        .map(|file| format!("\n              sslrootcert={}", quoted(file)))
        .unwrap_or_default();
    let first = addresses.first().map_or("", String::as_str);
    format!(
        "{}{instead}\n              psql postgresql://postgres.<ref>@{first}/postgres{trust}",
        addresses.join(", ")
    )
}

/// Formats the addresses of project services for terminal output.
fn services(running: &Running) -> String {
    let port = running
        .services
        .first()
        .map(SocketAddr::port)
        .unwrap_or_default();
    let domain = &running.app.settings.project_domain;
    let trust = running
        .databases
        .authority
        .as_deref()
        .map(|file| format!("\n              certificate authority: {}", quoted(file)))
        .unwrap_or_default();
    let paths = if has_kit(&running.app, Service::Rest) {
        "/rest/v1; /auth/v1, … after --upstream is set"
    } else {
        "/rest/v1, /auth/v1, … after --upstream is set"
    };
    format!("https://<ref>.{domain}:{port}{paths}{trust}")
}

/// Quotes a path for a POSIX shell if it contains special characters.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let safe = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&byte));
    if safe {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_shell_characters_is_quoted() {
        let cases = [
            ("/var/lib/gantry-1", "/var/lib/gantry-1"),
            ("/my data", "'/my data'"),
            ("/it's $HOME", r"'/it'\''s $HOME'"),
        ];
        for (path, text) in cases {
            assert_eq!(quoted(Path::new(path)), text);
        }
    }
}
