//! Announces changes of a project and its branches to an open page.
//!
//! A stream ends with the first change, or after a while. The browser connects again with the
//! number of the last event, so that each stream is authenticated anew and no change is missed.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use gantry_base::ids::{OrganizationId, ProjectRef};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::{branches, project::ProjectResponse};
use crate::{
    api::context::ApiContext,
    platform::{
        access::organization_by_slug,
        error::Error,
        events::{
            hub::{EventWaiter, WaitEnd},
            log::{self, EventFilter},
        },
        http::{
            Endpoint, Verb,
            event_stream::{EventStreamResponse, StreamRequest},
            input::Query,
            mount,
        },
    },
    web::{
        page::{Visitor, page},
        path::PathProject,
    },
};

pub(in crate::web) static LIVE: Endpoint = page(
    "page-project-changes",
    "Stream of the changes of a project",
    Verb::Get,
    "/projects/{project}/changes",
    || mount(live),
);

/// Longest life of a stream.
const STREAM_MAX: Duration = Duration::from_mins(1);
/// Interval of comments, so that no proxy closes the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time until the browser connects again, in milliseconds.
const RETRY_MS: u64 = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct LiveQuery {
    /// Number of the last event that the page shows.
    after: i64,
    /// Whether to follow the branches too.
    branches: bool,
}

/// Pages that follow a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Changes of the project.
    Project,
    /// Changes of the project and of its branches.
    Branches,
}

/// Returns the address of the stream for a page with content that is read after this.
pub(super) async fn address(
    visitor: &Visitor,
    project: &ProjectRef,
    followed: Followed,
) -> Result<String, Error> {
    let last = log::last_number(&visitor.context.db, project).await?;
    let branches = followed == Followed::Branches;
    Ok(format!(
        "/projects/{project}/changes?after={last}&branches={branches}"
    ))
}

async fn organization(
    context: &ApiContext,
    project: &ProjectResponse,
) -> Result<OrganizationId, Error> {
    let slug = project
        .organization_slug
        .parse()
        .map_err(|_| Error::NotFound)?;
    organization_by_slug(&context.db, &slug).await
}

async fn live(
    visitor: Visitor,
    PathProject(reference): PathProject,
    request: StreamRequest,
    Query(query): Query<LiveQuery>,
) -> Result<EventStreamResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let organization = organization(&visitor.context, &project).await?;
    let resumed = request.last_event_id.and_then(|id| id.parse().ok());
    let mut projects = vec![reference.to_string()];
    if query.branches {
        let branches = branches::entries(&visitor, &reference).await?;
        projects.extend(branches.iter().map(|branch| branch.project_ref.to_string()));
    }
    let hub = &visitor.context.events;
    let changes = Changes {
        waiter: hub.waiter(&visitor.context.platform, organization, visitor.user.id)?,
        organization,
        filter: EventFilter {
            after: Some(resumed.unwrap_or(query.after).max(0)),
            projects,
            limit: 1,
            ..EventFilter::default()
        },
        ends_at: Instant::now() + STREAM_MAX,
        context: visitor.context,
    };
    Ok(EventStreamResponse::new(changes.blocks()))
}

/// Waits for the first change.
struct Changes {
    context: ApiContext,
    organization: OrganizationId,
    filter: EventFilter,
    waiter: EventWaiter,
    ends_at: Instant,
}

/// A state of the stream.
enum StreamState {
    First(Box<Changes>),
    Waiting(Box<Changes>),
    End,
}

impl Changes {
    /// Returns the blocks of the stream.
    fn blocks(self) -> impl Stream<Item = Bytes> + Send + 'static {
        stream::unfold(StreamState::First(Box::new(self)), |state| async {
            match state {
                StreamState::First(changes) => {
                    let after = changes.filter.after.unwrap_or_default();
                    let begin = format!("retry: {RETRY_MS}\nid: {after}\nevent: begin\ndata\n\n");
                    Some((begin.into(), StreamState::Waiting(changes)))
                }
                StreamState::Waiting(mut changes) => {
                    let (block, is_end) = changes.next().await?;
                    let state = if is_end {
                        StreamState::End
                    } else {
                        StreamState::Waiting(changes)
                    };
                    Some((block, state))
                }
                StreamState::End => None,
            }
        })
    }

    /// Returns the next block and whether it is the last, or `None` at the end of the time.
    async fn next(&mut self) -> Option<(Bytes, bool)> {
        loop {
            let page = log::page(&self.context.db, self.organization, &self.filter).await;
            // The removed events are changes, too, and so is a log that was restored.
            let Ok(page) = page else {
                return Some((changed(0), true));
            };
            if !page.events.is_empty() {
                return Some((changed(page.last), true));
            }
            self.filter.after = Some(page.next);
            let left = self.ends_at.saturating_duration_since(Instant::now());
            let silent = left.min(KEEP_ALIVE);
            match self.waiter.past(page.next, silent).await {
                WaitEnd::Event => {}
                // The next stream decides on the access.
                WaitEnd::Access | WaitEnd::Shutdown => return None,
                WaitEnd::Timeout if silent < KEEP_ALIVE => return None,
                WaitEnd::Timeout => return Some((Bytes::from_static(b":\n\n"), false)),
            }
        }
    }
}

fn changed(number: i64) -> Bytes {
    format!("id: {number}\nevent: changed\ndata\n\n").into()
}
