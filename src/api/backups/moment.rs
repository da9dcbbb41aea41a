//! The moment in the body of a request: a time, or a backup.

use crate::{control::backups::moment::RequestedMoment, platform::error::Error};

/// Returns the moment of a request.
///
/// Errors: [`Error::Invalid`] unless exactly one of the two is given.
pub(in crate::api) fn requested(
    second: Option<i64>,
    backup: Option<i64>,
) -> Result<RequestedMoment, Error> {
    let field = "recovery_time_target_unix";
    match (second, backup) {
        (Some(second), None) if second < 0 => Err(Error::invalid(
            field,
            "Too small: expected number to be >=0",
        )),
        (Some(second), None) => Ok(RequestedMoment::Second(second)),
        (None, Some(backup)) => Ok(RequestedMoment::Backup(backup)),
        _ => Err(Error::invalid(field, "give either this or id")),
    }
}
