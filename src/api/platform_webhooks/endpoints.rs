//! Creation, change and deletion of endpoints.

use std::collections::BTreeMap;

use chrono::{SubsecRound, TimeDelta};
use serde_json::Value;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    checks::{
        check_description, check_headers, check_secret, check_types, check_url, is_same_origin,
    },
    resources::{CreateEndpointAttributes, UpdateEndpointAttributes},
};
use crate::{
    api::context::ApiContext,
    control::platform_webhooks::{
        endpoint::{
            EndpointSecrets, PreviousSecret, WebhookEndpoint, WebhookScope, select_endpoints,
        },
        queue,
    },
    platform::{
        audit::Recorder,
        error::{Context, Error, WebhookProblem},
        sealing::SealingKey,
    },
};

/// Endpoints of an organization, and of each project.
const ENDPOINTS_MAX: i64 = 20;
/// Longest time in which a former secret signs as well, in seconds.
const OVERLAP_SECS_MAX: u32 = 86_400;

/// Lists endpoints, oldest first. `page` is the offset and the maximum number.
pub(super) async fn list(
    context: &ApiContext,
    scope: WebhookScope,
    page: (i64, i64),
) -> Result<Vec<WebhookEndpoint>, Error> {
    let sql = select_endpoints!(
        "where e.organization_id = $1 and e.project_id is not distinct from $2 \
         order by e.created_at, e.id offset $3 limit $4"
    );
    let (organization, project) = scope.columns();
    let rows = context
        .db
        .query(sql, &[&organization, &project, &page.0, &page.1])
        .await
        .context("listing webhook endpoints")?;
    let key = &context.settings.sealing;
    rows.iter()
        .map(|row| WebhookEndpoint::read(row, key))
        .collect()
}

/// Reads an endpoint.
pub(super) async fn get(
    context: &ApiContext,
    scope: WebhookScope,
    id: Uuid,
) -> Result<WebhookEndpoint, Error> {
    let sql = select_endpoints!(
        "where e.organization_id = $1 and e.project_id is not distinct from $2 and e.id = $3"
    );
    let (organization, project) = scope.columns();
    let rows = context
        .db
        .query(sql, &[&organization, &project, &id])
        .await
        .context("reading a webhook endpoint")?;
    let row = rows.first().ok_or(not_found())?;
    WebhookEndpoint::read(row, &context.settings.sealing)
}

pub(super) const fn not_found() -> Error {
    Error::Webhook(WebhookProblem::EndpointNotFound)
}

/// Reads an endpoint and locks its row.
pub(super) async fn locked(
    transaction: &Transaction<'_>,
    key: &SealingKey,
    scope: WebhookScope,
    id: Uuid,
) -> Result<WebhookEndpoint, Error> {
    let sql = select_endpoints!(
        "where e.organization_id = $1 and e.project_id is not distinct from $2 and e.id = $3 \
         for update"
    );
    let (organization, project) = scope.columns();
    let row = transaction
        .query_opt(sql, &[&organization, &project, &id])
        .await
        .context("locking a webhook endpoint")?;
    WebhookEndpoint::read(&row.ok_or(not_found())?, key)
}

/// Creates an endpoint. It receives events from now on.
///
/// Errors: [`Error::Rejected`] if there are as many as permitted.
pub(super) async fn create(
    context: &ApiContext,
    scope: WebhookScope,
    created_by: Uuid,
    attributes: CreateEndpointAttributes,
    audit: &Recorder,
) -> Result<WebhookEndpoint, Error> {
    let doing = "creating a webhook endpoint";
    check_secret(&attributes.signing_secret)?;
    check_description(attributes.description.as_deref())?;
    let event_types = check_types(attributes.event_types)?;
    let headers = check_headers(attributes.custom_headers, &BTreeMap::default())?;
    check_url(&attributes.url, context.outbound.policy()).await?;
    let now = context.clock.now();
    let endpoint = WebhookEndpoint {
        id: context.entropy.uuid_v7(now),
        scope,
        url: attributes.url,
        enabled: attributes.enabled,
        description: attributes.description,
        event_types,
        secrets: EndpointSecrets {
            signing_secret: attributes.signing_secret,
            previous: None,
            headers,
        },
        created_by,
        // As stored.
        created_at: now.trunc_subsecs(6),
    };
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    check_room(&transaction, scope).await?;
    insert(&transaction, context, scope, &endpoint).await?;
    let change = (None, Some(endpoint.audited()));
    audit.result(&endpoint);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(endpoint)
}

/// Rejects another endpoint if there are as many as permitted. Locks the organization, so that two
/// requests do not both take the last place.
async fn check_room(transaction: &Transaction<'_>, scope: WebhookScope) -> Result<(), Error> {
    let doing = "counting webhook endpoints";
    let (organization, project) = scope.columns();
    let sql = "select from organizations where id = $1 for no key update";
    let locked = transaction.execute(sql, &[&organization]).await;
    locked.context(doing)?;
    let sql = "select count(*) from webhook_endpoints \
               where organization_id = $1 and project_id is not distinct from $2";
    let row = transaction.query_one(sql, &[&organization, &project]).await;
    if row.context(doing)?.get::<_, i64>(0) >= ENDPOINTS_MAX {
        let text = format!(
            "At most {ENDPOINTS_MAX} webhook endpoints are possible here; delete one first"
        );
        return Err(Error::Rejected(text.into()));
    }
    Ok(())
}

async fn insert(
    transaction: &Transaction<'_>,
    context: &ApiContext,
    scope: WebhookScope,
    endpoint: &WebhookEndpoint,
) -> Result<(), Error> {
    let secrets = &endpoint.secrets;
    let sealed = secrets.seal(&context.settings.sealing, &context.entropy, endpoint.id)?;
    let (organization, project) = scope.columns();
    let sql = "insert into webhook_endpoints (id, organization_id, project_id, url, enabled, \
               description, event_types, secrets, created_by, created_at, position) \
               values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce( \
                   (select number from event_heads where organization_id = $2), 0))";
    transaction
        .execute(
            sql,
            &[
                &endpoint.id,
                &organization,
                &project,
                &endpoint.url,
                &endpoint.enabled,
                &endpoint.description,
                &endpoint.event_types,
                &sealed,
                &endpoint.created_by,
                &endpoint.created_at,
            ],
        )
        .await
        .context("creating a webhook endpoint")
        .map(drop)
}

/// Changes an endpoint. One that is disabled skips its queue; one that is enabled starts with the
/// next event.
pub(super) async fn update(
    context: &ApiContext,
    scope: WebhookScope,
    id: Uuid,
    attributes: UpdateEndpointAttributes,
    audit: &Recorder,
) -> Result<WebhookEndpoint, Error> {
    let doing = "updating a webhook endpoint";
    if let Some(url) = &attributes.url {
        check_url(url, context.outbound.policy()).await?;
    }
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = locked(&transaction, &context.settings.sealing, scope, id).await?;
    let endpoint = changed(context, before.clone(), attributes)?;
    if before.enabled != endpoint.enabled {
        queue::queue_in(&transaction, id, &context.entropy, now).await?;
        queue::skip_all(&transaction, id, now).await?;
    }
    let secrets = &endpoint.secrets;
    let sealed = secrets.seal(&context.settings.sealing, &context.entropy, id)?;
    let sql = "update webhook_endpoints set url = $2, enabled = $3, description = $4, \
               event_types = $5, secrets = $6, proven = proven and url = $2 where id = $1";
    transaction
        .execute(
            sql,
            &[
                &id,
                &endpoint.url,
                &endpoint.enabled,
                &endpoint.description,
                &endpoint.event_types,
                &sealed,
            ],
        )
        .await
        .context(doing)?;
    let change = (Some(before.audited()), Some(endpoint.audited()));
    audit.result(&endpoint);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(endpoint)
}

/// Returns an endpoint with changed attributes.
fn changed(
    context: &ApiContext,
    mut endpoint: WebhookEndpoint,
    attributes: UpdateEndpointAttributes,
) -> Result<WebhookEndpoint, Error> {
    let moved = attributes
        .url
        .as_ref()
        .is_some_and(|url| !is_same_origin(url, &endpoint.url));
    let mut stored = endpoint.secrets.headers.clone();
    if moved {
        // Otherwise a member that may not read the values could have them sent elsewhere.
        stored.clear();
    }
    match attributes.custom_headers {
        Some(headers) => endpoint.secrets.headers = check_headers(headers, &stored)?,
        None if moved && !endpoint.secrets.headers.is_empty() => {
            let problem = "are not sent to another destination; send them with the URL";
            return Err(Error::invalid("data.attributes.custom_headers", problem));
        }
        None => {}
    }
    let overlap = attributes.signing_secret_overlap_secs;
    if let Some(secret) = attributes.signing_secret {
        rotate(context, &mut endpoint.secrets, secret, overlap.unwrap_or(0))?;
    } else if overlap.is_some() {
        let problem = "is only possible with signing_secret";
        let field = "data.attributes.signing_secret_overlap_secs";
        return Err(Error::invalid(field, problem));
    }
    if let Some(description) = attributes.description {
        check_description(description.as_deref())?;
        endpoint.description = description;
    }
    if let Some(types) = attributes.event_types {
        endpoint.event_types = check_types(types)?;
    }
    endpoint.url = attributes.url.unwrap_or(endpoint.url);
    endpoint.enabled = attributes.enabled.unwrap_or(endpoint.enabled);
    Ok(endpoint)
}

/// Replaces the signing secret. The former one signs as well for `overlap` seconds.
fn rotate(
    context: &ApiContext,
    secrets: &mut EndpointSecrets,
    secret: String,
    overlap: u32,
) -> Result<(), Error> {
    check_secret(&secret)?;
    if overlap > OVERLAP_SECS_MAX {
        let problem = format!("Too big: expected number to be <={OVERLAP_SECS_MAX}");
        let field = "data.attributes.signing_secret_overlap_secs";
        return Err(Error::invalid(field, problem));
    }
    let former = std::mem::replace(&mut secrets.signing_secret, secret);
    secrets.previous = (overlap > 0).then(|| PreviousSecret {
        signing_secret: former,
        until: context.clock.now() + TimeDelta::seconds(overlap.into()),
    });
    Ok(())
}

/// Deletes endpoints of a scope: one, or all of them. Their events and deliveries go with them, and
/// the result of an attempt in flight is not recorded. Returns the deleted endpoints.
pub(super) async fn delete(
    context: &ApiContext,
    scope: WebhookScope,
    id: Option<Uuid>,
    audit: &Recorder,
) -> Result<Vec<WebhookEndpoint>, Error> {
    let doing = "deleting webhook endpoints";
    let (organization, project) = scope.columns();
    let key = &context.settings.sealing;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = select_endpoints!(
        "where e.organization_id = $1 and e.project_id is not distinct from $2 \
         and ($3::uuid is null or e.id = $3) order by e.id for update"
    );
    let rows = transaction
        .query(sql, &[&organization, &project, &id])
        .await
        .context(doing)?;
    let deleted: Result<Vec<_>, Error> = rows
        .iter()
        .map(|row| WebhookEndpoint::read(row, key))
        .collect();
    let deleted = deleted?;
    if id.is_some() && deleted.is_empty() {
        return Err(not_found());
    }
    let ids: Vec<Uuid> = deleted.iter().map(|endpoint| endpoint.id).collect();
    let sql = "delete from webhook_endpoints where id = any($1)";
    transaction.execute(sql, &[&ids]).await.context(doing)?;
    let before: Vec<Value> = deleted.iter().map(WebhookEndpoint::audited).collect();
    let change = (Some(before.into()), None);
    let now = context.clock.now();
    audit.result(&deleted);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(deleted)
}
