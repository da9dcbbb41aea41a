//! Failed starts of instances.

use std::io;

use crate::proxy::unavailable::UnavailableReason;

/// A start failed.
#[derive(Debug)]
pub(super) struct StartFailure {
    pub(super) reason: UnavailableReason,
    /// The cause, for the log and the health check.
    pub(super) why: String,
    /// Version of the kit, if its program was started.
    pub(super) kit: Option<String>,
}

impl StartFailure {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers give errors and texts alike"
    )]
    pub(super) fn new(reason: UnavailableReason, why: impl ToString) -> Self {
        Self {
            reason,
            why: why.to_string(),
            kit: None,
        }
    }
}

pub(super) fn failed(doing: &'static str) -> impl Fn(io::Error) -> StartFailure {
    move |error| StartFailure::new(UnavailableReason::Failed, format!("{doing}: {error}"))
}
