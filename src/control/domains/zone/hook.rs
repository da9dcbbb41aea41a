//! Operator's program that writes DNS records, for zones without dynamic updates.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tokio::{
    io::{AsyncReadExt, copy, sink},
    process::{Child, Command},
    time::timeout,
};

use super::{RecordChange, ZoneError};

/// Timeout of the program.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of standard error that are logged.
const COMPLAINT_BYTES_MAX: u64 = 1024;
/// Environment of the program.
const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("LANG", "C.UTF-8"),
];

/// The program and its user.
#[derive(Debug, Clone)]
pub struct ZoneHook {
    program: PathBuf,
    /// User and group id. `None`: those of this process.
    owner: Option<(u32, u32)>,
}

impl ZoneHook {
    /// Validates the program. If this process runs as root, the program runs as its owner, because
    /// the owner can change it anyway.
    pub fn new(program: &Path) -> Result<Self, ZoneError> {
        let said = |why: &dyn std::fmt::Display| {
            ZoneError(format!("the hook {}: {why}", program.display()))
        };
        let program = fs::canonicalize(program).map_err(|error| said(&error))?;
        let about = fs::metadata(&program).map_err(|error| said(&error))?;
        if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
            return Err(said(&"it is no program"));
        }
        if about.permissions().mode() & 0o022 != 0 {
            return Err(said(&"others than its owner may write to it"));
        }
        let owner = geteuid().is_root().then(|| (about.uid(), about.gid()));
        if owner.is_some_and(|(uid, _)| uid == 0) {
            tracing::warn!(hook = %program.display(), "the hook is owned by root and runs as root; change its owner to a user that can only update the zone");
        }
        Ok(Self { program, owner })
    }

    /// Runs the program with the arguments `present` or `cleanup`, name and text, without a shell.
    pub(super) async fn run(
        &self,
        change: RecordChange,
        name: &str,
        value: &str,
    ) -> Result<(), String> {
        let action = if change == RecordChange::Present {
            "present"
        } else {
            "cleanup"
        };
        let mut command = Command::new(&self.program);
        command
            .args([action, name, value])
            .env_clear()
            .envs(ENVIRONMENT)
            .current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("the hook does not start: {error}"))?;
        let group = child.id();
        let ended = timeout(PATIENCE, wait(&mut child)).await;
        end(group);
        match ended {
            Err(_) => Err("the hook takes too long".to_owned()),
            Ok(Err(error)) => Err(format!("the hook: {error}")),
            Ok(Ok((true, _))) => Ok(()),
            Ok(Ok((false, complaint))) => Err(format!("the hook failed: {complaint}")),
        }
    }
}

/// Kills the processes that the program left behind.
fn end(group: Option<u32>) {
    if let Some(group) = group.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Waits for the program. Returns whether it succeeded, and the beginning of its standard error.
async fn wait(child: &mut Child) -> io::Result<(bool, String)> {
    let stderr = child.stderr.take();
    let group = child.id();
    let mut complaint = Vec::new();
    let listening = async {
        let Some(mut stderr) = stderr else {
            return Ok(());
        };
        (&mut stderr)
            .take(COMPLAINT_BYTES_MAX)
            .read_to_end(&mut complaint)
            .await?;
        // Reads the rest, so that the program does not block on a full pipe.
        copy(&mut stderr, &mut sink()).await.map(drop)
    };
    let ending = async {
        let ended = child.wait().await;
        // Child processes may keep the pipe open.
        end(group);
        ended
    };
    let (ended, heard) = tokio::join!(ending, listening);
    let ended = heard.and(ended)?;
    let told = String::from_utf8_lossy(&complaint);
    Ok((
        ended.success(),
        told.chars().filter(|c| !c.is_control()).collect(),
    ))
}
