//! `gantry init`: the configuration file of a first production server, its unit, and the records
//! for the DNS.

mod questions;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use toml::Value;

use super::{command_line::settings, files::replace, server_config::problems};
use crate::app::config::first_file;

/// The unit of the packages, for machines without one.
const UNIT: &str = include_str!("../../dist/systemd/gantry.service");
/// Program and file in the unit of the packages.
const UNIT_COMMAND: &str = "/usr/bin/gantry serve --config /etc/gantry/gantry.toml";
/// Path in the condition of the unit of the packages.
const UNIT_CONDITION: &str = "ConditionPathExists=/etc/gantry/gantry.toml";
/// Unit that a package has installed.
const PACKAGE_UNIT: &str = "usr/lib/systemd/system/gantry.service";

#[derive(Debug, Args)]
pub(super) struct InitCommand {
    #[command(flatten)]
    answers: Answers,
    /// The configuration file to write.
    #[arg(long, value_name = "FILE", default_value = "/etc/gantry/gantry.toml")]
    file: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    /// Take defaults instead of asking.
    #[arg(long)]
    yes: bool,
    /// Folder of units of systemd. The unit is written unless a package has installed it.
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    unit_dir: PathBuf,
}

/// Properties of a first production server. Those that are not given as options are asked for.
#[derive(Debug, Clone, Default, Args)]
struct Answers {
    /// Domain of the installation: the API gets `api.<domain>`, projects `projects.<domain>`.
    #[arg(long)]
    domain: Option<String>,
    /// Folder for the databases of projects and all other data.
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Certificate chain (PEM) for `api.<domain>`. Empty: behind a proxy on this machine.
    #[arg(long, value_name = "FILE")]
    api_certificate: Option<String>,
    /// Private key (PEM) of the certificate of the API.
    #[arg(long, value_name = "FILE")]
    api_key: Option<String>,
    /// Certificate chain (PEM) for `*.projects.<domain>`. Empty: no projects from other machines.
    #[arg(long, value_name = "FILE")]
    projects_certificate: Option<String>,
    /// Private key (PEM) of the certificate of projects.
    #[arg(long, value_name = "FILE")]
    projects_key: Option<String>,
    /// Directory of the ACME authority that issues certificates of custom hostnames. Empty: none.
    #[arg(long, value_name = "URL")]
    acme: Option<String>,
    /// Folder on another disk, or `s3://bucket/prefix`, for backups.
    #[arg(long, value_name = "DIR|URL")]
    backups: Option<String>,
    /// Email address of the first administrator.
    #[arg(long, value_name = "EMAIL")]
    admin: Option<String>,
}

/// The answers with nothing left to ask. Empty texts are absent features.
#[derive(Debug, PartialEq, Eq)]
struct ServerPlan {
    domain: String,
    data: String,
    api_tls: Option<CertificateFiles>,
    projects_tls: Option<CertificateFiles>,
    acme: Option<String>,
    backups: String,
    admin: String,
}

/// Files of a certificate and its private key.
#[derive(Debug, PartialEq, Eq)]
struct CertificateFiles {
    certificate: String,
    key: String,
}

impl InitCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.force || !self.file.exists(),
            "{} exists; name another file with --file, or replace it with --force",
            self.file.display()
        );
        let plan = questions::ask(self.answers, self.yes)?;
        let text = first_file(&settings(), &plan.values())?;
        write_checked(&self.file, &text)?;
        anstream::println!("Wrote {}", self.file.display());
        if !Path::new("/").join(PACKAGE_UNIT).exists() && self.unit_dir.is_dir() {
            let unit = self.unit_dir.join("gantry.service");
            replace(&unit, &unit_text(&self.file)?, 0o644)?;
            anstream::println!("Wrote {}", unit.display());
        }
        anstream::print!("{}", plan.next_steps(&self.file));
        Ok(())
    }
}

/// Writes a configuration file, unless it has problems.
fn write_checked(file: &Path, text: &str) -> anyhow::Result<()> {
    let parent = file.parent().context("the file has no parent folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let draft = file.with_extension("toml.new");
    replace(&draft, text, 0o644)?;
    let problems = problems(&draft);
    if problems.is_empty() {
        return fs::rename(&draft, file)
            .with_context(|| format!("cannot write {}", file.display()));
    }
    let _ = fs::remove_file(&draft);
    anyhow::bail!("nothing was written: {}", problems.join("; "))
}

/// Returns the unit for this program and this configuration file.
fn unit_text(file: &Path) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let file = fs::canonicalize(file)?;
    let command = format!("{} serve --config {}", program.display(), file.display());
    let condition = format!("ConditionPathExists={}", file.display());
    Ok(UNIT
        .replace(UNIT_COMMAND, &command)
        .replace(UNIT_CONDITION, &condition))
}

impl ServerPlan {
    fn api_host(&self) -> String {
        format!("api.{}", self.domain)
    }

    fn projects_domain(&self) -> String {
        format!("projects.{}", self.domain)
    }

    /// Returns the settings that differ from their defaults, by path.
    fn values(&self) -> BTreeMap<&'static str, Value> {
        let list = |texts: &[&str]| Value::from(texts.to_vec());
        let mut values = BTreeMap::from([
            ("data.dir", Value::from(self.data.as_str())),
            (
                "api.public_url",
                Value::from(format!("https://{}", self.api_host())),
            ),
            ("api.listen", Value::from("127.0.0.1:8080")),
            ("projects.domain", Value::from(self.projects_domain())),
        ]);
        if let Some(tls) = &self.api_tls {
            values.insert("api.listen", Value::from("0.0.0.0:443"));
            values.insert("api.tls_cert", Value::from(tls.certificate.as_str()));
            values.insert("api.tls_key", Value::from(tls.key.as_str()));
        }
        if let Some(tls) = &self.projects_tls {
            values.insert("databases.listen", list(&["0.0.0.0:5432", "0.0.0.0:6543"]));
            values.insert("edge.https_listen", list(&["0.0.0.0:8443"]));
            for section in ["databases", "edge"] {
                let (certificate, key) = match section {
                    "databases" => ("databases.tls_cert", "databases.tls_key"),
                    _ => ("edge.tls_cert", "edge.tls_key"),
                };
                values.insert(certificate, Value::from(tls.certificate.as_str()));
                values.insert(key, Value::from(tls.key.as_str()));
            }
        }
        if let Some(acme) = &self.acme {
            values.insert("acme.directory", Value::from(acme.as_str()));
        }
        let backups = if self.backups.contains("://") {
            "backups.url"
        } else {
            "backups.folder"
        };
        values.insert(backups, Value::from(self.backups.as_str()));
        values
    }

    /// Returns the records for the DNS, and the commands that come next.
    fn next_steps(&self, file: &Path) -> String {
        let mut text = String::from("\nRecords for the DNS, with the address of this machine:\n\n");
        let names = [self.api_host(), format!("*.{}", self.projects_domain())];
        for name in names {
            let _ = writeln!(text, "  {name}.  300  IN  A  ADDRESS");
        }
        let file = file.display();
        let admin = &self.admin;
        let _ = write!(
            text,
            "\nNext:\n\n  \
             gantry check --config {file}\n  \
             systemctl enable --now gantry\n  \
             gantry user create --config {file} --email {admin}\n  \
             gantry org create --config {file} --name Main --owner {admin}\n  \
             gantry user sign-in-link --config {file} --email {admin}\n"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> ServerPlan {
        let files = |name: &str| CertificateFiles {
            certificate: format!("/etc/gantry/{name}.pem"),
            key: format!("/etc/gantry/{name}.key"),
        };
        ServerPlan {
            domain: "example.com".to_owned(),
            data: "/var/lib/gantry".to_owned(),
            api_tls: Some(files("api")),
            projects_tls: Some(files("projects")),
            acme: Some("https://acme.example/directory".to_owned()),
            backups: "/srv/backups".to_owned(),
            admin: "ops@example.com".to_owned(),
        }
    }

    fn checked(plan: &ServerPlan) -> (String, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gantry.toml");
        let text = first_file(&settings(), &plan.values()).unwrap();
        fs::write(&file, &text).unwrap();
        (text, problems(&file))
    }

    #[test]
    fn file_of_every_kind_of_server_is_valid() {
        let (text, found) = checked(&plan());
        assert_eq!(found, [""; 0]);
        assert!(
            text.contains("\napi.public_url = \"https://api.example.com\"\n"),
            "{text}"
        );
        assert!(
            text.contains("\nbackups.folder = \"/srv/backups\"\n"),
            "{text}"
        );
        let plain = ServerPlan {
            api_tls: None,
            projects_tls: None,
            acme: None,
            ..plan()
        };
        let (text, found) = checked(&plain);
        assert_eq!(found, [""; 0]);
        assert!(
            text.contains("\napi.listen = \"127.0.0.1:8080\"\n"),
            "{text}"
        );
        assert!(
            text.contains("\n#databases.listen = "),
            "still shown: {text}"
        );
    }

    #[test]
    fn unit_starts_this_program_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("own.toml");
        fs::write(&file, "").unwrap();
        let unit = unit_text(&file).unwrap();
        let file = fs::canonicalize(file).unwrap();
        assert!(unit.contains(&format!("serve --config {}\n", file.display())));
        assert!(unit.contains(&format!("ConditionPathExists={}\n", file.display())));
        assert!(!unit.contains("/etc/gantry"), "{unit}");
    }

    #[test]
    fn records_name_the_api_and_all_projects() {
        let steps = plan().next_steps(Path::new("/etc/gantry/gantry.toml"));
        for name in ["api.example.com.", "*.projects.example.com."] {
            assert!(steps.contains(name), "{steps}");
        }
    }
}
