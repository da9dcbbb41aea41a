//! Files that `gantry dev` writes for scripts and for the `supabase` CLI: `dev.env` and
//! `profile.yaml`.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use secrecy::{ExposeSecret, SecretString};

/// The files `dev.env` and `profile.yaml` of a data folder.
pub(super) struct DevFiles {
    dir: PathBuf,
}

impl DevFiles {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Path of the file with shell variables. It contains the token, so its mode is 0600.
    pub(super) fn env(&self) -> PathBuf {
        absolute(&self.dir.join("dev.env"))
    }

    /// Path of the profile that points the `supabase` CLI at this server.
    pub(super) fn profile(&self) -> PathBuf {
        absolute(&self.dir.join("profile.yaml"))
    }

    /// Returns the token and organization that an earlier start wrote.
    pub(super) fn read(&self) -> Option<(SecretString, String)> {
        let text = fs::read_to_string(self.env()).ok()?;
        let value = |name: &str| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
        };
        Some((
            SecretString::from(value("GANTRY_TOKEN")?),
            value("GANTRY_ORG")?,
        ))
    }

    pub(super) fn write(
        &self,
        url: &str,
        token: &SecretString,
        organization: &str,
        project_domain: &str,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot create {}", self.dir.display()))?;
        let env = format!(
            "GANTRY_URL={url}\nGANTRY_TOKEN={}\nGANTRY_ORG={organization}\n",
            token.expose_secret()
        );
        replace(&self.env(), &env, 0o600)?;
        let profile = format!(
            "name: gantry\napi_url: {url}\ndashboard_url: {url}\nproject_host: {project_domain}\npooler_host: {}\n",
            pooler_host(project_domain)
        );
        replace(&self.profile(), &profile, 0o600)
    }
}

/// Domain that hosts of connection strings must belong to: the registrable domain. `localhost`
/// cannot be registered, so the result is then the host itself.
fn pooler_host(project_domain: &str) -> String {
    if project_domain == "localhost" {
        format!("pooler.{project_domain}")
    } else {
        project_domain.to_owned()
    }
}

pub(super) fn replace(file: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let unfinished = file.with_extension("tmp");
    let write = || {
        let _ = fs::remove_file(&unfinished);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&unfinished)?
            .write_all(text.as_bytes())?;
        fs::rename(&unfinished, file)
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.components().collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn written_file_round_trips_and_has_private_mode() {
        let dir = tempfile::tempdir().unwrap();
        let files = DevFiles::new(dir.path());
        assert!(files.read().is_none());
        for _ in 0..2 {
            files
                .write(
                    "http://127.0.0.1:1",
                    &SecretString::from("sbp_x"),
                    "acme",
                    "localhost",
                )
                .unwrap();
        }
        let (token, organization) = files.read().unwrap();
        assert_eq!(
            (token.expose_secret(), organization.as_str()),
            ("sbp_x", "acme")
        );
        assert_eq!(
            fs::metadata(files.env()).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
