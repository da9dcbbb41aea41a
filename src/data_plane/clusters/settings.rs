//! Settings of a project's server beside those of its template: checked, written, put in force.

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use tokio::time::timeout;

use super::{At, ClusterError, LocalDriver, Result, blocking, files, server::Server};
use crate::base::{
    ids::ProjectRef,
    supervisor::{ProcessHandle, ProcessOwner},
};

/// Included at the end of the template's configuration.
const FILE: &str = "overrides.conf";
/// The program only reads its configuration.
const CHECK_PATIENCE: Duration = Duration::from_secs(20);

impl LocalDriver {
    /// Has the server's own program read these settings, without starting it. Its complaint is [`ClusterError::Setting`].
    pub async fn check_settings(
        &self,
        project: &ProjectRef,
        settings: &[(String, String)],
    ) -> Result<()> {
        let server = self.existing(project)?;
        // Confined like the server itself: the configuration it reads beside these settings is the tenant's.
        let settings = settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut check = server.launcher(Some(settings), server.limits());
        check.stdout(Stdio::null()).stderr(Stdio::piped());
        let run = timeout(CHECK_PATIENCE, run_check(&server, check)).await;
        let (success, said) = run.map_err(|_| {
            ClusterError::Setting("the settings could not be checked in time".to_owned())
        })??;
        if success {
            return Ok(());
        }
        let complaint = said
            .lines()
            .find_map(|line| Some(line.split_once("FATAL:")?.1.trim()));
        Err(ClusterError::Setting(
            complaint
                .unwrap_or("the server does not accept these settings")
                .to_owned(),
        ))
    }

    /// Writes the settings where the server reads them at its next start or reload. Does nothing if they are there.
    pub async fn configure(
        &self,
        project: &ProjectRef,
        settings: &[(String, String)],
    ) -> Result<()> {
        let server = self.existing(project)?;
        let line = |(name, value): &(String, String)| {
            format!("{name} = '{}'\n", value.replace('\'', "''"))
        };
        let text: String = settings.iter().map(line).collect();
        let file = server.data().join(FILE);
        blocking(move || {
            /// Far more than all settings there are.
            const BYTES_MAX: u64 = 64 << 10;
            let there = files::read_untrusted(&file, BYTES_MAX).unwrap_or_default();
            if there == text {
                return Ok(());
            }
            // Renamed in place, so that the server never reads half of it, and a link of the tenant's is not followed.
            let unfinished = file.with_extension("new");
            files::remove_file(&unfinished)?;
            write_new(&unfinished, &text, server.run_as())?;
            files::commit(&unfinished, &file)
        })
        .await
    }

    /// Has a running server read its settings again.
    pub async fn reload(&self, project: &ProjectRef) -> Result<()> {
        let admin = self.admin_session(project).await?;
        let reloaded = admin.batch_execute("select pg_reload_conf()").await;
        reloaded.map_err(|cause| ClusterError::Sql {
            doing: "reloading settings",
            cause,
        })
    }

    /// Whether somebody has a session open. A server that does not run has none.
    pub async fn has_sessions(&self, project: &ProjectRef) -> Result<bool> {
        if self.running(project).await?.is_none() {
            return Ok(false);
        }
        let admin = self.admin_session(project).await?;
        let sql = "select exists (select from pg_stat_activity where backend_type in ('client backend', 'walsender') and pid <> pg_backend_pid())";
        let row = admin
            .query_one(sql, &[])
            .await
            .map_err(|cause| ClusterError::Sql {
                doing: "looking for sessions",
                cause,
            })?;
        Ok(row.get(0))
    }
}

/// Ends a process with this value.
struct KillOnDrop(Option<ProcessHandle>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(|process| process.signal(Signal::KILL)) {
            tracing::warn!(%error, "a check of settings could not be ended");
        }
    }
}

/// Whether the program accepts its settings, and what it says. The process ends with the future.
async fn run_check(server: &Server, check: Command) -> Result<(bool, String)> {
    /// A complaint is a few lines; what a tenant's configuration makes it say beyond that is not read.
    const BYTES_MAX: u64 = 64 << 10;
    let mut child = server.run_launcher(check).await?;
    let data = server.data().to_owned();
    let pid = Pid::from_raw(child.id().cast_signed());
    let _ended_with_this = KillOnDrop(
        pid.map(ProcessHandle::open)
            .transpose()
            .at("watching", &data)?
            .flatten(),
    );
    blocking(move || {
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            stderr
                .take(BYTES_MAX)
                .read_to_end(&mut said)
                .at("reading what PostgreSQL says of", &data)?;
        }
        let success = child.wait().at("waiting for", &data)?.success();
        Ok((success, String::from_utf8_lossy(&said).into_owned()))
    })
    .await
}

/// Writes a file that is not there yet and hands it over. Only the open file is changed: the tenant can put another in the
/// place of its name at any time.
fn write_new(path: &Path, text: &str, owner: ProcessOwner) -> Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};

    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .at("writing", path)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .at("writing", path)?;
    owner.own_file(&file).at("handing over", path)
}
