//! `gantry check`: check the requirements of this machine.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use gantry_node::{
    clusters::Home,
    engines::{Engine, extensions},
    supervisor::{Account, namespaces_available, sandbox_available},
};
use serde::Serialize;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

use crate::{
    app::config::Config,
    cli::{control, listeners::can_bind, output::Output, serve},
    control::installation,
};

#[derive(Debug, Args)]
pub(super) struct CheckCommand {
    #[command(flatten)]
    config: Box<Config>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A requirement of Gantry.
#[derive(Debug, Serialize)]
pub(super) struct Requirement {
    pub(super) what: &'static str,
    pub(super) ok: bool,
    /// Whether Gantry cannot start without this requirement.
    pub(super) needed: bool,
    pub(super) detail: String,
}

impl CheckCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let findings = requirements(&self.config).await;
        let line = |finding: &Requirement| {
            let mark = if finding.ok {
                "ok  "
            } else if finding.needed {
                "NO  "
            } else {
                "warn"
            };
            format!("{mark}  {:<12} {}", finding.what, finding.detail)
        };
        self.output.print(&findings, || {
            findings.iter().map(line).collect::<Vec<_>>().join("\n")
        })?;
        match findings
            .iter()
            .filter(|finding| finding.needed && !finding.ok)
            .count()
        {
            0 => Ok(()),
            missing => anyhow::bail!("{missing} required checks failed"),
        }
    }
}

/// Checks the requirements of a server with these settings.
pub(super) async fn requirements(config: &Config) -> Vec<Requirement> {
    let engine =
        serve::installed(config).and_then(|installed| installed.offer(serve::old_versions(config)));
    let home = config.control.home();
    let address = config.api.listen;
    let free = can_bind(address).await;
    let extensions = match &engine {
        Ok(engines) => extensions(engines.default_engine()),
        Err(_) => Requirement {
            what: "extensions",
            ok: false,
            needed: false,
            detail: "no engine for projects".to_owned(),
        },
    };
    let mut findings = vec![
        needed(
            "postgresql",
            engine.map(|engines| engines.default_engine().to_string()),
        ),
        extensions,
        needed(
            "account",
            Account::for_servers().map(|account| format!("servers run as {}", account.name)),
        ),
        needed(
            "data folder",
            if Home::reachable(&home) {
                Ok(home.display().to_string())
            } else {
                Err(format!("{} is closed to servers", home.display()))
            },
        ),
        needed("transport", config.check().map(|()| format!("{address}"))),
        Requirement {
            what: "address",
            ok: free,
            needed: false,
            detail: if free {
                format!("{address} is free")
            } else {
                format!("{address} is in use, possibly by Gantry itself")
            },
        },
        isolation(),
        Requirement {
            what: "sandbox",
            ok: sandbox_available(),
            needed: false,
            detail: if sandbox_available() {
                "Landlock and seccomp confine project clusters".into()
            } else {
                "Landlock or seccomp is not available: project clusters are not confined".into()
            },
        },
        namespaces(),
    ];
    findings.push(backups(config).await);
    if !config.databases.db_listen.is_empty() {
        findings.push(database_name(config).await);
    }
    if !config.edge.edge_https_listen.is_empty() {
        findings.push(service_names(&config.projects.project_domain).await);
    }
    findings
}

/// Checks whether the code of projects sees names of its own instead of those of the machine.
fn namespaces() -> Requirement {
    let ok = namespaces_available();
    let detail = if ok {
        "the code of projects sees neither the machine's host name nor its account names"
    } else {
        "not permitted, which needs root and CAP_SYS_ADMIN: the code of projects can read the machine's host name and account names"
    };
    Requirement {
        what: "namespaces",
        ok,
        needed: false,
        detail: detail.to_owned(),
    }
}

/// Time limit of asking the control database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks whether backups outlive this machine, and can be read then.
async fn backups(config: &Config) -> Requirement {
    let checked = can_recover(config).await;
    let (ok, detail) = match checked {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    Requirement {
        what: "backups",
        ok,
        needed: false,
        detail,
    }
}

async fn can_recover(config: &Config) -> Result<String, String> {
    let home = config.control.home();
    let place = &config.backups.place;
    if config.backups.no_backups {
        return Err("backups are switched off".to_owned());
    }
    let folder = place.folder(&home);
    if place.backups_url.is_none() && folder.starts_with(&home) {
        return Err(installation::IN_DATA_FOLDER.to_owned());
    }
    let shown = place.backups_url.clone();
    let shown = shown.unwrap_or_else(|| folder.display().to_string());
    let asked = async {
        let db = control::running(&config.control).ok()?;
        installation::key_is_exported(&db).await.ok()
    };
    match timeout(DATABASE_TIMEOUT, asked).await.ok().flatten() {
        Some(true) => Ok(format!(
            "stored in {shown}, and the sealing key was exported"
        )),
        Some(false) => Err(installation::KEY_NOT_EXPORTED.to_owned()),
        None => Err(format!(
            "stored in {shown}; whether the sealing key was exported is only known while the server runs"
        )),
    }
}

/// Checks whether clients reach databases by name: the host in connection strings resolves, and its
/// port 5432, which the `supabase` CLI always uses, is open or free.
async fn database_name(config: &Config) -> Requirement {
    let default = || format!("pooler.{}", config.projects.project_domain);
    let host = config.databases.db_host.clone().unwrap_or_else(default);
    let checked = resolve_and_connect(&host, &config.databases.db_listen).await;
    let (ok, detail) = match checked {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    Requirement {
        what: "name",
        ok,
        needed: false,
        detail,
    }
}

/// Checks whether the names of projects' services resolve: `<ref>.<domain>`, of any project.
async fn service_names(domain: &str) -> Requirement {
    let host = format!("{EXAMPLE_REF}.{domain}");
    let found = timeout(NAME_TIMEOUT, lookup_host((host.as_str(), 0))).await;
    let address = found.ok().and_then(|found| found.ok()?.next());
    let detail = match address {
        Some(address) => format!("<ref>.{domain} is {}", address.ip()),
        None if domain == "localhost" || domain.ends_with(".localhost") => format!(
            "<ref>.{domain} does not resolve here: browsers and curl need no name server for it, other programs do"
        ),
        None => format!(
            "<ref>.{domain} does not resolve here: the services of projects need the DNS record *.{domain}"
        ),
    };
    Requirement {
        what: "services",
        ok: address.is_some(),
        needed: false,
        detail,
    }
}

/// A reference in the form of those of projects.
const EXAMPLE_REF: &str = "abcdefghijklmnopqrst";
/// The port that the `supabase` CLI connects to.
const CLIENT_PORT: u16 = 5432;
/// Maximum time of a name look-up, and of a connection.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

async fn resolve_and_connect(host: &str, listen: &[SocketAddr]) -> Result<String, String> {
    let found = timeout(NAME_TIMEOUT, lookup_host((host, CLIENT_PORT))).await;
    let first = found.ok().and_then(|found| found.ok()?.next());
    let Some(address) = first else {
        return Err(format!(
            "{host} does not resolve here: `supabase db push` needs it; add it to the DNS zone or to /etc/hosts"
        ));
    };
    if !listen.iter().any(|listen| listen.port() == CLIENT_PORT) {
        return Err(format!(
            "{host} resolves, but no --db-listen has port {CLIENT_PORT}, which the supabase CLI always uses"
        ));
    }
    if let Ok(Ok(_)) = timeout(NAME_TIMEOUT, TcpStream::connect(address)).await {
        return Ok(format!(
            "{host} is {}, port {CLIENT_PORT} is open",
            address.ip()
        ));
    }
    let mut free = false;
    for listen in listen.iter().filter(|listen| listen.port() == CLIENT_PORT) {
        let reaches = listen.ip().is_unspecified() || listen.ip() == address.ip();
        free |= reaches && can_bind(*listen).await;
    }
    let ip = address.ip();
    if free {
        Ok(format!("{host} is {ip}, port {CLIENT_PORT} is free"))
    } else {
        Err(format!(
            "{host} is {ip}, and port {CLIENT_PORT} does not answer there"
        ))
    }
}

/// Checks whether the default engine has the extensions that applications use most.
fn extensions(engine: &Engine) -> Requirement {
    let permitted = extensions::PERMITTED
        .iter()
        .filter(|name| engine.has_extension(name))
        .count();
    let missing: Vec<&str> = ["vector", "pg_cron"]
        .into_iter()
        .filter(|name| !engine.has_extension(name))
        .collect();
    let detail = if missing.is_empty() {
        format!("{permitted} can be created, among them vector and pg_cron")
    } else {
        format!(
            "{permitted} can be created, without {}; install an engine that has them: gantry engine install 17",
            missing.join(" and ")
        )
    };
    Requirement {
        what: "extensions",
        ok: missing.is_empty(),
        needed: false,
        detail,
    }
}

/// Checks whether each project can have its own user id.
fn isolation() -> Requirement {
    let ok = Account::current().is_ok_and(|account| account.uid == 0);
    let detail = if ok {
        "each project has a user id of its own"
    } else {
        "not running as root: all projects share one user id"
    };
    Requirement {
        what: "user ids",
        ok,
        needed: false,
        detail: detail.into(),
    }
}

fn needed<E: std::fmt::Display>(what: &'static str, found: Result<String, E>) -> Requirement {
    match found {
        Ok(detail) => Requirement {
            what,
            ok: true,
            needed: true,
            detail,
        },
        Err(error) => Requirement {
            what,
            ok: false,
            needed: true,
            detail: error.to_string(),
        },
    }
}
