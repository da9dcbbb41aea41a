//! A handle to a running server.

use std::{fmt, io};

use futures_util::future::BoxFuture;

/// A server process that was running when it was observed.
pub struct RunningServer {
    pid: i32,
    end: BoxFuture<'static, io::Result<()>>,
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl RunningServer {
    /// A server with this process id. `end` completes when the process exits.
    pub fn new(pid: i32, end: impl Future<Output = io::Result<()>> + Send + 'static) -> Self {
        Self {
            pid,
            end: Box::pin(end),
        }
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns when the postmaster has exited.
    pub async fn ended(self) -> io::Result<()> {
        self.end.await
    }
}
