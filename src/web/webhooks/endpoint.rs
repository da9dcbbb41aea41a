//! One endpoint with its deliveries, and the forms that change, test and delete it.

use askama::Template;
use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    fields::{self, EndpointForm, TypeOption},
    place::{DeliveryEntry, EndpointEntry, Enveloped, Listed, WebhookHome, WebhookPlace},
};
use crate::{
    platform::{error::Error, http::Query},
    web::{
        form::{self, NoFields},
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor},
        path::PathWebhook,
        permissions::PermissionCheck,
    },
};

/// Deliveries per page.
const PAGE_DELIVERIES: usize = 20;

/// A row of the list of deliveries.
struct Row {
    delivery: DeliveryEntry,
    at: Timestamp,
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct Page {
    layout: Layout,
    place: WebhookHome,
    can_change: PermissionCheck,
    endpoint: EndpointEntry,
    created: Timestamp,
    /// Time until which the former secret signs as well.
    overlap: Option<Timestamp>,
    rows: Vec<Row>,
    /// Cursors of the previous and the next page.
    before: Option<Uuid>,
    after: Option<Uuid>,
    form: EndpointForm,
    types: Vec<TypeOption>,
    /// A random secret for a rotation.
    secret: String,
    problem: Option<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
pub(super) struct DeliveriesQuery {
    before: Option<Uuid>,
    after: Option<Uuid>,
}

pub(super) async fn show<P: WebhookPlace>(
    visitor: Visitor,
    place: P,
    PathWebhook(id): PathWebhook,
    Query(query): Query<DeliveriesQuery>,
) -> Result<PageResponse, Error> {
    render(&visitor, &place, id, &query, None).await
}

/// Shows the endpoint. `rejected` is a form that was not accepted, if it has one, and the reason.
async fn render<P: WebhookPlace>(
    visitor: &Visitor,
    place: &P,
    id: Uuid,
    query: &DeliveriesQuery,
    rejected: Option<(Option<EndpointForm>, String)>,
) -> Result<PageResponse, Error> {
    let place = place.load(visitor).await?;
    let path = place.operation(&format!("endpoints/{id}"));
    let endpoint: Enveloped<EndpointEntry> = visitor.get(&path).await?;
    let endpoint = endpoint.data;
    let position = match (query.before, query.after) {
        (Some(id), _) => format!("&page%5Bbefore%5D={id}"),
        (None, Some(id)) => format!("&page%5Bafter%5D={id}"),
        (None, None) => String::new(),
    };
    let path = format!("{path}/deliveries?page%5Bsize%5D={PAGE_DELIVERIES}{position}");
    let listed: Listed<DeliveryEntry> = visitor.get(&path).await?;
    let before = listed.links.prev.and(listed.data.first()).map(|it| it.id);
    let after = listed.links.next.and(listed.data.last()).map(|it| it.id);
    let now = visitor.context.clock.now();
    let row = |delivery: DeliveryEntry| Row {
        at: Timestamp::new(delivery.attributes.attempt_timestamp, now),
        delivery,
    };
    let (form, problem) = match rejected {
        Some((form, problem)) => (form, Some(problem)),
        None => (None, None),
    };
    let form = form.unwrap_or_else(|| EndpointForm::of(&endpoint));
    let overlap = endpoint.attributes.previous_secret_expires_at;
    let random = visitor.context.entropy.bytes::<24>();
    let page = Page {
        layout: visitor.layout().at_path(&place.path(&format!("/{id}"))),
        can_change: place.can_change(visitor).await?,
        created: Timestamp::new(endpoint.attributes.created_at, now),
        overlap: overlap.map(|at| Timestamp::new(at, now)),
        rows: listed.data.into_iter().map(row).collect(),
        before,
        after,
        types: form.options(&place),
        form,
        secret: format!("whsec_{}", BASE64_STANDARD.encode(random)),
        problem,
        endpoint,
        place,
    };
    PageResponse::form(&page, page.problem.is_some())
}

/// Changes the endpoint, and shows it with a confirmation or with the reason of a rejection.
async fn change<P: WebhookPlace>(
    visitor: &Visitor,
    place: &P,
    id: Uuid,
    (body, form): (&Value, Option<EndpointForm>),
    done: &str,
) -> Result<PageResponse, Error> {
    let target = place.load(visitor).await?;
    let path = target.operation(&format!("endpoints/{id}"));
    let changed = visitor
        .call::<Value>(Method::PATCH, &path, Some(body))
        .await;
    match changed {
        Ok(_) => PageResponse::redirect(&target.path(&format!("/{id}?done={done}"))),
        Err(error) => {
            let rejected = Some((form, form::problem(error)?));
            render(visitor, place, id, &DeliveriesQuery::default(), rejected).await
        }
    }
}

pub(super) async fn update<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
    place: P,
    PathWebhook(id): PathWebhook,
) -> Result<PageResponse, Error> {
    let form = EndpointForm::parse(fields);
    let body = form.body();
    change(&visitor, &place, id, (&body, Some(form)), "updated").await
}

#[derive(Deserialize)]
pub(super) struct RotationForm {
    secret: String,
    /// Hours in which the former secret signs as well.
    overlap_hours: u32,
}

pub(super) async fn rotate<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(form): SessionForm<RotationForm>,
    place: P,
    PathWebhook(id): PathWebhook,
) -> Result<PageResponse, Error> {
    let body = fields::body(&json!({
        "signing_secret": form.secret.trim(),
        "signing_secret_overlap_secs": form.overlap_hours.saturating_mul(3600),
    }));
    change(&visitor, &place, id, (&body, None), "rotated").await
}

pub(super) async fn test<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(form): SessionForm<TestForm>,
    place: P,
    PathWebhook(id): PathWebhook,
) -> Result<PageResponse, Error> {
    let target = place.load(&visitor).await?;
    let path = target.operation(&format!("endpoints/{id}/test"));
    let event = json!({"type": "event", "attributes": {"type": form.r#type}});
    let body = if form.r#type.is_empty() {
        json!({})
    } else {
        json!({ "data": event })
    };
    match visitor.post::<Value>(&path, &body).await {
        Ok(_) => PageResponse::redirect(&target.path(&format!("/{id}?done=tested"))),
        Err(error) => {
            let rejected = Some((None, form::problem(error)?));
            render(&visitor, &place, id, &DeliveriesQuery::default(), rejected).await
        }
    }
}

#[derive(Deserialize)]
pub(super) struct TestForm {
    /// Name of an event type; empty for any that the endpoint receives.
    r#type: String,
}

pub(super) async fn delete<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(NoFields {}): SessionForm<NoFields>,
    place: P,
    PathWebhook(id): PathWebhook,
) -> Result<PageResponse, Error> {
    let target = place.load(&visitor).await?;
    let path = target.operation(&format!("endpoints/{id}"));
    visitor.delete(&path).await?;
    PageResponse::redirect(&target.path("?done=deleted"))
}
