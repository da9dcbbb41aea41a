//! Logs of Management API requests that name a project: `management_logs`.

use gantry_logs::event::{Attributes, Event, Source};
use uuid::Uuid;

use super::{
    analytics::ShutdownSignal,
    queue,
    requests::{Request, text},
};
use crate::{
    api::context::ApiContext,
    platform::telemetry::{AnsweredRequest, cut, without_secrets},
};

/// Appends requests until the server has stopped and the queue is empty. Runs once per process.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let mut batch = Vec::new();
    while queue::next(&context.request_log, &mut batch, &mut shutdown).await {
        let rows = batch
            .drain(..)
            .map(|answered| (answered.project.clone(), (context.entropy.uuid(), answered)));
        context
            .analytics
            .keep_all(
                &queue::by_project(rows),
                |(id, answered)| event(*id, answered),
                &shutdown,
            )
            .await;
    }
}

/// Returns the log line of a request.
fn event(id: Uuid, answered: &AnsweredRequest) -> Event {
    let (host, scheme) = (
        answered.uri.host().unwrap_or_default(),
        answered.uri.scheme_str().unwrap_or("https"),
    );
    let (path, search) = (
        cut(answered.uri.path()),
        answered.uri.query().map(without_secrets),
    );
    let user_agent = answered
        .user_agent
        .as_ref()
        .and_then(|agent| agent.to_str().ok())
        .map(cut);
    let request = Request {
        method: &answered.method,
        scheme,
        host,
        path: &path,
        search: search.as_deref(),
        version: None,
        client: answered.client,
        user_agent: user_agent.as_deref(),
        status: answered.status,
        took_millis: answered.took_millis,
    };
    let mut all = Attributes::default();
    text(&mut all, "identifier", answered.project.as_str());
    let line = request.describe(&mut all);
    text(&mut all, "operation", answered.operation);
    if let Some(user) = answered.user {
        text(&mut all, "user_id", user.to_string());
    }
    Event::new(
        id.to_string(),
        answered.at.timestamp_micros(),
        Source::Management,
        line,
        all,
    )
}
