//! `gantry generate`: write or check the files generated from the code.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use crate::{
    api::{
        endpoints,
        reference::{events::events, settings::settings, tables},
    },
    app::{
        config,
        monitoring::{alerts, dashboard, metrics},
    },
    cli::{command_line, package_files},
    platform::{context::PublishedLinks, http::openapi::document},
};

#[derive(Debug, Args)]
pub(super) struct GenerateCommand {
    /// Write nothing; fail if a file is out of date.
    #[arg(long)]
    check: bool,
    /// Root folder of the generated files.
    #[arg(long, default_value = ".", value_name = "DIR")]
    dir: PathBuf,
    /// Write the files of a package instead into this folder: man pages, completions and the
    /// example of a configuration file.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["check", "dir"])]
    package: Option<PathBuf>,
}

/// Returns the path and content of every generated file.
fn files() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let document =
        serde_json::to_string_pretty(&document(endpoints::all(), &PublishedLinks::default()))?;
    let server_settings = command_line::settings();
    let mut files = vec![
        ("generated/openapi.json".into(), document + "\n"),
        ("docs/reference/endpoints.md".into(), tables::endpoints()),
        (
            "docs/reference/permissions.md".into(),
            tables::permissions(),
        ),
        ("docs/reference/errors.md".into(), tables::errors()),
        ("docs/reference/logs.md".into(), tables::logs()),
        ("docs/reference/events.md".into(), events()),
        ("docs/reference/metrics.md".into(), metrics::reference()),
        ("docs/reference/settings.md".into(), settings()),
        ("docs/operating/runbook.md".into(), alerts::runbook()),
        ("dist/monitoring/alerts.yaml".into(), alerts::rules()),
        (
            "dist/monitoring/dashboard.json".into(),
            serde_json::to_string_pretty(&dashboard::dashboard())? + "\n",
        ),
        (
            "docs/reference/configuration.md".into(),
            config::reference(&server_settings),
        ),
        (
            "docs/reference/gantry.toml".into(),
            config::example(&server_settings),
        ),
        (
            "generated/server-config.schema.json".into(),
            serde_json::to_string_pretty(&config::schema(&server_settings))? + "\n",
        ),
    ];
    files.extend(
        tables::requests()
            .into_iter()
            .map(|(name, text)| (Path::new("generated/requests").join(name), text)),
    );
    Ok(files)
}

impl GenerateCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if let Some(dir) = self.package {
            return package_files::write(&dir);
        }
        let mut stale = Vec::new();
        for (name, text) in files()? {
            let file = self.dir.join(&name);
            if std::fs::read_to_string(&file).is_ok_and(|present| present == text) {
                continue;
            }
            stale.push(name.display().to_string());
            if !self.check {
                let parent = file
                    .parent()
                    .context("a generated file has no parent folder")?;
                std::fs::create_dir_all(parent)
                    .and_then(|()| std::fs::write(&file, text))
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        if self.check && !stale.is_empty() {
            anyhow::bail!(
                "generated files are out of date: {}; run `gantry generate`",
                stale.join(", ")
            );
        }
        for name in stale {
            anstream::println!("wrote {name}");
        }
        Ok(())
    }
}
