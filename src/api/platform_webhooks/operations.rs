//! Operations of API v2 on webhooks, each for organizations and for projects.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use super::{
    deliveries, endpoints,
    resources::{
        CreateEndpointRequest, DeliveryResource, EndpointResource, IngressResource, TestRequest,
        UpdateEndpointRequest,
    },
};
use crate::{
    api::{
        context::ApiContext,
        organizations::v2::{Envelope, PageLinks, Paged},
    },
    control::platform_webhooks::{
        endpoint::{WebhookEndpoint, WebhookScope},
        history::{self, HistoryCursor},
    },
    platform::{
        access::{Organization, Permission as P, Project, User, pat_only},
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Input, Json, PathId, Query, Tag, Verb, mount,
            output::{Created, NoContent, Output},
        },
        rate_limits::{STANDARD, WEBHOOK_TESTS},
    },
};

/// Endpoints of a page, if the request names no number, and at most.
const PAGE_MAX: i64 = 100;
/// Deliveries of a page, if the request names no number.
const DELIVERIES_DEFAULT: i64 = 20;

/// The organization or project of a path, which endpoints belong to.
trait WebhookOwner: Input + Sync + 'static {
    fn scope(&self) -> WebhookScope;

    /// Ref of the project; absent for an organization.
    fn project_ref(&self) -> Option<&ProjectRef>;

    /// Returns the path of a resource of the owner.
    fn path(&self, rest: &str) -> String;
}

impl WebhookOwner for Organization {
    fn scope(&self) -> WebhookScope {
        WebhookScope {
            organization: self.id,
            project: None,
        }
    }

    fn project_ref(&self) -> Option<&ProjectRef> {
        None
    }

    fn path(&self, rest: &str) -> String {
        format!("/v2/organizations/{}/webhooks/{rest}", self.slug)
    }
}

impl WebhookOwner for Project {
    fn scope(&self) -> WebhookScope {
        WebhookScope {
            organization: self.organization,
            project: Some(self.id),
        }
    }

    fn project_ref(&self) -> Option<&ProjectRef> {
        Some(&self.reference)
    }

    fn path(&self, rest: &str) -> String {
        format!("/v2/projects/{}/webhooks/{rest}", self.reference)
    }
}

macro_rules! permission {
    (organization read) => {
        P::PlatformWebhooksOrganizationRead
    };
    (organization write) => {
        P::PlatformWebhooksOrganizationWrite
    };
    (project read) => {
        P::PlatformWebhooksProjectsRead
    };
    (project write) => {
        P::PlatformWebhooksProjectsWrite
    };
}

/// Declares operations below `…/webhooks` of organizations and of projects.
macro_rules! operations {
    ($(
        $verb:ident $path:literal $id:literal $title:literal,
        $permission:tt, $limit:ident, $handler:ident $(, sample $sample:literal)?;
    )*) => {
        /// Endpoints of this module.
        pub static ENDPOINTS: &[&Endpoint] = &[$(
            &Endpoint {
                id: concat!("v2-organizations-slug-webhooks-", $id),
                summary: concat!($title, " an organization"),
                tag: Tag::Webhooks,
                method: Verb::$verb,
                path: concat!("/v2/organizations/{slug}/webhooks/", $path),
                aliases: &[],
                access: pat_only(&[&[permission!(organization $permission)]]),
                limit: &$limit,
                handler: || mount($handler::<Organization>)$(.sample($sample))?,
            },
            &Endpoint {
                id: concat!("v2-projects-ref-webhooks-", $id),
                summary: concat!($title, " a project"),
                tag: Tag::Webhooks,
                method: Verb::$verb,
                path: concat!("/v2/projects/{ref}/webhooks/", $path),
                aliases: &[],
                access: pat_only(&[&[permission!(project $permission)]]),
                limit: &$limit,
                handler: || mount($handler::<Project>)$(.sample($sample))?,
            },
        )*];
    };
}

operations! {
    Get "endpoints" "endpoints-get" "List the webhook endpoints of", read, STANDARD, list;
    Post "endpoints" "endpoints-post" "Create a webhook endpoint for", write, STANDARD, create,
        sample r#"{"data": {"type": "endpoint", "attributes": {"url": "https://hooks.example.com/gantry", "event_types": [{"type": "v1.project.paused"}], "signing_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}}"#;
    Delete "endpoints" "endpoints-delete" "Delete the webhook endpoints of", write, STANDARD, delete_all;
    Get "endpoints/{id}" "endpoints-id-get" "Get a webhook endpoint of", read, STANDARD, get;
    Patch "endpoints/{id}" "endpoints-id-patch" "Update a webhook endpoint of", write, STANDARD, update,
        sample r#"{"data": {"type": "endpoint", "attributes": {"enabled": false}}}"#;
    Delete "endpoints/{id}" "endpoints-id-delete" "Delete a webhook endpoint of", write, STANDARD, delete;
    Get "endpoints/{id}/deliveries" "endpoints-id-deliveries-get" "List the deliveries of a webhook endpoint of", read, STANDARD, list_deliveries;
    Post "endpoints/{id}/test" "endpoints-id-test-post" "Test a webhook endpoint of", write, WEBHOOK_TESTS, test,
        sample r#"{"data": {"type": "event", "attributes": {"type": "v1.project.paused"}}}"#;
    Get "deliveries/{id}" "deliveries-id-get" "Get a webhook delivery of", read, STANDARD, get_delivery;
    Post "deliveries/{id}/retry" "deliveries-id-retry-post" "Retry a webhook delivery of", write, WEBHOOK_TESTS, retry;
}

#[derive(Debug, Deserialize, JsonSchema)]
struct EndpointPageQuery {
    /// Endpoints to leave out, a multiple of the limit.
    #[serde(rename = "page[offset]", default)]
    #[schemars(range(min = 0))]
    offset: i64,
    /// Endpoints to return, 1 to 100.
    #[serde(rename = "page[limit]", default = "page_max")]
    #[schemars(range(min = 1, max = 100))]
    limit: i64,
}

const fn page_max() -> i64 {
    PAGE_MAX
}

async fn list<O: WebhookOwner>(
    owner: O,
    context: ApiContext,
    Query(page): Query<EndpointPageQuery>,
) -> Result<Json<Paged<EndpointResource>>, Error> {
    let EndpointPageQuery { offset, limit } = page;
    check_size("page[limit]", limit)?;
    if offset < 0 || offset % limit != 0 {
        let problem = "expected a multiple of page[limit]";
        return Err(Error::invalid("page[offset]", problem));
    }
    let page = (offset, limit + 1);
    let mut found = endpoints::list(&context, owner.scope(), page).await?;
    let has_more = found.len() > usize::try_from(limit).unwrap_or_default();
    if has_more {
        found.pop();
    }
    let link = |offset: i64| {
        owner.path(&format!(
            "endpoints?page[offset]={offset}&page[limit]={limit}"
        ))
    };
    let now = context.clock.now();
    Ok(Json(Paged {
        data: found
            .into_iter()
            .map(|endpoint| EndpointResource::new(endpoint, now))
            .collect(),
        links: PageLinks {
            prev: (offset > 0).then(|| link(offset - limit)),
            next: has_more.then(|| link(offset.saturating_add(limit))),
        },
    }))
}

fn check_size(field: &'static str, size: i64) -> Result<(), Error> {
    if (1..=PAGE_MAX).contains(&size) {
        return Ok(());
    }
    let problem = format!("Invalid input: expected a number from 1 to {PAGE_MAX}");
    Err(Error::invalid(field, problem))
}

async fn create<O: WebhookOwner>(
    owner: O,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
    Json(request): Json<CreateEndpointRequest>,
) -> Result<Created<Envelope<EndpointResource>>, Error> {
    let attributes = request.data.attributes;
    let creator = user.gotrue_id;
    let now = context.clock.now();
    audit.answer_with(move |created| Created(shown(created, now)).respond());
    let created = endpoints::create(&context, owner.scope(), creator, attributes, &audit).await?;
    Ok(Created(shown(&created, now)))
}

async fn get<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<Envelope<EndpointResource>>, Error> {
    let endpoint = endpoints::get(&context, owner.scope(), id).await?;
    let data = EndpointResource::new(endpoint, context.clock.now());
    Ok(Json(Envelope { data }))
}

async fn update<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateEndpointRequest>,
) -> Result<Json<Envelope<EndpointResource>>, Error> {
    let attributes = request.data.attributes;
    let now = context.clock.now();
    audit.answer_with(move |updated| Json(shown(updated, now)).respond());
    let updated = endpoints::update(&context, owner.scope(), id, attributes, &audit).await?;
    Ok(Json(shown(&updated, now)))
}

async fn delete<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<Envelope<EndpointResource>>, Error> {
    let now = context.clock.now();
    audit.answer_with(move |deleted: &Vec<WebhookEndpoint>| {
        let shown = |endpoint| Json(shown(endpoint, now)).respond();
        deleted.first().map_or_else(|| NoContent.respond(), shown)
    });
    let deleted = endpoints::delete(&context, owner.scope(), Some(id), &audit).await?;
    let endpoint = deleted.first().ok_or(endpoints::not_found())?;
    Ok(Json(shown(endpoint, now)))
}

async fn delete_all<O: WebhookOwner>(
    owner: O,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Json<Envelope<Vec<EndpointResource>>>, Error> {
    let now = context.clock.now();
    let view = move |deleted: &Vec<WebhookEndpoint>| {
        let resource = |endpoint: &WebhookEndpoint| EndpointResource::new(endpoint.clone(), now);
        let data = deleted.iter().map(resource).collect();
        Json(Envelope { data })
    };
    audit.answer_with(move |deleted| view(deleted).respond());
    let deleted = endpoints::delete(&context, owner.scope(), None, &audit).await?;
    Ok(view(&deleted))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct DeliveryPageQuery {
    /// Deliveries to return, 1 to 100.
    #[serde(rename = "page[size]", default = "deliveries_default")]
    #[schemars(range(min = 1, max = 100))]
    size: i64,
    /// Returns deliveries that are older than this one.
    #[serde(rename = "page[after]")]
    after: Option<Uuid>,
    /// Returns deliveries that are newer than this one.
    #[serde(rename = "page[before]")]
    before: Option<Uuid>,
}

const fn deliveries_default() -> i64 {
    DELIVERIES_DEFAULT
}

impl DeliveryPageQuery {
    fn cursor(&self) -> Result<HistoryCursor, Error> {
        match (self.after, self.before) {
            (None, None) => Ok(HistoryCursor::Newest),
            (Some(id), None) => Ok(HistoryCursor::After(id)),
            (None, Some(id)) => Ok(HistoryCursor::Before(id)),
            (Some(_), Some(_)) => Err(Error::invalid(
                "page[before]",
                "is not possible together with page[after]",
            )),
        }
    }
}

async fn list_deliveries<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
    Query(query): Query<DeliveryPageQuery>,
) -> Result<Json<Paged<DeliveryResource>>, Error> {
    check_size("page[size]", query.size)?;
    let cursor = query.cursor()?;
    let endpoint = endpoints::get(&context, owner.scope(), id).await?;
    let now = context.clock.now();
    let page = history::page(&context.db, endpoint.id, cursor, query.size, now).await?;
    let link = |name: &str, delivery: Option<&history::WebhookDelivery>| {
        let size = query.size;
        let rest =
            |from: Uuid| format!("endpoints/{id}/deliveries?page[size]={size}&{name}={from}");
        delivery.map(|delivery| owner.path(&rest(delivery.id)))
    };
    let (first, last) = (page.deliveries.first(), page.deliveries.last());
    let links = PageLinks {
        prev: link("page[before]", first.filter(|_| page.has_newer)),
        next: link("page[after]", last.filter(|_| page.has_older)),
    };
    let data = page.deliveries.into_iter().map(DeliveryResource::from);
    Ok(Json(Paged {
        data: data.collect(),
        links,
    }))
}

async fn get_delivery<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
) -> Result<Json<Envelope<DeliveryResource>>, Error> {
    let now = context.clock.now();
    let delivery = history::delivery(&context.db, owner.scope(), id, now).await?;
    Ok(Json(Envelope {
        data: delivery.into(),
    }))
}

async fn test<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
    request: Option<Json<TestRequest>>,
) -> Result<Created<Envelope<IngressResource>>, Error> {
    let request = request.map(|Json(request)| request).unwrap_or_default();
    let event_type = request.data.map(|data| data.attributes.r#type);
    let owner = (owner.scope(), owner.project_ref());
    let event = (event_type, user.gotrue_id);
    audit.answer_with(|delivery| queued(*delivery).respond());
    let delivery = deliveries::test(&context, owner, id, event, &audit).await?;
    Ok(queued(delivery))
}

async fn retry<O: WebhookOwner>(
    owner: O,
    PathId(id): PathId,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<Created<Envelope<IngressResource>>, Error> {
    audit.answer_with(|delivery| queued(*delivery).respond());
    let delivery = deliveries::retry(&context, owner.scope(), id, &audit).await?;
    Ok(queued(delivery))
}

/// Returns the response with an endpoint.
fn shown(endpoint: &WebhookEndpoint, now: DateTime<Utc>) -> Envelope<EndpointResource> {
    let data = EndpointResource::new(endpoint.clone(), now);
    Envelope { data }
}

/// Returns the response to a queued delivery.
fn queued(delivery: Uuid) -> Created<Envelope<IngressResource>> {
    let data = IngressResource::new(delivery);
    Created(Envelope { data })
}
