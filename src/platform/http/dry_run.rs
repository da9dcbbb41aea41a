//! Dry runs: with `?dry_run=true` a request runs up to the commit of its change, which is rolled
//! back and answered instead.

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::{
    body::Response,
    guarded_endpoint::{GuardedEndpoint, RequestOutcome},
    output,
};
use crate::platform::{
    access::RequestView, audit::Recorder, error::Error, idempotency::Idempotency,
};

/// The query parameter.
pub(super) const DRY_RUN: &str = "dry_run";
/// The header field of answers to dry runs.
const MARK: HeaderName = HeaderName::from_static("dry-run");
/// The description of the parameter.
pub(super) const DESCRIPTION: &str = "Answers with status 200 and the change that the request would make, and changes nothing: \
                                      `{\"dry_run\": true, \"status\", \"before\", \"after\", \"events\", \"approval\"}`.";

/// The answer to a dry run.
#[derive(Serialize)]
struct DryRunAnswer<'a> {
    /// Always true.
    dry_run: bool,
    /// Status of the response to the request itself.
    status: u16,
    /// State before the change, without secrets; null if the operation records none.
    before: Option<&'a Value>,
    /// State after the change, without secrets; null if the operation records none.
    after: Option<&'a Value>,
    /// Types of the events of the change.
    events: &'a [&'static str],
    /// The effect for which the request needs an approval; null if it needs none.
    approval: Option<&'a str>,
}

/// Whether an operation with this treatment of keys makes its change in one transaction, together
/// with the entry of the audit log, so that it can be tried.
pub(super) const fn can_be_tried(idempotency: Idempotency) -> bool {
    matches!(idempotency, Idempotency::Recorded | Idempotency::Marked)
}

/// Begins a dry run if the request asks for one.
///
/// Errors: [`Error::Invalid`] if the operation cannot be tried.
pub(super) fn begin(
    guarded: &GuardedEndpoint,
    asked: &RequestView<'_>,
    outcome: &RequestOutcome,
) -> Result<(), Error> {
    let Some(recorder) = &outcome.recorder else {
        // The request changes nothing.
        return Ok(());
    };
    if !asked.switched_on(DRY_RUN) || guarded.has_own_dry_run || !guarded.is_built {
        return Ok(());
    }
    if !can_be_tried(guarded.idempotency) || guarded.calls_operations() {
        return Err(Error::invalid(
            DRY_RUN,
            "this operation has effects outside of the control database and cannot be tried. Send the \
             request without the parameter to run it",
        ));
    }
    recorder.begin_trial();
    Ok(())
}

/// Replaces the result of a dry run with the change that was rolled back. Errors stay.
pub(super) fn finish(
    recorder: Option<&Recorder>,
    result: Result<Response, Error>,
) -> Result<Response, Error> {
    let Some(recorder) = recorder.filter(|recorder| recorder.is_trial()) else {
        return result;
    };
    let unchanged = match result {
        Ok(response) => response.status().as_u16(),
        Err(Error::DryRun) => StatusCode::OK.as_u16(),
        Err(error) => return Err(error),
    };
    let change = recorder.tried_change();
    let status = change.and_then(|change| u16::try_from(change.status).ok());
    let answer = DryRunAnswer {
        dry_run: true,
        status: status.unwrap_or(unchanged),
        before: change.and_then(|change| change.before.as_ref()),
        after: change.and_then(|change| change.after.as_ref()),
        events: change.map_or(&[], |change| &change.events),
        approval: recorder.required_approval(),
    };
    let mut response = output::json(StatusCode::OK, &answer);
    let headers = response.headers_mut();
    headers.insert(MARK, HeaderValue::from_static("true"));
    Ok(response)
}
