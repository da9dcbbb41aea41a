//! ACME orders (RFC 8555). Orders are persisted and can be resumed by any node that has claimed the
//! hostname.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::OrganizationId;
use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use secrecy::SecretString;
use smol_str::SmolStr;
use tokio::time::timeout;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    acme_account::account, certificates, challenge_records,
    challenge_records::ChallengeRecordStatus, renewal, required_records::CAA_ERROR,
};
use crate::{
    control::{
        context::ControlContext,
        domains::{hostnames::state::CertificateAuthority, zone::challenge_name},
    },
    platform::{
        error::{Context, Error},
        notifications,
        tables::Table,
    },
    proxy::service_proxy::ChallengeResponse,
};

/// Limits on new orders: scope, period and number. They stay below the rate limits of certificate
/// authorities, also if a hostname is deleted and requested repeatedly.
const ORDER_LIMITS: [(BudgetScope, TimeDelta, i64); 4] = [
    (BudgetScope::All, TimeDelta::minutes(1), 10),
    (BudgetScope::All, TimeDelta::hours(3), 250),
    (BudgetScope::Organizations, TimeDelta::hours(3), 25),
    (BudgetScope::Hostnames, TimeDelta::hours(1), 4),
];
/// Organization id that the operator's orders are counted for.
const OPERATOR: i64 = 0;
/// Time to wait for the authority in one attempt. The next attempt resumes the order.
const AUTHORITY_WAIT: Duration = Duration::from_secs(30);
/// Timeout of one attempt. Shorter than a claim.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(90);
/// Age after which an order is replaced, because its authorizations may have expired.
const ORDER_LIFE: TimeDelta = TimeDelta::days(1);

/// A name to be certified.
#[derive(Debug, Clone)]
pub(crate) struct CertificateSubject {
    /// Id of the hostname.
    pub(crate) id: Uuid,
    /// DNS name, which may be a wildcard.
    pub(crate) name: String,
    /// Organization of the hostname. `None`: the operator's.
    pub(crate) organization: Option<OrganizationId>,
    /// Consecutive failed orders.
    pub(crate) attempts: i32,
    /// Name in the operator's zone to which the owner may delegate DNS-01 challenges.
    pub(crate) delegate: Option<String>,
}

/// Challenge type of an order.
enum ChallengeMethod {
    /// HTTP-01 or TLS-ALPN-01, answered by the service proxy.
    Edge(ChallengeType),
    /// DNS-01, with the record at this name.
    Dns(String),
}

impl CertificateAuthority {
    /// Returns the context that the account's credentials are encrypted for.
    pub(super) fn place(&self) -> String {
        format!("acme account at {}", self.directory)
    }

    pub(super) fn builder(&self) -> Result<AccountBuilder, instant_acme::Error> {
        match &self.root {
            Some(root) => Account::builder_with_root(root),
            None => Account::builder(),
        }
    }
}

/// Scope of an order limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BudgetScope {
    All,
    Organizations,
    Hostnames,
}

/// Result of an attempt.
#[derive(Debug)]
pub(crate) enum OrderOutcome {
    /// The certificate was issued; renew it at this time.
    Certified(DateTime<Utc>),
    /// The authority rejected the order.
    Refused(String),
    /// A limit or a missing precondition delays the order.
    Postponed(String),
    /// Another attempt is needed.
    Unfinished(String),
}

/// The persisted part of an order.
struct PersistedOrder {
    url: String,
    key: SecretString,
}

impl From<instant_acme::Error> for OrderError {
    fn from(error: instant_acme::Error) -> Self {
        Self::CertificateAuthority(error)
    }
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// A failure of an attempt.
pub(crate) enum OrderError {
    CertificateAuthority(instant_acme::Error),
    Ours(Error),
    /// The authority rejected the order.
    Invalid(String),
    /// A limit on new orders is reached.
    Exhausted(BudgetScope),
    /// A precondition on this server's side is missing.
    Blocked(String),
    /// The attempt must be repeated later.
    Later(&'static str),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CertificateAuthority(error) => error.fmt(f),
            Self::Ours(error) => error.fmt(f),
            Self::Invalid(why) | Self::Blocked(why) => f.write_str(why),
            Self::Exhausted(BudgetScope::All) => f.write_str(
                "this server has asked for as many certificates as its authority allows",
            ),
            Self::Exhausted(BudgetScope::Organizations) => f.write_str(
                "the organization has asked for as many certificates as it may in three hours",
            ),
            Self::Exhausted(BudgetScope::Hostnames) => f.write_str(
                "as many certificates were asked for this hostname as may be in an hour",
            ),
            Self::Later(why) => f.write_str(why),
        }
    }
}

/// Advances the order of a certificate as far as possible. The order of an issued certificate is
/// kept until [`forget`], so that it is found again after a crash instead of ordering another
/// certificate.
pub(crate) async fn obtain(
    context: &ControlContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<OrderOutcome, Error> {
    let result = timeout(
        ATTEMPT_TIMEOUT,
        Box::pin(advance_order(context, authority, subject)),
    )
    .await
    .unwrap_or(Err(OrderError::Later("the authority takes its time")));
    match result {
        Ok(renew_at) => Ok(OrderOutcome::Certified(renew_at)),
        Err(OrderError::Ours(error)) => Err(error),
        Err(OrderError::Invalid(why)) => {
            forget(context, subject.id).await?;
            Ok(OrderOutcome::Refused(why))
        }
        Err(delayed @ (OrderError::Exhausted(_) | OrderError::Blocked(_))) => Ok(
            OrderOutcome::Postponed(format!("{delayed}; it is tried again by itself")),
        ),
        // All other failures may be temporary: `badNonce`, rate limits, internal errors.
        Err(other) => Ok(OrderOutcome::Unfinished(other.to_string())),
    }
}

async fn advance_order(
    context: &ControlContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<DateTime<Utc>, OrderError> {
    let account = account(context, authority).await?;
    // Before the order is counted: without a challenge method the order would fail.
    let method = challenge_method(context, authority, subject).await?;
    let (mut order, key) = match persisted_order(context, subject.id).await? {
        Some(persisted) => (account.order(persisted.url).await?, persisted.key),
        None => create_order(context, &account, authority, subject).await?,
    };
    let patience = RetryPolicy::new().timeout(AUTHORITY_WAIT);
    if order.state().status == OrderStatus::Pending {
        answer_challenges(context, authority, subject, &method, &mut order).await?;
        if order.poll_ready(&patience).await? == OrderStatus::Invalid {
            return Err(OrderError::Invalid(rejection_reason(&mut order).await));
        }
    }
    let status = order.state().status;
    match status {
        OrderStatus::Invalid => {
            return Err(OrderError::Invalid(rejection_reason(&mut order).await));
        }
        OrderStatus::Ready => {
            order
                .finalize_csr(&certificates::request(&subject.name, &key)?)
                .await?;
        }
        OrderStatus::Pending | OrderStatus::Processing | OrderStatus::Valid => {}
    }
    let chain = order.poll_certificate(&patience).await?;
    let renew_at =
        certificates::keep(context, subject.id, &authority.directory, &chain, &key).await?;
    deactivate_authorizations(&subject.name, &mut order).await;
    Ok(renew_at)
}

async fn persisted_order(
    context: &ControlContext,
    id: Uuid,
) -> Result<Option<PersistedOrder>, Error> {
    let doing = "reading an order";
    // Deletes leftovers of crashed attempts as well.
    let sql = "delete from acme_orders where created_at < $1";
    context
        .db
        .query(sql, &[&(context.clock.now() - ORDER_LIFE)])
        .await
        .context(doing)?;
    let rows = context
        .db
        .query(
            "select url, sealed_key from acme_orders where hostname_id = $1",
            &[&id],
        )
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(PersistedOrder {
        url: row.get(0),
        key: context
            .settings
            .sealing
            .open(&certificates::place(id), row.get(1))?,
    }))
}

/// Creates an order within the limits and persists it.
async fn create_order(
    context: &ControlContext,
    account: &Account,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<(Order, SecretString), OrderError> {
    let doing = "beginning an order";
    let now = context.clock.now();
    // Organization ids begin at 1.
    let owner = subject
        .organization
        .map_or(OPERATOR, |organization| organization.0);
    for (scope, span, most) in ORDER_LIMITS {
        let organization = (scope == BudgetScope::Organizations).then_some(owner);
        let host = (scope == BudgetScope::Hostnames).then_some(&subject.name);
        let sql = "select count(*) from acme_begun where at > $1 and ($2::bigint is null or organization_id = $2) \
                   and ($3::text is null or host = $3)";
        let rows = context
            .db
            .query(sql, &[&(now - span), &organization, &host])
            .await
            .context(doing)?;
        if rows.first().is_none_or(|row| row.get::<_, i64>(0) >= most) {
            return Err(OrderError::Exhausted(scope));
        }
    }
    context
        .db
        .query(
            "delete from acme_begun where at < $1",
            &[&(now - TimeDelta::hours(6))],
        )
        .await
        .context(doing)?;
    let sql = "insert into acme_begun (at, host, organization_id) values ($1, $2, $3)";
    context
        .db
        .query(sql, &[&now, &subject.name, &owner])
        .await
        .context(doing)?;
    let key = certificates::new_key()?;
    let order = new_order(
        account,
        &subject.name,
        renewal::replaced(context, authority, subject.id).await?,
    )
    .await?;
    let sealed =
        context
            .settings
            .sealing
            .seal(&context.entropy, &certificates::place(subject.id), &key)?;
    // Inserts nothing if the hostname was deleted meanwhile.
    let sql = "with held as (select id from custom_hostnames where id = $1 for key share) \
               insert into acme_orders (hostname_id, url, sealed_key, created_at) \
               select id, $2, $3, $4 from (select id from held union all select id from wildcards where id = $1) s";
    context
        .db
        .query(sql, &[&subject.id, &order.url(), &sealed, &now])
        .await
        .context(doing)?;
    Ok((order, key))
}

/// Creates an order that names the certificate it replaces, unless the authority rejects that.
async fn new_order(
    account: &Account,
    name: &str,
    replaced: Option<CertificateIdentifier<'_>>,
) -> Result<Order, OrderError> {
    let names = [Identifier::Dns(name.to_owned())];
    if let Some(replaced) = replaced {
        match account
            .new_order(&NewOrder::new(&names).replaces(replaced))
            .await
        {
            Err(error) if renewal::is_about_replacing(&error) => {
                tracing::info!(name, %error, "the authority rejected the replaced certificate of an order; ordering without it");
            }
            result => return Ok(result?),
        }
    }
    Ok(account.new_order(&NewOrder::new(&names)).await?)
}

/// Selects the challenge method: DNS-01 if the name delegates to the zone, otherwise HTTP-01,
/// alternating with TLS-ALPN-01 after failures.
async fn challenge_method(
    context: &ControlContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<ChallengeMethod, OrderError> {
    let mut methods = vec![ChallengeType::Http01, ChallengeType::TlsAlpn01];
    if let Some(zone) = &authority.zone {
        let asked = challenge_name(&subject.name);
        let alias = context.control_settings.dns.alias(&asked).await;
        let alias = alias.map_err(|why| {
            OrderError::Blocked(format!(
                "whether authorities are led to DNS could not be asked: {why}"
            ))
        })?;
        let of_the_operator = subject.organization.is_none();
        let place = match alias {
            Some(alias)
                if Some(&alias) == subject.delegate.as_ref()
                    || of_the_operator && zone.holds(&alias) =>
            {
                Some(alias)
            }
            None if of_the_operator && zone.holds(&asked) => Some(asked),
            _ => None,
        };
        match place {
            Some(place) if of_the_operator || subject.attempts % 3 == 0 => {
                return Ok(ChallengeMethod::Dns(place));
            }
            // After a failure of DNS-01 the other methods are tried.
            Some(_) => {
                return Ok(ChallengeMethod::Edge(
                    methods.swap_remove(usize::from(subject.attempts % 3 == 2)),
                ));
            }
            None => {}
        }
    }
    if subject.organization.is_none() {
        let why = format!(
            "{} is neither in the zone for answers to authorities nor leads there",
            challenge_name(&subject.name)
        );
        return Err(OrderError::Blocked(why));
    }
    Ok(ChallengeMethod::Edge(
        methods.swap_remove(usize::from(subject.attempts % 2 != 0)),
    ))
}

/// Publishes the responses to all pending challenges, then notifies the authority.
async fn answer_challenges(
    context: &ControlContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
    method: &ChallengeMethod,
    order: &mut Order,
) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            _ => {
                return Err(OrderError::Invalid(
                    "the authorization came to nothing".into(),
                ));
            }
        }
        let kind = if let ChallengeMethod::Edge(kind) = method {
            kind.clone()
        } else {
            ChallengeType::Dns01
        };
        let mut challenge = authorization.challenge(kind).ok_or_else(|| {
            OrderError::Invalid("the authority does not look in the way it should".into())
        })?;
        let answer = challenge.key_authorization();
        if let (ChallengeMethod::Dns(place), Some(zone)) = (method, &authority.zone) {
            match challenge_records::publish(context, zone, subject.id, place, &answer.dns_value())
                .await?
            {
                ChallengeRecordStatus::Propagated => {}
                ChallengeRecordStatus::Propagating => {
                    return Err(OrderError::Later(
                        "not all name servers tell the answer to the authority yet",
                    ));
                }
                ChallengeRecordStatus::NotWritten => {
                    return Err(OrderError::Blocked(
                        "the answer to the authority could not be written into DNS".into(),
                    ));
                }
            }
        } else {
            let sql =
                "update acme_orders set token = $2, key_authorization = $3 where hostname_id = $1";
            context
                .db
                .query(sql, &[&subject.id, &challenge.token, &answer.as_str()])
                .await
                .context("answering a challenge")?;
            context.table_changed(Table::AcmeOrders);
            // The authority may connect to any node.
            notifications::settle(&context.db).await?;
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Deactivates the authorizations of an order. An authority reuses authorizations of an account for
/// weeks, and all projects share the account, so the next owner of the name could skip validation.
async fn deactivate_authorizations(name: &str, order: &mut Order) {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let deactivated = match authorization {
            Ok(mut authorization) => authorization.deactivate().await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = deactivated {
            // Validation of ownership does not depend on this.
            tracing::info!(name, %error, "failed to deactivate an authorization");
        }
    }
}

/// Returns the authority's reason for an invalid order.
async fn rejection_reason(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        if let Some(problem) = authorization
            .challenges
            .iter()
            .find_map(|challenge| challenge.error.as_ref())
        {
            return describe_problem(problem);
        }
    }
    "the authority does not say why".to_owned()
}

/// Formats a problem document. API clients recognize CAA failures by `caa_error`.
fn describe_problem(problem: &Problem) -> String {
    let caa = problem
        .r#type
        .as_deref()
        .is_some_and(|kind| kind.ends_with(":caa"));
    if caa {
        format!("{CAA_ERROR}: {problem}")
    } else {
        problem.to_string()
    }
}

/// Deletes the order of a hostname.
pub(crate) async fn forget(context: &ControlContext, id: Uuid) -> Result<(), Error> {
    context
        .db
        .query("delete from acme_orders where hostname_id = $1", &[&id])
        .await
        .context("forgetting an order")?;
    context.table_changed(Table::AcmeOrders);
    Ok(())
}

/// Returns the pending challenges by host name.
pub async fn challenges(
    context: &ControlContext,
) -> Result<HashMap<SmolStr, Arc<ChallengeResponse>>, Error> {
    let sql = "select h.host, o.token, o.key_authorization from acme_orders o join custom_hostnames h on h.id = o.hostname_id \
               where o.token is not null and o.key_authorization is not null and h.state <> 'initiated'";
    let rows = context
        .db
        .query(sql, &[])
        .await
        .context("reading challenges")?;
    Ok(rows
        .iter()
        .map(|row: &Row| {
            (
                row.get::<_, &str>(0).into(),
                Arc::new(ChallengeResponse {
                    token: row.get(1),
                    key_authorization: row.get(2),
                }),
            )
        })
        .collect())
}
