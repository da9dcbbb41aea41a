//! Requests to this API that name a project: `management_logs`.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use gantry_logs::event::{Attributes, Event, Source};
use hyper::{Method, StatusCode, Uri, header::HeaderValue};
use uuid::Uuid;

use super::{
    Ending, queue,
    requests::{Request, text},
};
use crate::{
    app::App,
    base::{batch_queue::Queue, ids::ProjectRef},
    data_plane::service_proxy::log::{cut, without_secrets},
};

/// Requests that wait to be kept, about a quarter of a kilobyte each.
const QUEUE_MAX: usize = 16_384;

/// A request that was answered: what the guard has at hand, so that noting it costs next to nothing.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is named as the request has it")]
pub struct Answered {
    pub at: DateTime<Utc>,
    pub project: ProjectRef,
    pub operation: &'static str,
    pub method: Method,
    pub uri: Uri,
    pub client: IpAddr,
    pub user: Option<Uuid>,
    pub user_agent: Option<HeaderValue>,
    pub status: StatusCode,
    pub took_millis: u64,
}

/// The requests that wait.
pub type Waiting = Queue<Answered, QUEUE_MAX>;

/// Takes requests until the server has ended and none is left. There is one of it.
pub(super) async fn run(app: App, mut ending: Ending) {
    let mut batch = Vec::new();
    while queue::next(&app.analytics.management, &mut batch, &mut ending).await {
        let rows = batch
            .drain(..)
            .map(|answered| (answered.project.clone(), (app.entropy.uuid(), answered)));
        app.analytics
            .keep_all(
                &queue::by_project(rows),
                |(id, answered)| event(*id, answered),
                &ending,
            )
            .await;
    }
}

/// The line of a request.
fn event(id: Uuid, answered: &Answered) -> Event {
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
