//! Reasons for which a service cannot be used.

/// The reason for which a project's service cannot be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnavailableReason {
    /// No kit is installed.
    NoKit,
    /// The kit cannot be used.
    BrokenKit,
    /// Another process runs the project.
    Elsewhere,
    /// The project's settings switch the service off.
    Off,
    /// The database does not run.
    DatabaseAway,
    /// The database rejects the login role of the service.
    DatabaseRefuses,
    /// The instance is still starting.
    Starting,
    /// Too many requests wait for the instance.
    Full,
    /// The instance ended or did not become ready.
    Failed,
    /// The instance failed repeatedly.
    Crashing,
    /// Processes of the service ended under the requests of many callers.
    Slowed,
    /// Processes of the service ended under the requests of this caller.
    CallerLimited,
}

impl UnavailableReason {
    /// Returns the sentence for clients.
    pub const fn message(self) -> &'static str {
        match self {
            Self::NoKit => {
                "No program for this service is installed; the operator installs one with `gantry service install`"
            }
            Self::BrokenKit => {
                "The installed program of this service cannot be used; the server's log has the reason"
            }
            Self::Elsewhere => "Another server runs this project",
            Self::Off => "The service is switched off in the project's settings",
            Self::DatabaseAway => "The project's database is not running; try again shortly",
            Self::DatabaseRefuses => {
                "The project's database rejects the role of this service \
                 (`authenticator`, or `supabase_auth_admin` for Auth)"
            }
            Self::Starting => "The service is starting; try again shortly",
            Self::Full => "Too many requests wait for the start of the service; try again shortly",
            Self::Failed => "The service did not start; it is started again shortly",
            Self::Crashing => "The service failed repeatedly; it is started again once a minute",
            Self::Slowed => {
                "Its processes ended under the requests of many clients; one is started every 5 seconds"
            }
            Self::CallerLimited => {
                "Your requests ended 3 processes of this service within a minute; wait before the next one"
            }
        }
    }

    /// Returns whether a failed start counts as a fault of the program.
    pub(crate) const fn is_fault(self) -> bool {
        matches!(self, Self::Failed | Self::Crashing | Self::DatabaseRefuses)
    }
}

/// The reason for which a service cannot be used, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason.
    pub reason: UnavailableReason,
    /// Value of `Retry-After`, in seconds.
    pub retry_secs: u32,
}

impl Unavailable {
    /// A state that may end at any time.
    pub(crate) const fn now(reason: UnavailableReason) -> Self {
        Self {
            reason,
            retry_secs: 1,
        }
    }
}
