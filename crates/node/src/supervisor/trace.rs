//! Permits the one `execve` by which a confined launcher becomes its server.
//!
//! The launcher's seccomp filter refers `execve` to the tracing process (see [`super::seccomp`]).
//! Gantry traces the launcher from before it confines itself until the kernel has replaced it with
//! the server, and detaches before the server's first instruction. A later `execve` has no tracing
//! process, and the kernel rejects it.

use std::{
    io::{self, Write},
    process::{Child, Command, Stdio},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::sync::oneshot;

/// The byte on standard input that informs a launcher that it is traced.
pub(super) const TRACED: u8 = b'.';

/// Runs `launcher`, sends its process id to `started`, and returns when it has become the server
/// or has exited.
///
/// Blocks the thread, because only the thread that traces can wait. To cancel, kill the process.
pub(super) fn run(mut launcher: Command, started: oneshot::Sender<u32>) -> io::Result<Child> {
    let mut child = launcher.stdin(Stdio::piped()).spawn()?;
    // The receiver is gone if the caller was cancelled.
    let _ = started.send(child.id());
    if let Err(error) = follow(&mut child) {
        child.kill()?;
        child.wait()?;
        return Err(error);
    }
    Ok(child)
}

fn follow(child: &mut Child) -> io::Result<()> {
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACESECCOMP | Options::PTRACE_O_TRACEEXEC;
    let seized = ptrace::seize(pid, options);
    // A process that has exited is refused like that of another user.
    if seized.is_err() && child.try_wait()?.is_some() {
        return Ok(());
    }
    seized.map_err(|errno| {
        let hint =
            "Gantry must be able to trace its own launcher (ptrace; see kernel.yama.ptrace_scope), or be run with --unsafe-no-sandbox";
        io::Error::new(io::Error::from(errno).kind(), format!("{hint}: {errno}"))
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // Fails if the launcher exited with an error, which is in its log.
        let _ = stdin.write_all(&[TRACED]);
    }
    let mut exec_requested = false;
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)) {
            // The exec of the launcher itself may still be in progress when tracing begins.
            Ok(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC)) if exec_requested => {
                return Ok(ignore_exited(ptrace::detach(pid, None))?);
            }
            Ok(WaitStatus::PtraceEvent(_, _, event)) => {
                exec_requested |= event == libc::PTRACE_EVENT_SECCOMP;
                ignore_exited(ptrace::cont(pid, None))?;
            }
            Ok(WaitStatus::Stopped(_, signal)) => ignore_exited(ptrace::cont(pid, signal))?,
            // The process exited, and the wait has collected its status.
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                return Ok(());
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Treats a process that no longer exists as success: the next wait reports its exit.
fn ignore_exited(outcome: nix::Result<()>) -> nix::Result<()> {
    match outcome {
        Err(Errno::ESRCH) => Ok(()),
        other => other,
    }
}
