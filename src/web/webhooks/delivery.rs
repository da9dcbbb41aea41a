//! One delivery: the event, the response, and the button that sends it again.

use askama::Template;
use serde_json::{Value, json};
use uuid::Uuid;

use super::place::{DeliveryEntry, Enveloped, WebhookHome, WebhookPlace};
use crate::{
    platform::error::{Context, Error},
    web::{
        form::{self, NoFields},
        labels::Timestamp,
        page::{Layout, PageResponse, SessionForm, Visitor},
        path::{PathDelivery, PathWebhook},
        permissions::PermissionCheck,
    },
};

#[derive(Template)]
#[template(path = "webhook_delivery.html")]
struct Page {
    layout: Layout,
    place: WebhookHome,
    /// Id of the endpoint.
    endpoint: Uuid,
    can_change: PermissionCheck,
    delivery: DeliveryEntry,
    at: Timestamp,
    /// The payload, indented.
    payload: String,
    problem: Option<String>,
}

pub(super) async fn show<P: WebhookPlace>(
    visitor: Visitor,
    place: P,
    PathWebhook(endpoint): PathWebhook,
    PathDelivery(id): PathDelivery,
) -> Result<PageResponse, Error> {
    render(&visitor, &place, (endpoint, id), None).await
}

async fn render<P: WebhookPlace>(
    visitor: &Visitor,
    place: &P,
    (endpoint, id): (Uuid, Uuid),
    problem: Option<String>,
) -> Result<PageResponse, Error> {
    let place = place.load(visitor).await?;
    let path = place.operation(&format!("deliveries/{id}"));
    let delivery: Enveloped<DeliveryEntry> = visitor.get(&path).await?;
    let delivery = delivery.data;
    let payload = serde_json::to_string_pretty(&delivery.attributes.event.payload);
    let now = visitor.context.clock.now();
    let page = Page {
        layout: visitor.layout(),
        endpoint,
        can_change: place.can_change(visitor).await?,
        at: Timestamp::new(delivery.attributes.attempt_timestamp, now),
        payload: payload.context("showing a delivery")?,
        delivery,
        problem,
        place,
    };
    PageResponse::form(&page, page.problem.is_some())
}

/// Sends the event again, and shows the endpoint.
pub(super) async fn retry<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(NoFields {}): SessionForm<NoFields>,
    place: P,
    PathWebhook(endpoint): PathWebhook,
    PathDelivery(id): PathDelivery,
) -> Result<PageResponse, Error> {
    let target = place.load(&visitor).await?;
    let path = target.operation(&format!("deliveries/{id}/retry"));
    match visitor.post::<Value>(&path, &json!({})).await {
        Ok(_) => PageResponse::redirect(&target.path(&format!("/{endpoint}?done=retried"))),
        Err(error) => {
            let problem = Some(form::problem(error)?);
            render(&visitor, &place, (endpoint, id), problem).await
        }
    }
}
