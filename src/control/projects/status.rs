//! The states of a project and the transitions between them, without I/O: the table of
//! `docs/reference/states.md` as code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use crate::platform::error::{Context, Error};

/// State of a project, with the contract's names. The database stores the states that Gantry uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Being created.
    ComingUp,
    /// Running, and accepts connections.
    ActiveHealthy,
    /// Should run but does not; being repaired.
    ActiveUnhealthy,
    /// Could not be created yet; being retried.
    InitFailed,
    /// Being paused.
    Pausing,
    /// Paused. The data is kept.
    Inactive,
    /// Could not be stopped yet; being retried.
    PauseFailed,
    /// Being started after a pause.
    Restoring,
    /// Could not be started after a pause yet; being retried.
    RestoreFailed,
    /// Being stopped and started.
    Restarting,
    /// Being upgraded to another major version of PostgreSQL.
    Upgrading,
    /// Being removed.
    GoingDown,
    /// Removed. The row remains.
    Removed,
}

/// Number of failed attempts after which the project is reported as failed. Attempts continue.
const ATTEMPTS_SHOWN: i32 = 5;

impl Status {
    /// Every state.
    pub const ALL: [Self; 13] = [
        Self::ComingUp,
        Self::ActiveHealthy,
        Self::ActiveUnhealthy,
        Self::InitFailed,
        Self::Pausing,
        Self::Inactive,
        Self::PauseFailed,
        Self::Restoring,
        Self::RestoreFailed,
        Self::Restarting,
        Self::Upgrading,
        Self::GoingDown,
        Self::Removed,
    ];

    /// Name on the wire and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ComingUp => "COMING_UP",
            Self::ActiveHealthy => "ACTIVE_HEALTHY",
            Self::ActiveUnhealthy => "ACTIVE_UNHEALTHY",
            Self::InitFailed => "INIT_FAILED",
            Self::Pausing => "PAUSING",
            Self::Inactive => "INACTIVE",
            Self::PauseFailed => "PAUSE_FAILED",
            Self::Restoring => "RESTORING",
            Self::RestoreFailed => "RESTORE_FAILED",
            Self::Restarting => "RESTARTING",
            Self::Upgrading => "UPGRADING",
            Self::GoingDown => "GOING_DOWN",
            Self::Removed => "REMOVED",
        }
    }

    /// The value of the column `desired` in this state.
    pub(crate) const fn desired(self) -> &'static str {
        match self {
            Self::Pausing | Self::Inactive | Self::PauseFailed => "paused",
            Self::GoingDown | Self::Removed => "removed",
            _ => "active",
        }
    }

    /// Whether the state is final: the reconciler has no work.
    pub fn is_settled(self) -> bool {
        self == self.goal()
    }

    /// The state after the work of this state. A settled state is its own goal.
    pub(crate) const fn goal(self) -> Self {
        match self {
            Self::Pausing | Self::Inactive | Self::PauseFailed => Self::Inactive,
            Self::GoingDown | Self::Removed => Self::Removed,
            _ => Self::ActiveHealthy,
        }
    }

    /// Whether the server is stopped and started again. Clients of the pooler wait meanwhile, and
    /// functions go on: they connect to the database as its clients do.
    pub const fn restarts_server(self) -> bool {
        matches!(self, Self::Restarting | Self::Upgrading | Self::Restoring)
    }

    /// Whether the project is removed or being removed.
    pub fn goal_is_removed(self) -> bool {
        self.goal() == Self::Removed
    }

    /// Returns the status after the `attempts`th consecutive failure.
    pub(crate) const fn after_failure(self, attempts: i32) -> Self {
        match self {
            // The only work was a new password, and the connection to the server failed.
            Self::ActiveHealthy => Self::ActiveUnhealthy,
            Self::ComingUp if attempts >= ATTEMPTS_SHOWN => Self::InitFailed,
            Self::Pausing if attempts >= ATTEMPTS_SHOWN => Self::PauseFailed,
            Self::Restoring if attempts >= ATTEMPTS_SHOWN => Self::RestoreFailed,
            Self::Restarting if attempts >= ATTEMPTS_SHOWN => Self::ActiveUnhealthy,
            other => other,
        }
    }

    /// Whether the project can be restored from this state.
    pub(crate) const fn is_paused(self) -> bool {
        matches!(
            self,
            Self::Inactive | Self::PauseFailed | Self::RestoreFailed
        )
    }

    /// Reads the state from a column of a row.
    pub fn read(row: &Row, column: usize) -> Result<Self, Error> {
        let name: &str = row.get(column);
        Self::ALL
            .into_iter()
            .find(|status| status.name() == name)
            .ok_or(name.to_owned())
            .context("reading a project's status")
    }
}

/// A command to an existing project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Stop it and keep its data.
    Pause,
    /// Start it again.
    Restore,
    /// Stop the restore and pause it again.
    CancelRestore,
    /// Stop and start it.
    Restart,
}

impl Command {
    /// Whether the command is permitted in this state.
    pub fn fits(self, status: Status) -> bool {
        self.begin(status).is_ok()
    }

    /// Returns the state in which the work begins, or why the command is not permitted now. A
    /// failed command can be repeated.
    pub(crate) fn begin(self, status: Status) -> Result<Status, String> {
        let (accepted, begins, refusal) = match self {
            Self::Pause => (
                matches!(
                    status,
                    Status::ActiveHealthy | Status::ActiveUnhealthy | Status::PauseFailed
                ),
                Status::Pausing,
                "This project cannot be paused",
            ),
            Self::Restore if status == Status::Pausing => {
                (false, status, "This project is not in a paused state yet")
            }
            Self::Restore => (
                status.is_paused(),
                Status::Restoring,
                "This project is no longer in a paused state",
            ),
            Self::CancelRestore => (
                matches!(status, Status::Restoring | Status::RestoreFailed),
                Status::Pausing,
                "This project is not being restored",
            ),
            Self::Restart => (
                matches!(status, Status::ActiveHealthy | Status::ActiveUnhealthy),
                Status::Restarting,
                "This project cannot be restarted",
            ),
        };
        if accepted {
            Ok(begins)
        } else {
            Err(format!("{refusal}, it is {}", status.name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: [Command; 4] = [
        Command::Pause,
        Command::Restore,
        Command::CancelRestore,
        Command::Restart,
    ];

    #[test]
    fn wire_names_equal_database_names() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }

    /// Failures never change the goal or the desired state, so the next attempt can still succeed.
    #[test]
    fn failure_keeps_goal_and_desired_state() {
        for begun in Status::ALL {
            let mut status = begun;
            for attempts in 1..20 {
                status = status.after_failure(attempts);
                assert_eq!(
                    (status.goal(), status.desired()),
                    (begun.goal(), begun.desired()),
                    "{begun:?} after {attempts}"
                );
            }
            assert_eq!(status.after_failure(20), status, "{begun:?} is settled");
            assert!(
                status == begun || status != begun.goal(),
                "{begun:?} is not recorded for a failure"
            );
        }
    }

    #[test]
    fn failure_is_reported_after_five_attempts() {
        for (begun, shown) in [
            (Status::ComingUp, Status::InitFailed),
            (Status::Pausing, Status::PauseFailed),
            (Status::Restoring, Status::RestoreFailed),
            (Status::Restarting, Status::ActiveUnhealthy),
        ] {
            assert_eq!(
                (begun.after_failure(4), begun.after_failure(5)),
                (begun, shown)
            );
        }
    }

    #[test]
    fn commands_are_accepted_according_to_the_table() {
        use Status::{
            ActiveHealthy, ActiveUnhealthy, Inactive, PauseFailed, RestoreFailed, Restoring,
        };
        for (command, accepted, begins) in [
            (
                Command::Pause,
                &[ActiveHealthy, ActiveUnhealthy, PauseFailed][..],
                Status::Pausing,
            ),
            (
                Command::Restore,
                &[Inactive, PauseFailed, RestoreFailed],
                Status::Restoring,
            ),
            (
                Command::CancelRestore,
                &[Restoring, RestoreFailed],
                Status::Pausing,
            ),
            (
                Command::Restart,
                &[ActiveHealthy, ActiveUnhealthy],
                Status::Restarting,
            ),
        ] {
            for status in Status::ALL {
                match command.begin(status) {
                    Ok(next) => assert_eq!(
                        (next, accepted.contains(&status)),
                        (begins, true),
                        "{command:?} in {status:?}"
                    ),
                    Err(text) => assert!(
                        !accepted.contains(&status) && text.ends_with(status.name()),
                        "{command:?}: {text}"
                    ),
                }
            }
        }
    }

    /// Every state except those of a removal permits a command, at the latest after its own work.
    #[test]
    fn every_state_has_an_exit() {
        for status in Status::ALL
            .into_iter()
            .filter(|status| status.goal() != Status::Removed)
        {
            let reachable = [status, status.goal()];
            assert!(
                COMMANDS.into_iter().any(|command| reachable
                    .into_iter()
                    .any(|from| command.begin(from).is_ok())),
                "{status:?}"
            );
        }
    }
}
