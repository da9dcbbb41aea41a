//! Modes of stopping a server.

use rustix::process::Signal;

/// The shutdown mode of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Disconnects all clients and writes a checkpoint, so that the next start is fast.
    Fast,
    /// Ends at once. The next start recovers from the WAL.
    Immediate,
}

impl ShutdownMode {
    /// The signals to send, each if the previous one had no effect in time.
    pub(super) fn signals(self) -> &'static [Signal] {
        match self {
            Self::Fast => &[Signal::INT, Signal::QUIT, Signal::KILL],
            Self::Immediate => &[Signal::QUIT, Signal::KILL],
        }
    }
}
