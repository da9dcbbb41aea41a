//! `gantry doctor`: examines an installation and collects a redacted report.

mod bundle;
mod installation;
mod machine;
mod redaction;
mod result;
mod server;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::Args;
use gantry_base::{clock::Clock, files::read_start};
use gantry_node::clusters::Home;

use self::{
    bundle::{BundleFile, end_of_log, newest_log},
    installation::InstallationReport,
    redaction::Redactor,
    result::{CheckOutcome, CheckResult, CheckSubject, summary},
    server::ServerReport,
};
use super::{
    Command,
    command_line::{CommandLine, SettingValue, secret_variables, settings},
    output::Output,
    serve,
    server_config::{parsed_without_problems, shown_values},
};
use crate::app::config::Config;

const CONFIGURATION: CheckSubject = CheckSubject::new("configuration", "the file of --config");
/// Largest configuration file that is searched for secrets, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Checks of this process, which are left out if the server reports its own state.
const REPORTED_BY_SERVER: [&str; 4] = ["user ids", "sandbox", "namespaces", "control groups"];

#[derive(Debug, Args)]
pub(super) struct DoctorCommand {
    /// Archive for the report: findings, versions, configuration, state, kernel and logs, without
    /// secrets. The name ends with `.tar.zst` or `.tar.gz`.
    #[arg(long, value_name = "FILE")]
    bundle: Option<BundleFile>,
    /// File with the log of the server, for the archive. Default: none, as the server logs to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[command(flatten)]
    config: Box<Config>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl DoctorCommand {
    /// Examines the installation with the settings of the command line `line` and of a file.
    pub(super) async fn run(
        self,
        line: &CommandLine,
        values: BTreeMap<String, SettingValue>,
        file: Option<PathBuf>,
    ) -> anyhow::Result<()> {
        let settings = ServerSettings::read(self.config, values, line, file);
        let report = settings.examine().await;
        self.output
            .print(&report.results, || summary(&report.results))?;
        if let Some(bundle) = &self.bundle {
            let files = report.files(&settings, self.log_file.as_deref())?;
            bundle.write(&files, &report.redactor, Clock::system().now())?;
            anstream::eprintln!("gantry: the report was written to {bundle}");
        }
        let is_problem = |result: &&CheckResult| result.outcome == CheckOutcome::Problem;
        match report.results.iter().filter(is_problem).count() {
            0 => Ok(()),
            problems => anyhow::bail!("{problems} problems found"),
        }
    }
}

/// The settings of the server, as far as they are valid.
struct ServerSettings {
    config: Box<Config>,
    values: BTreeMap<String, SettingValue>,
    file: Option<PathBuf>,
    /// Problems of the file, with line and column.
    problems: Vec<String>,
}

impl ServerSettings {
    /// Adds the settings of a file to those of flags and variables.
    fn read(
        config: Box<Config>,
        values: BTreeMap<String, SettingValue>,
        line: &CommandLine,
        file: Option<PathBuf>,
    ) -> Self {
        let mut settings = Self {
            config,
            values,
            file,
            problems: Vec::new(),
        };
        if let Some(file) = &settings.file {
            let (problems, parsed) = parsed_without_problems(line, file);
            settings.problems = problems;
            if let Some(parsed) = parsed
                && let Command::Doctor(doctor) = parsed.cli.command
            {
                settings.config = doctor.config;
                settings.values = parsed.values;
            }
        }
        settings
    }

    async fn examine(&self) -> DoctorReport {
        let (config, clock) = (&self.config, Clock::system());
        let mut secret_files = machine::secret_files(config);
        secret_files.extend(self.file.clone().filter(|file| self.is_secret(file)));
        let ServerReport {
            results: of_server,
            health,
        } = server::examine(config).await;
        let InstallationReport {
            results: of_installation,
            status,
        } = installation::examine(&config.control, &clock).await;
        let mut of_machine = machine::examine(config, &secret_files, clock.now()).await;
        if health.is_some() {
            of_machine.retain(|result| !REPORTED_BY_SERVER.contains(&result.name));
        }
        let mut results = self.configuration();
        results.extend(of_server);
        results.extend(of_installation);
        results.extend(of_machine);
        let redactor = Redactor::new(self.secrets().chain(secret_variables()));
        for result in &mut results {
            result.redact(&redactor);
        }
        results.sort_by_key(|result| result.outcome);
        DoctorReport {
            results,
            redactor,
            health,
            status: serde_json::to_string_pretty(&status).ok(),
        }
    }

    fn configuration(&self) -> Vec<CheckResult> {
        let Some(file) = &self.file else {
            return vec![CONFIGURATION.ok("no file is used")];
        };
        let remedy = "Correct the file; `gantry server-config check` checks it alone.";
        let problems = self.problems.iter();
        let results: Vec<_> = problems
            .map(|problem| CONFIGURATION.problem(problem, remedy))
            .collect();
        if results.is_empty() {
            vec![CONFIGURATION.ok(format!("{} is valid", file.display()))]
        } else {
            results
        }
    }

    /// Returns the values of secret settings.
    fn secrets(&self) -> impl Iterator<Item = String> {
        let secret = settings().into_iter().filter(|setting| setting.is_secret);
        secret.filter_map(|setting| {
            let value = self.values.get(&setting.flag)?;
            Some(value.text.to_string_lossy().into_owned())
        })
    }

    /// Whether a configuration file contains a secret itself, not only the name of its file.
    fn is_secret(&self, file: &Path) -> bool {
        let text = read_start(file, FILE_BYTES_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        self.secrets().any(|secret| text.contains(&secret))
    }
}

/// The results, and the content of an archive about them.
struct DoctorReport {
    /// Problems first.
    results: Vec<CheckResult>,
    redactor: Redactor,
    health: Option<String>,
    status: Option<String>,
}

impl DoctorReport {
    /// Returns the files of the archive: names and contents.
    fn files(
        &self,
        settings: &ServerSettings,
        log: Option<&Path>,
    ) -> anyhow::Result<Vec<(&'static str, String)>> {
        let config = &settings.config;
        let shown = shown_values(&settings.values, true);
        let shown = shown.iter().map(|value| format!("{value}\n"));
        let mut files = vec![
            (
                "findings.json",
                serde_json::to_string_pretty(&self.results)?,
            ),
            ("versions.txt", versions(config)),
            ("configuration.txt", shown.collect()),
            ("kernel.txt", machine::kernel()),
        ];
        files.extend(self.status.clone().map(|status| ("status.json", status)));
        files.extend(self.health.clone().map(|health| ("health.txt", health)));
        let control_log = Home::control_data_of(&config.control.home()).join("log");
        let logs = [
            ("gantry.log", log.map(ToOwned::to_owned)),
            ("control-database.log", newest_log(&control_log)),
        ];
        let mut notes = README.to_owned();
        for (name, path) in logs {
            let Some(path) = path else { continue };
            match end_of_log(&path) {
                Ok(text) => files.push((name, text)),
                Err(error) => {
                    let path = path.display();
                    let _ = writeln!(notes, "{name} is missing: cannot read {path}: {error}");
                }
            }
        }
        files.push(("README.txt", notes));
        Ok(files)
    }
}

/// Begin of the description of an archive.
const README: &str = "\
A report of `gantry doctor`. Secrets are replaced by [redacted]; read it before you pass it on.

findings.json         results of all checks, problems first
versions.txt          Gantry and the installed versions of PostgreSQL
configuration.txt     settings with their sources
kernel.txt            features, limits and memory of the machine
status.json           as `gantry status`, if the control database answered
health.txt            /healthz and /readyz, if --admin-listen is set and answered
gantry.log            the end of the server's log, if --log-file was given
control-database.log  the end of the log of the control cluster, if there is one

Gantry logs to standard error. With systemd, this prints the end of its log:
    journalctl -u gantry -n 2000
";

fn versions(config: &Config) -> String {
    let engines = match serve::installed(config) {
        Ok(installed) => installed.all().iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    };
    format!(
        "gantry {}\n{}\n",
        env!("CARGO_PKG_VERSION"),
        engines.join("\n")
    )
}
