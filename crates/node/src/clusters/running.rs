//! A handle to a running server.

use std::{fmt, io};

use futures_util::future::BoxFuture;
use rustix::process::Pid;

/// The identity of a live process of a project's server. Another process may have it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerProcess(i32);

impl ServerProcess {
    /// The process with this positive number, which the driver chooses.
    pub fn new(number: i32) -> Self {
        Self(number)
    }

    pub(super) fn of(pid: Pid) -> Self {
        Self(pid.as_raw_nonzero().get())
    }

    pub(super) fn pid(self) -> Option<Pid> {
        Pid::from_raw(self.0)
    }
}

/// How to end a process of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// The process may clean up. A backend rolls back its transaction.
    Terminate,
    /// At once. PostgreSQL then restarts the other processes of the server.
    Kill,
}

/// A server process that was running when it was observed.
pub struct RunningServer {
    process: ServerProcess,
    end: BoxFuture<'static, io::Result<()>>,
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl RunningServer {
    /// A server with this postmaster. `end` completes when the postmaster exits.
    pub fn new(
        process: ServerProcess,
        end: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            process,
            end: Box::pin(end),
        }
    }

    /// The postmaster.
    pub fn process(&self) -> ServerProcess {
        self.process
    }

    /// Returns when the postmaster has exited.
    pub async fn ended(self) -> io::Result<()> {
        self.end.await
    }
}
