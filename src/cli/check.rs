//! `gantry check`: check the requirements of this machine.

use clap::Args;
use serde::Serialize;

use crate::{
    app::config::Config,
    cli::{output::Output, serve},
    data_plane::clusters::{Account, Engine, Home, extensions, sandbox_available},
};

#[derive(Debug, Args)]
pub(super) struct CheckCommand {
    #[command(flatten)]
    config: Box<Config>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Requirement {
    what: &'static str,
    ok: bool,
    /// Whether Gantry can start without this requirement.
    needed: bool,
    detail: String,
}

impl CheckCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let findings = self.check_all().await;
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

    async fn check_all(&self) -> Vec<Requirement> {
        let control = &self.config.control;
        let engine = serve::installed(&self.config)
            .and_then(|installed| installed.offer(serve::old_versions(&self.config)));
        let home = control.home();
        let address = self.config.listen;
        let free = serve::can_bind(address).await;
        let extensions = match &engine {
            Ok(engines) => extensions(engines.default_engine()),
            Err(_) => Requirement {
                what: "extensions",
                ok: false,
                needed: false,
                detail: "no engine for projects".to_owned(),
            },
        };
        vec![
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
            needed(
                "transport",
                self.config.check().map(|()| format!("{address}")),
            ),
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
        ]
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
