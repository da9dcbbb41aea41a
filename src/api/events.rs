//! The cursor over the events of an organization: pages, long poll and streams. Specific to Gantry.

use std::{fmt::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use gantry_base::ids::OrgSlug;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    api::context::ApiContext,
    platform::{
        access::{
            Caller, CallerRelation, Organization, Permission as P, RequestView, ResourceName, User,
            decide, pat_only,
        },
        error::{CredentialProblem, Error},
        events::{
            self, EventEnvelope,
            hub::{EventWaiter, WaitEnd},
            log::{self, EventFilter, EventPage},
        },
        http::{
            Endpoint, Peer, Tag, Verb,
            event_stream::{JsonOrEvents, StreamRequest},
            input::QueryWithLists,
            mount,
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST];

/// Events of a page, and of one read of a stream.
const PAGE_MAX: i64 = 100;
/// Longest wait of a request without a stream, in seconds.
const WAIT_SECS_MAX: u64 = 60;
/// Interval of comments in a stream without events. Access is checked as often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Longest life of a stream. Clients resume with the last id.
const STREAM_MAX: Duration = Duration::from_hours(1);

static LIST: Endpoint = Endpoint {
    id: "gantry-list-events",
    summary: "List events of an organization in ascending order, wait for them, or stream them",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/events",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminRead, P::MembersRead]]),
    limit: &STANDARD,
    handler: || mount(list),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// Number of the last event that the client has. Without it, the list begins with the oldest
    /// event that is kept.
    #[schemars(range(min = 0))]
    after: Option<i64>,
    /// Seconds to wait for an event if there is none, 0 to 60.
    #[serde(default)]
    #[schemars(range(min = 0, max = 60))]
    wait: u64,
    /// Number of events to return, 1 to 100.
    #[serde(default = "whole_page")]
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
    /// Events of this project or branch.
    project_ref: Option<String>,
    /// Events of these types, repeated or separated by commas.
    #[serde(rename = "type")]
    types: Option<String>,
}

fn whole_page() -> i64 {
    PAGE_MAX
}

impl EventsQuery {
    fn filter(&self) -> Result<EventFilter, Error> {
        if !(1..=PAGE_MAX).contains(&self.limit) {
            return Err(Error::invalid("limit", "expected 1 to 100"));
        }
        if self.wait > WAIT_SECS_MAX {
            return Err(Error::invalid("wait", "expected 0 to 60"));
        }
        if self.after.is_some_and(|after| after < 0) {
            return Err(Error::invalid("after", "expected the number of an event"));
        }
        let types: Vec<String> = match &self.types {
            Some(names) => names.split(',').map(str::to_owned).collect(),
            None => Vec::new(),
        };
        if let Some(unknown) = types.iter().find(|name| events::find(name).is_none()) {
            let problem = format!("there is no event type {unknown}");
            return Err(Error::invalid("type", problem));
        }
        Ok(EventFilter {
            after: self.after,
            projects: self.project_ref.iter().cloned().collect(),
            types,
            limit: self.limit,
        })
    }
}

/// An event with its number.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GantryNumberedEvent")]
struct NumberedEvent {
    /// Number in the log of the organization, without gaps.
    number: i64,
    #[serde(flatten)]
    event: EventEnvelope,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GantryEventPage")]
struct EventList {
    events: Vec<NumberedEvent>,
    /// The value of `after` for the next page.
    next: i64,
    /// Number of the last event of the organization.
    last: i64,
}

async fn list(
    organization: Organization,
    context: ApiContext,
    user: User,
    peer: Peer,
    request: StreamRequest,
    QueryWithLists(query): QueryWithLists<EventsQuery>,
) -> Result<JsonOrEvents<EventList>, Error> {
    let mut filter = query.filter()?;
    let access = LiveAccess {
        context,
        user: Arc::new(user),
        organization,
        peer,
    };
    if request.is_stream {
        if let Some(id) = &request.last_event_id {
            let number = id.parse().ok().filter(|number| *number >= 0);
            let problem = "expected the number of an event";
            let malformed = || Error::invalid("Last-Event-ID", problem);
            filter.after = Some(number.ok_or_else(malformed)?);
        }
        return EventStream::open(access, filter).await;
    }
    let page = access.page(filter, Duration::from_secs(query.wait)).await?;
    Ok(JsonOrEvents::Json(EventList {
        events: access.numbered(&page),
        next: page.next,
        last: page.last,
    }))
}

/// The access of a request that lasts. Tokens and members may change meanwhile.
struct LiveAccess {
    context: ApiContext,
    user: Arc<User>,
    organization: Organization,
    peer: Peer,
}

impl LiveAccess {
    /// Reads a page. If it has no event, waits for one.
    async fn page(&self, mut filter: EventFilter, wait: Duration) -> Result<EventPage, Error> {
        let id = self.organization.id;
        if wait.is_zero() {
            return log::page(&self.context.db, id, &filter).await;
        }
        let mut waiter = self.waiter()?;
        let deadline = Instant::now() + wait;
        loop {
            let page = log::page(&self.context.db, id, &filter).await?;
            if !page.events.is_empty() {
                return Ok(page);
            }
            filter.after = Some(page.next);
            let left = deadline.saturating_duration_since(Instant::now());
            match waiter.past(page.next, left).await {
                WaitEnd::Event | WaitEnd::Access => self.require().await?,
                WaitEnd::Timeout | WaitEnd::Shutdown => return Ok(page),
            }
        }
    }

    fn waiter(&self) -> Result<EventWaiter, Error> {
        let hub = &self.context.events;
        hub.waiter(&self.context.platform, self.organization.id, self.user.id)
    }

    /// Decides again on the request, with the present state of the token and the member.
    async fn require(&self) -> Result<(), Error> {
        let directory = &self.context.directory;
        let user = match self.user.token {
            Some(token) => {
                let address = Some(self.peer.address);
                let live = directory
                    .simulated_user(self.user.id, token, address)
                    .await?;
                let revoked = Error::Unauthenticated(CredentialProblem::Unknown);
                live.flatten().ok_or(revoked)?
            }
            None => self.user.clone(),
        };
        let name = ResourceName::Organization(self.slug().clone());
        let standing = match directory.resolve(&user, &name).await? {
            Some((_, roles)) => CallerRelation::Member(roles),
            None => CallerRelation::NotMember,
        };
        let caller = Caller::User(user);
        decide(&caller, &LIST.access, &RequestView::default(), standing)
    }

    fn slug(&self) -> &OrgSlug {
        &self.organization.slug
    }

    fn numbered(&self, page: &EventPage) -> Vec<NumberedEvent> {
        let numbered = |event: &events::Event| NumberedEvent {
            number: event.number,
            event: event.envelope(self.slug().as_str()),
        };
        page.events.iter().map(numbered).collect()
    }
}

/// A stream of events. It ends when the caller loses access, when the server stops, after an
/// error, and after [`STREAM_MAX`]; the client resumes with the last id.
struct EventStream {
    access: LiveAccess,
    filter: EventFilter,
    waiter: EventWaiter,
    /// Events that were read before the stream began.
    first: Option<EventPage>,
    /// Number of the last event that is known to exist.
    last: i64,
    /// Time of the last block.
    sent_at: Instant,
    ends_at: Instant,
}

impl EventStream {
    async fn open(
        access: LiveAccess,
        filter: EventFilter,
    ) -> Result<JsonOrEvents<EventList>, Error> {
        let waiter = access.waiter()?;
        // A cursor that is too old gets a status, not a stream.
        let first = log::page(&access.context.db, access.organization.id, &filter).await?;
        let stream = Self {
            access,
            filter,
            waiter,
            last: first.last,
            first: Some(first),
            sent_at: Instant::now(),
            ends_at: Instant::now() + STREAM_MAX,
        };
        let blocks = futures_util::stream::unfold(stream, |mut stream| async move {
            stream.next().await.map(|block| (block, stream))
        });
        Ok(JsonOrEvents::stream(blocks))
    }

    /// Returns the next blocks, or `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(page) = self.first.take() {
            return Some(self.blocks(&page));
        }
        loop {
            let after = self.filter.after.unwrap_or_default();
            if after >= self.last {
                let silent = KEEP_ALIVE.saturating_sub(self.sent_at.elapsed());
                let end = self.waiter.past(after, silent).await;
                if end == WaitEnd::Shutdown || self.is_over().await {
                    return None;
                }
                match end {
                    WaitEnd::Access | WaitEnd::Shutdown => continue,
                    WaitEnd::Timeout => return Some(self.sent(keep_alive(after))),
                    WaitEnd::Event => {}
                }
            }
            let access = &self.access;
            let (db, id) = (&access.context.db, access.organization.id);
            let page = log::page(db, id, &self.filter).await.ok()?;
            if !page.events.is_empty() {
                return Some(self.blocks(&page));
            }
            self.filter.after = Some(page.next);
            self.last = page.last;
        }
    }

    fn sent(&mut self, block: Bytes) -> Bytes {
        self.sent_at = Instant::now();
        block
    }

    async fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at || self.access.require().await.is_err()
    }

    /// Returns the events of a page as blocks, and continues after it.
    fn blocks(&mut self, page: &EventPage) -> Bytes {
        self.filter.after = Some(page.next);
        self.last = page.last;
        let mut text = String::new();
        for numbered in self.access.numbered(page) {
            // Wire types always have a JSON form, on one line.
            let data = serde_json::to_string(&numbered).unwrap_or_default();
            let _ = write!(text, "id: {}\ndata: {data}\n\n", numbered.number);
        }
        let block = if text.is_empty() {
            keep_alive(page.next)
        } else {
            text.into()
        };
        self.sent(block)
    }
}

/// Returns a comment, with the id up to which the log was read.
fn keep_alive(number: i64) -> Bytes {
    format!(": keep-alive\nid: {number}\n\n").into()
}
