//! Phases of a copy, and their observers.

use tokio::sync::watch;

/// A phase of a copy. The order is that of execution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CopyPhase {
    /// The original writes its dirty pages.
    #[default]
    Checkpoint,
    /// Files are copied.
    Files,
    /// The copy runs in quarantine and is isolated.
    Isolation,
    /// Rules mask data.
    Masking,
    /// The copy gets its identity and its place.
    Identity,
}

impl CopyPhase {
    const ALL: [Self; 5] = [
        Self::Checkpoint,
        Self::Files,
        Self::Isolation,
        Self::Masking,
        Self::Identity,
    ];

    /// Name in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Files => "files",
            Self::Isolation => "isolation",
            Self::Masking => "masking",
            Self::Identity => "identity",
        }
    }

    /// Returns the phase of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Whether all files are copied.
    pub fn has_files(self) -> bool {
        !matches!(self, Self::Checkpoint | Self::Files)
    }
}

/// The current phase of one copy.
#[derive(Debug, Clone, Default)]
pub struct CopyProgress(watch::Sender<CopyPhase>);

impl CopyProgress {
    /// Announces the begin of a phase.
    pub(super) fn enter(&self, phase: CopyPhase) {
        self.0.send_replace(phase);
    }

    /// Returns a receiver of the phases, which has not seen the current one.
    pub fn observe(&self) -> watch::Receiver<CopyPhase> {
        let mut receiver = self.0.subscribe();
        receiver.mark_changed();
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_by_their_names() {
        for phase in CopyPhase::ALL {
            assert_eq!(CopyPhase::from_name(phase.name()), Some(phase));
        }
        assert_eq!(CopyPhase::from_name("other"), None);
        assert!(CopyPhase::Masking.has_files() && !CopyPhase::Files.has_files());
    }
}
