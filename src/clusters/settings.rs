//! Settings of a project's server beside those of its template: checked, written, put in force.

use std::{fs, path::Path, process::Stdio, time::Duration};

use tokio::process::Command;

use super::{At, ClusterError, Embedded, Result, blocking, files};
use crate::ids::ProjectRef;

/// Included at the end of the template's configuration.
const FILE: &str = "overrides.conf";
/// The program only reads its configuration.
const CHECK_PATIENCE: Duration = Duration::from_secs(20);

impl Embedded {
    /// Has the server's own program read these settings, without starting it. Its complaint is [`ClusterError::Setting`].
    pub async fn check_settings(&self, project: &ProjectRef, settings: &[(String, String)]) -> Result<()> {
        let server = self.existing(project)?;
        let program = server.engine().program("postgres");
        let mut check = Command::new(&program);
        check.args(["-C", "max_connections", "-D"]).arg(server.data());
        for (name, value) in settings {
            check.arg("-c").arg(format!("{name}={value}"));
        }
        check.env_clear().env("TZ", "UTC").current_dir("/").stdin(Stdio::null()).kill_on_drop(true);
        if let Some((uid, gid)) = server.run_as().ids() {
            check.uid(uid).gid(gid);
        }
        let run = tokio::time::timeout(CHECK_PATIENCE, check.output()).await;
        let output =
            run.map_err(|_| ClusterError::Setting("the settings could not be checked in time".to_owned()))?.at("running", &program)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = said.lines().find_map(|line| Some(line.split_once("FATAL:")?.1.trim()));
        Err(ClusterError::Setting(complaint.unwrap_or("the server does not accept these settings").to_owned()))
    }

    /// Writes the settings where the server reads them at its next start or reload. Does nothing if they are there.
    pub async fn configure(&self, project: &ProjectRef, settings: &[(String, String)]) -> Result<()> {
        let server = self.existing(project)?;
        let line = |(name, value): &(String, String)| format!("{name} = '{}'\n", value.replace('\'', "''"));
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
            write_new(&unfinished, &text)?;
            server.run_as().own(&unfinished)?;
            files::commit(&unfinished, &file)
        })
        .await
    }

    /// Has a running server read its settings again.
    pub async fn reload(&self, project: &ProjectRef) -> Result<()> {
        let admin = self.admin(project).await?;
        let reloaded = admin.batch_execute("select pg_reload_conf()").await;
        reloaded.map_err(|cause| ClusterError::Sql { doing: "reloading settings", cause })
    }

    /// Whether somebody has a session open. A server that does not run has none.
    pub async fn is_used(&self, project: &ProjectRef) -> Result<bool> {
        if self.running(project).await?.is_none() {
            return Ok(false);
        }
        let admin = self.admin(project).await?;
        let sql = "select exists (select from pg_stat_activity where backend_type in ('client backend', 'walsender') and pid <> pg_backend_pid())";
        let row = admin.query_one(sql, &[]).await.map_err(|cause| ClusterError::Sql { doing: "looking for sessions", cause })?;
        Ok(row.get(0))
    }
}

fn write_new(path: &Path, text: &str) -> Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};

    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).at("writing", path)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).at("writing", path)
}
