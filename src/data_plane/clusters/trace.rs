//! Lets a confined launcher become its server, and nothing become another program after that.
//!
//! The launcher's filter answers `execve` by asking the process that traces it (see [`super::seccomp`]). Gantry traces
//! the launcher from before it confines itself until the kernel has replaced it by the server, and lets go before the
//! server's first instruction. A later `execve` finds no tracing process, and the kernel refuses it.

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

/// The byte by which a launcher learns that it is traced.
pub(super) const TRACED: u8 = b'.';

/// Runs `launcher`, tells its process id by `started`, and returns when it has become the server or has ended.
///
/// Blocks its thread, as the kernel knows the tracing thread: to end the wait early, kill the process.
pub(super) fn run(mut launcher: Command, started: oneshot::Sender<u32>) -> io::Result<Child> {
    let mut child = launcher.stdin(Stdio::piped()).spawn()?;
    // The caller may have given up already.
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
    ptrace::seize(pid, Options::PTRACE_O_TRACESECCOMP | Options::PTRACE_O_TRACEEXEC).map_err(|errno| {
        let hint =
            "Gantry must be able to trace its own launcher (ptrace; see kernel.yama.ptrace_scope), or be run with --unsafe-no-sandbox";
        io::Error::new(io::Error::from(errno).kind(), format!("{hint}: {errno}"))
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may have ended for a reason of its own, which it has written to its log.
        let _ = stdin.write_all(&[TRACED]);
    }
    // A process that is killed meanwhile is found so by the next wait.
    let alive = |outcome: nix::Result<()>| {
        if outcome == Err(Errno::ESRCH) {
            Ok(())
        } else {
            outcome
        }
    };
    let mut asked = false;
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)) {
            // The launcher's own `exec` may still be under way as the tracing begins.
            Ok(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC)) if asked => {
                return Ok(alive(ptrace::detach(pid, None))?);
            }
            Ok(WaitStatus::PtraceEvent(_, _, event)) => {
                asked |= event == libc::PTRACE_EVENT_SECCOMP;
                alive(ptrace::cont(pid, None))?;
            }
            Ok(WaitStatus::Stopped(_, signal)) => alive(ptrace::cont(pid, signal))?,
            // It ended, and its exit was taken note of here.
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                return Ok(());
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
