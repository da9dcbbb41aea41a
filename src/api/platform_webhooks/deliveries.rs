//! Tests of endpoints, and retries of deliveries by hand.

use chrono::SecondsFormat;
use gantry_base::ids::ProjectRef;
use uuid::Uuid;

use super::{checks::current_name, endpoints};
use crate::{
    api::context::ApiContext,
    control::platform_webhooks::{
        endpoint::{WebhookEndpoint, WebhookScope},
        history,
        queue::{self, ManualEvent},
    },
    platform::{
        audit::Recorder,
        error::{Context, Error, WebhookProblem},
        events::{self, EnvelopePayload, EventActor, EventEnvelope, EventScope, EventType},
    },
};

/// `project_ref` of a test of an organization's endpoint with an event of a project. No project has
/// it, so that a receiver does not act on a real one.
const TEST_REF: &str = "testtesttesttesttest";

/// Queues a test event. Returns the id of its delivery.
pub(super) async fn test(
    context: &ApiContext,
    (scope, reference): (WebhookScope, Option<&ProjectRef>),
    id: Uuid,
    (requested, actor): (Option<String>, Uuid),
    audit: &Recorder,
) -> Result<Uuid, Error> {
    let doing = "testing a webhook endpoint";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let key = &context.settings.sealing;
    let endpoint = endpoints::locked(&transaction, key, scope, id).await?;
    if !endpoint.enabled {
        return Err(Error::Webhook(WebhookProblem::EndpointDisabled));
    }
    let event_type = test_type(&endpoint, requested, reference.is_some())?;
    let sql = "select slug from organizations where id = $1";
    let row = transaction.query_one(sql, &[&scope.organization.0]).await;
    let project_ref = match event_type.scope {
        EventScope::Organization => None,
        EventScope::Project => Some(reference.map_or(TEST_REF, ProjectRef::as_str).to_owned()),
    };
    let event = EventEnvelope {
        id: context.entropy.uuid_v7(now),
        name: event_type.name.to_owned(),
        timestamp: now.to_rfc3339_opts(SecondsFormat::Millis, true),
        payload: EnvelopePayload {
            organization_slug: row.context(doing)?.get(0),
            project_ref,
            actor: Some(EventActor { user_id: actor }),
            is_test: Some(true),
            fields: event_type.sample_payload(),
        },
    };
    let event = ManualEvent::Test(event);
    let delivery = queue::queue_manual(&transaction, id, event, &context.entropy, now).await?;
    let change = (None, Some(serde_json::json!({ "delivery": delivery })));
    audit.result(&delivery);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.platform_webhooks.wake();
    Ok(delivery)
}

/// Returns the type of a test: the requested one, or one that the endpoint is subscribed to.
fn test_type(
    endpoint: &WebhookEndpoint,
    requested: Option<String>,
    is_of_project: bool,
) -> Result<EventType, Error> {
    let not_subscribed = || Error::Webhook(WebhookProblem::NotSubscribed);
    if let Some(name) = requested {
        let found = events::find(&current_name(name)).copied();
        let found = found.filter(|found| endpoint.is_subscribed_to(found.name));
        return found.ok_or_else(not_subscribed);
    }
    let mut subscribed = events::catalog().to_vec();
    subscribed.retain(|it| endpoint.is_subscribed_to(it.name));
    // A project's endpoint may be subscribed to types of organizations only.
    let fits = |it: &&EventType| !is_of_project || it.scope == EventScope::Project;
    let found = subscribed.iter().find(fits).or(subscribed.first());
    found.copied().ok_or_else(not_subscribed)
}

/// Queues another attempt of a delivery's event. Returns the id of the new delivery.
pub(super) async fn retry(
    context: &ApiContext,
    scope: WebhookScope,
    id: Uuid,
    audit: &Recorder,
) -> Result<Uuid, Error> {
    let doing = "retrying a webhook delivery";
    let now = context.clock.now();
    let delivery = history::delivery(&context.db, scope, id, now).await?;
    if delivery.status == "pending" {
        let text = "The delivery is pending; it is attempted without a retry";
        return Err(Error::Rejected(text.into()));
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let key = &context.settings.sealing;
    let endpoint = endpoints::locked(&transaction, key, scope, delivery.endpoint).await?;
    if !endpoint.enabled {
        return Err(Error::Webhook(WebhookProblem::EndpointDisabled));
    }
    // Kept from the removal of old events.
    let sql = "select from webhook_events where id = $1 for key share";
    let event = transaction.query_opt(sql, &[&delivery.event_id]).await;
    let kept = event.context(doing)?;
    kept.ok_or(Error::Webhook(WebhookProblem::DeliveryNotFound))?;
    let event = ManualEvent::Repeated(delivery.event_id);
    let (endpoint, entropy) = (endpoint.id, &context.entropy);
    let queued = queue::queue_manual(&transaction, endpoint, event, entropy, now).await?;
    let change = (None, Some(serde_json::json!({ "delivery": queued })));
    audit.result(&queued);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.platform_webhooks.wake();
    Ok(queued)
}
