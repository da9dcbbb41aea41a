//! `gantry import`: import a database, or settings and functions, into a project.

use std::{env, fmt::Write as _};

use anyhow::Context;
use clap::Args;
use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::{
    clusters::Home,
    engines::{Engine, Installed, LayoutOptions},
    supervisor::Account,
};
use secrecy::SecretString;
use tokio_postgres::config::Host;
use url::Url;

use crate::{
    app::config::ControlOptions,
    cli::{output::Output, secret},
    control::import::{
        Import, ImportReport, SourceDatabase,
        settings::{self, RemoteProject, SettingsReport},
    },
};

/// Variable with the password of the source.
const PASSWORD: &str = "PGPASSWORD";
/// Variables with the tokens of the two Management APIs.
const SOURCE_TOKEN: &str = "GANTRY_SOURCE_TOKEN";
const TARGET_TOKEN: &str = "GANTRY_TOKEN";

/// Options of the command.
#[derive(Debug, Args)]
pub(super) struct ImportCommand {
    /// Source: a database such as `postgres://user@host:5432/postgres?sslmode=require`, or a
    /// project behind a Management API such as `https://api.supabase.com/v1/projects/REF`.
    ///
    /// Neither contains a secret: the password of the database is read from `PGPASSWORD` or
    /// standard input, the token of the API from `GANTRY_SOURCE_TOKEN`.
    #[arg(long, value_name = "URL")]
    from: Url,
    /// Ref of the project to import into.
    #[arg(long, value_name = "REF")]
    project: ProjectRef,
    /// Address of this server's Management API, for an import of settings. The token is read from
    /// `GANTRY_TOKEN`.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    to: Url,
    /// Replace objects with the same names, as left by an earlier import.
    #[arg(long)]
    replace: bool,
    /// Only report what would be imported, and what cannot.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    control: ControlOptions,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl ImportCommand {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.from.password().is_none(),
            "--from must not contain a password, because other users can read arguments; set {PASSWORD} instead"
        );
        match self.from.scheme() {
            "postgres" | "postgresql" => {
                let report = self.database()?.run().await?;
                self.output.print(&report, || text(&report))
            }
            "http" | "https" => {
                let (source, target) = (self.source_project()?, self.target_project()?);
                let report = settings::run(&source, &target, self.dry_run).await?;
                self.output.print(&report, || settings_text(&report))
            }
            other => {
                anyhow::bail!("--from must begin with postgres:// or https://, not {other}://")
            }
        }
    }

    fn database(&self) -> anyhow::Result<Import> {
        let home = self.control.home();
        let home = home
            .canonicalize()
            .with_context(|| format!("opening {}", home.display()))?;
        let options = LayoutOptions::beside(&Home::engines_of(&home));
        let installed = Installed::find(
            self.control.postgres_bin.as_deref(),
            &Home::engines_of(&home),
        )?;
        let installed = installed.laid_out(&options, &Entropy::system());
        let data = home
            .join("projects")
            .join(self.project.as_str())
            .join("data");
        anyhow::ensure!(
            data.is_dir(),
            "there is no project {} in {}; run this command on its node, with --data-dir",
            self.project,
            home.display()
        );
        let engine: Engine = installed.fitting(&data).clone();
        let password = match env::var(PASSWORD) {
            Ok(password) => SecretString::from(password),
            Err(_) => secret::ask("Password")?,
        };
        Ok(Import {
            source: self.source_database()?,
            password,
            home,
            project: self.project.clone(),
            engine,
            account: Account::for_servers()?.process_owner(),
            replace: self.replace,
            dry_run: self.dry_run,
        })
    }

    fn source_database(&self) -> anyhow::Result<SourceDatabase> {
        let mut tls = "prefer".to_owned();
        for (name, value) in self.from.query_pairs() {
            match &*name {
                "sslmode" => tls = value.into_owned(),
                other => anyhow::bail!("--from has the unknown parameter {other}; known: sslmode"),
            }
        }
        let mut plain = self.from.clone();
        plain.set_query(None);
        let config: tokio_postgres::Config = plain
            .as_str()
            .parse()
            .context("--from is not a PostgreSQL URL")?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            Some(Host::Unix(folder)) => folder.to_string_lossy().into_owned(),
            None => anyhow::bail!("--from has no host"),
        };
        Ok(SourceDatabase {
            host,
            port: config.get_ports().first().copied().unwrap_or(5432),
            user: config.get_user().unwrap_or("postgres").to_owned(),
            database: config.get_dbname().unwrap_or("postgres").to_owned(),
            tls,
        })
    }

    fn source_project(&self) -> anyhow::Result<RemoteProject> {
        let path = self.from.path().trim_end_matches('/');
        let (base, project) = path
            .rsplit_once("/v1/projects/")
            .context("--from must end with /v1/projects/REF")?;
        let mut api = self.from.clone();
        api.set_path(base);
        Ok(RemoteProject {
            api,
            project: project
                .parse()
                .context("--from must end with a project's ref")?,
            token: token(SOURCE_TOKEN)?,
        })
    }

    fn target_project(&self) -> anyhow::Result<RemoteProject> {
        Ok(RemoteProject {
            api: self.to.clone(),
            project: self.project.clone(),
            token: token(TARGET_TOKEN)?,
        })
    }
}

fn token(name: &str) -> anyhow::Result<SecretString> {
    let value = env::var(name).with_context(|| format!("{name} is not set"))?;
    Ok(value.into())
}

fn text(report: &ImportReport) -> String {
    let mut text = format!("Imported from PostgreSQL {}.", report.source_version);
    let list = |text: &mut String, title: &str, items: &[String]| {
        if !items.is_empty() {
            let _ = write!(text, "\n{title}: {}", items.join(", "));
        }
    };
    list(&mut text, "Schemas", &report.schemas);
    list(&mut text, "Extensions", &report.extensions);
    list(&mut text, "Roles", &report.roles);
    let rows: Vec<String> = report
        .platform_rows
        .iter()
        .map(|(table, count)| format!("{count} in {table}"))
        .collect();
    list(&mut text, "Rows of the platform", &rows);
    lines(&mut text, "Not imported", &report.not_imported);
    lines(
        &mut text,
        "Rejected by the project's server",
        &report.rejected,
    );
    text
}

fn settings_text(report: &SettingsReport) -> String {
    let mut text = format!(
        "Imported {} settings and {} functions.",
        report.settings.len(),
        report.functions.len()
    );
    lines(&mut text, "Secrets to set again", &report.secrets);
    lines(&mut text, "Not imported", &report.not_imported);
    text
}

fn lines(text: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = write!(text, "\n{title}:");
    for item in items {
        let _ = write!(text, "\n  {item}");
    }
}
