//! Settings of a project's server in addition to its template: check, write, reload.

use std::{
    io::Read,
    process::{Command, Stdio},
    time::Duration,
};

use gantry_base::ids::ProjectRef;
use rustix::process::Signal;
use tokio::time::timeout;

use super::{local_driver::LocalDriver, server::process::Server};
use crate::{
    background::blocking,
    clusters::{home::OVERRIDES, superuser},
    error::{At, ClusterError, Result},
    files,
    supervisor::ProcessHandle,
};

/// The time limit of a check.
const CHECK_PATIENCE: Duration = Duration::from_secs(20);

impl LocalDriver {
    /// Checks settings with the server's own program, without starting it.
    ///
    /// Errors: [`ClusterError::Setting`] with PostgreSQL's message if the settings are invalid.
    pub async fn check_settings(
        &self,
        project: &ProjectRef,
        settings: &[(String, String)],
    ) -> Result<()> {
        let server = self.existing(project)?;
        // Confined like the server, because the program also reads the tenant's configuration.
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

    /// Writes the settings that the server reads at its next start or reload, unless they are
    /// unchanged.
    pub async fn configure(
        &self,
        project: &ProjectRef,
        settings: &[(String, String)],
    ) -> Result<()> {
        let server = self.existing(project)?;
        let mut text = String::new();
        for (name, value) in settings {
            let value = value.replace('\'', "''");
            text.extend([name, " = '", &value, "'\n"]);
        }
        let file = server.data().join(OVERRIDES);
        blocking(move || {
            /// Far more than the size of all settings.
            const BYTES_MAX: u64 = 64 << 10;
            let there = files::read_untrusted(&file, BYTES_MAX).unwrap_or_default();
            if there == text {
                return Ok(());
            }
            // Renamed atomically: the server never reads a partial file, and no link of the tenant
            // is followed.
            files::replace(&file, &text, 0o600, server.run_as())
        })
        .await
    }

    /// Makes a running server read its settings again.
    pub async fn reload(&self, project: &ProjectRef) -> Result<()> {
        let admin = self.superuser_session(project).await?;
        let reloaded = admin.run(&superuser::RELOAD).await;
        reloaded.map_err(|cause| ClusterError::Sql {
            doing: "reloading settings",
            cause,
        })
    }

    /// Returns whether a client has a session open. A stopped server has none.
    pub async fn has_sessions(&self, project: &ProjectRef) -> Result<bool> {
        if self.running(project).await?.is_none() {
            return Ok(false);
        }
        let admin = self.superuser_session(project).await?;
        let row = admin
            .query_one(&superuser::HAS_SESSIONS, &[])
            .await
            .map_err(|cause| ClusterError::Sql {
                doing: "looking for sessions",
                cause,
            })?;
        Ok(row.get(0))
    }
}

/// Kills a process on drop.
pub(super) struct KillOnDrop(pub(super) Option<ProcessHandle>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(|process| process.signal(Signal::KILL)) {
            tracing::warn!(%error, "a process could not be killed");
        }
    }
}

/// Runs a check and returns its success and its output. The process is killed if the future is
/// dropped.
async fn run_check(server: &Server, check: Command) -> Result<(bool, String)> {
    /// The maximum size of the output, which the tenant's configuration could make long.
    const BYTES_MAX: u64 = 64 << 10;
    let mut child = server.run_launcher(check).await?;
    let data = server.data().to_owned();
    let _ended_with_this = KillOnDrop(ProcessHandle::of_child(&child).at("watching", &data)?);
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
