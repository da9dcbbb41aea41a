//! Dry runs: with `?dry_run=true` a request runs up to the commit of its change, which is rolled
//! back and answered instead.

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::{
    body::Response,
    endpoint::DryRuns,
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

/// Whether the operation makes its change in one transaction, together with the entry of the audit
/// log, so that it can be rolled back.
pub(super) fn can_be_tried(idempotency: Idempotency, dry_runs: DryRuns) -> bool {
    let is_one_transaction = matches!(idempotency, Idempotency::Recorded | Idempotency::Marked);
    is_one_transaction && dry_runs == DryRuns::RollBack
}

/// Begins a dry run if the request asks for one. Requests without a recorder change nothing.
pub(super) fn begin(guarded: &GuardedEndpoint, asked: &RequestView<'_>, recorder: &Recorder) {
    let by_handler = guarded.dry_runs == DryRuns::ByHandler || !guarded.is_built;
    if !by_handler && asked.switched_on(DRY_RUN) {
        recorder.begin_trial();
    }
}

/// Rejects a dry run of an operation that cannot be tried.
///
/// Errors: [`Error::Invalid`].
pub(super) fn require_support(
    guarded: &GuardedEndpoint,
    outcome: &RequestOutcome,
) -> Result<(), Error> {
    let is_trial = outcome.recorder.as_ref().is_some_and(|it| it.is_trial());
    if !is_trial || can_be_tried(guarded.idempotency, guarded.dry_runs) {
        return Ok(());
    }
    Err(Error::invalid(
        DRY_RUN,
        "this operation has effects outside of the control database and cannot be tried. Send the \
         request without the parameter to run it",
    ))
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
