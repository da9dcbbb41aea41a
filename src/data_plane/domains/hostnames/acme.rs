//! Orders of certificates (RFC 8555): rows that are driven from wherever they are, by whoever has claimed the hostname.

use std::{collections::HashMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use instant_acme::{
    Account, AccountBuilder, AccountCredentials, AuthorizationStatus, CertificateIdentifier,
    ChallengeType, Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use secrecy::{ExposeSecret, SecretString};
use smol_str::SmolStr;
use tokio::time::timeout;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    certificates, challenge_records, challenge_records::ChallengeRecordStatus, renewal,
    required_records::CAA_ERROR,
};
use crate::{
    base::{
        error::{Context, Error},
        ids::OrganizationId,
    },
    data_plane::{
        context::DataPlaneContext,
        domains::zone::{Zone, challenge_name},
    },
    platform::{notifications, tables::Table},
};

/// Orders begun in a time, of all of them, of one organization's and of one hostname's: below what authorities allow for their account
/// and for a name, however often somebody deletes it and asks for it again.
const BUDGETS: [(BudgetScope, TimeDelta, i64); 4] = [
    (BudgetScope::All, TimeDelta::minutes(1), 10),
    (BudgetScope::All, TimeDelta::hours(3), 250),
    (BudgetScope::Organizations, TimeDelta::hours(3), 25),
    (BudgetScope::Hostnames, TimeDelta::hours(1), 4),
];
/// As whose the operator's orders are counted.
const OPERATOR: i64 = 0;
/// How long an authority is waited for in one go. The order goes on in the next.
const PATIENCE: Duration = Duration::from_secs(30);
/// One go, in all. Shorter than a claim.
const GO: Duration = Duration::from_secs(90);
/// An order that is older is begun anew: what it was answered with may have run out.
const ORDER_LIFE: TimeDelta = TimeDelta::days(1);

/// The authority that certifies hostnames.
#[derive(Debug, Clone)]
pub struct CertificateAuthority {
    /// Where its directory is.
    pub directory: String,
    /// Certificate that it is trusted by, if it is not a public one.
    pub root: Option<PathBuf>,
    /// Address it may write to.
    pub contact: Option<String>,
    /// As whom CAA records know it.
    pub issuer: Option<String>,
    /// Where it is answered when it looks by DNS.
    pub zone: Option<Zone>,
    /// Whether it certifies `*.<domain>` as well.
    pub wildcard: bool,
}

/// What a certificate is asked for.
#[derive(Debug, Clone)]
pub(crate) struct CertificateSubject {
    /// Of the hostname.
    pub(crate) id: Uuid,
    /// The name, or a wildcard.
    pub(crate) name: String,
    /// BudgetScope it is. None: the operator's.
    pub(crate) organization: Option<OrganizationId>,
    /// Orders that failed in a row.
    pub(crate) attempts: i32,
    /// Where its owner may lead authorities that look by DNS.
    pub(crate) delegate: Option<String>,
}

/// How an authority finds out whether a name is ours.
enum ChallengeMethod {
    /// It asks the edge.
    Edge(ChallengeType),
    /// It asks DNS, where it is led to this name.
    Dns(String),
}

impl CertificateAuthority {
    /// Where our account there is sealed.
    fn place(&self) -> String {
        format!("acme account at {}", self.directory)
    }

    fn builder(&self) -> Result<AccountBuilder, instant_acme::Error> {
        match &self.root {
            Some(root) => Account::builder_with_root(root),
            None => Account::builder(),
        }
    }
}

/// BudgetScope orders a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BudgetScope {
    All,
    Organizations,
    Hostnames,
}

/// How an order ended, or did not yet.
#[derive(Debug)]
pub(crate) enum OrderOutcome {
    /// There is a certificate; it is to be renewed then.
    Certified(DateTime<Utc>),
    /// The authority will not have it.
    Refused(String),
    /// It must wait for a while.
    Postponed(String),
    /// Another go is needed.
    Unfinished(String),
}

/// What is kept of an order.
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

/// What went wrong on the way.
pub(crate) enum OrderError {
    CertificateAuthority(instant_acme::Error),
    Ours(Error),
    /// The order came to nothing.
    Invalid(String),
    /// As much was asked for as may be.
    Exhausted(BudgetScope),
    /// Somebody here has to do something first.
    Hindered(String),
    /// Not now.
    Later(&'static str),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CertificateAuthority(error) => error.fmt(f),
            Self::Ours(error) => error.fmt(f),
            Self::Invalid(why) | Self::Hindered(why) => f.write_str(why),
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

/// Brings the order of a hostname's certificate as far as it comes. One that ends with a certificate is there until it is forgotten: who
/// crashes before it is written down that there is one finds it again, instead of ordering another.
pub(crate) async fn obtain(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<OrderOutcome, Error> {
    let gone = timeout(GO, Box::pin(go(context, authority, subject)))
        .await
        .unwrap_or(Err(OrderError::Later("the authority takes its time")));
    match gone {
        Ok(renew_at) => Ok(OrderOutcome::Certified(renew_at)),
        Err(OrderError::Ours(error)) => Err(error),
        Err(OrderError::Invalid(why)) => {
            forget(context, subject.id).await?;
            Ok(OrderOutcome::Refused(why))
        }
        Err(exhausted @ (OrderError::Exhausted(_) | OrderError::Hindered(_))) => Ok(
            OrderOutcome::Postponed(format!("{exhausted}; it is tried again by itself")),
        ),
        // Whatever else an authority says, it may say something else next time: `badNonce`, too many requests, a fault of its own.
        Err(other) => Ok(OrderOutcome::Unfinished(other.to_string())),
    }
}

async fn go(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<DateTime<Utc>, OrderError> {
    let account = account(context, authority).await?;
    // Before an order counts: of one whose answer cannot be given nothing comes.
    let way = way(context, authority, subject).await?;
    let (mut order, key) = match begun(context, subject.id).await? {
        Some(begun) => (account.order(begun.url).await?, begun.key),
        None => begin(context, &account, authority, subject).await?,
    };
    let patience = RetryPolicy::new().timeout(PATIENCE);
    if order.state().status == OrderStatus::Pending {
        answer_challenges(context, authority, subject, &way, &mut order).await?;
        if order.poll_ready(&patience).await? == OrderStatus::Invalid {
            return Err(OrderError::Invalid(why_invalid(&mut order).await));
        }
    }
    let status = order.state().status;
    match status {
        OrderStatus::Invalid => return Err(OrderError::Invalid(why_invalid(&mut order).await)),
        OrderStatus::Ready => {
            order
                .finalize_csr(&certificates::request(&subject.name, &key)?)
                .await?
        }
        OrderStatus::Pending | OrderStatus::Processing | OrderStatus::Valid => {}
    }
    let chain = order.poll_certificate(&patience).await?;
    let renew_at =
        certificates::keep(context, subject.id, &authority.directory, &chain, &key).await?;
    give_up_authorizations(&subject.name, &mut order).await;
    Ok(renew_at)
}

/// Our account at the authority, made when it is first needed.
async fn account(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
) -> Result<Account, OrderError> {
    let doing = "reading the account at the authority";
    if credentials(context, authority).await?.is_none() {
        let contact: Vec<String> = authority
            .contact
            .iter()
            .map(|address| format!("mailto:{address}"))
            .collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let wanted = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (_, credentials) = authority
            .builder()?
            .create(&wanted, authority.directory.clone(), None)
            .await?;
        let text = SecretString::from(serde_json::to_string(&credentials).context(doing)?);
        let sealed = context
            .settings
            .sealing
            .seal(&context.entropy, &authority.place(), &text)?;
        // Of two nodes that make one at once the first one's is used.
        let sql =
            "insert into acme_accounts (directory, sealed) values ($1, $2) on conflict do nothing";
        context
            .db
            .query(sql, &[&authority.directory, &sealed])
            .await
            .context(doing)?;
    }
    Ok(known_account(context, authority)
        .await?
        .ok_or("it is gone")
        .context(doing)?)
}

/// Our account at the authority, if there is one.
pub(crate) async fn known_account(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
) -> Result<Option<Account>, OrderError> {
    let Some(known) = credentials(context, authority).await? else {
        return Ok(None);
    };
    Ok(Some(authority.builder()?.from_credentials(known).await?))
}

async fn credentials(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
) -> Result<Option<AccountCredentials>, Error> {
    let doing = "reading the account at the authority";
    let rows = context
        .db
        .query(
            "select sealed from acme_accounts where directory = $1",
            &[&authority.directory],
        )
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let opened = context
        .settings
        .sealing
        .open(&authority.place(), row.get(0))?;
    serde_json::from_str(opened.expose_secret())
        .context(doing)
        .map(Some)
}

async fn begun(context: &DataPlaneContext, id: Uuid) -> Result<Option<PersistedOrder>, Error> {
    let doing = "reading an order";
    // Also what crashes left of others.
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

/// Begins an order, within the budgets, and writes it down.
async fn begin(
    context: &DataPlaneContext,
    account: &Account,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<(Order, SecretString), OrderError> {
    let (doing, now) = ("beginning an order", context.clock.now());
    // The operator is an organization that nobody else has.
    let owner = subject
        .organization
        .map_or(OPERATOR, |organization| organization.0);
    for (whose, span, most) in BUDGETS {
        let organization = (whose == BudgetScope::Organizations).then_some(owner);
        let host = (whose == BudgetScope::Hostnames).then_some(&subject.name);
        let sql = "select count(*) from acme_begun where at > $1 and ($2::bigint is null or organization_id = $2) \
                   and ($3::text is null or host = $3)";
        let rows = context
            .db
            .query(sql, &[&(now - span), &organization, &host])
            .await
            .context(doing)?;
        if rows.first().is_none_or(|row| row.get::<_, i64>(0) >= most) {
            return Err(OrderError::Exhausted(whose));
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
    // Not for a hostname that is gone meanwhile.
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

/// Asks for an order, which says what it replaces unless the authority will not have it.
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
                tracing::info!(name, %error, "the authority does not take the word of an order about what it replaces");
            }
            said => return Ok(said?),
        }
    }
    Ok(account.new_order(&NewOrder::new(&names)).await?)
}

/// How the authority is asked to look: by DNS where it is led to the zone; else by HTTP, and after a refusal by TLS, in turns.
async fn way(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
) -> Result<ChallengeMethod, OrderError> {
    let mut ways = vec![ChallengeType::Http01, ChallengeType::TlsAlpn01];
    if let Some(zone) = &authority.zone {
        let asked = challenge_name(&subject.name);
        let alias = context.data_plane_settings.dns.alias(&asked).await;
        let alias = alias.map_err(|why| {
            OrderError::Hindered(format!(
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
            // After a refusal by DNS the others have their turns.
            Some(_) => {
                return Ok(ChallengeMethod::Edge(
                    ways.swap_remove(usize::from(subject.attempts % 3 == 2)),
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
        return Err(OrderError::Hindered(why));
    }
    Ok(ChallengeMethod::Edge(
        ways.swap_remove(usize::from(subject.attempts % 2 != 0)),
    ))
}

/// Has the answer ready wherever the authority may look, then tells it to.
async fn answer_challenges(
    context: &DataPlaneContext,
    authority: &CertificateAuthority,
    subject: &CertificateSubject,
    way: &ChallengeMethod,
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
        let kind = if let ChallengeMethod::Edge(kind) = way {
            kind.clone()
        } else {
            ChallengeType::Dns01
        };
        let mut challenge = authorization.challenge(kind).ok_or_else(|| {
            OrderError::Invalid("the authority does not look in the way it should".into())
        })?;
        let answer = challenge.key_authorization();
        if let (ChallengeMethod::Dns(place), Some(zone)) = (way, &authority.zone) {
            match challenge_records::stand(context, zone, subject.id, place, &answer.dns_value())
                .await?
            {
                ChallengeRecordStatus::Everywhere => {}
                ChallengeRecordStatus::OnItsWay => {
                    return Err(OrderError::Later(
                        "not all name servers tell the answer to the authority yet",
                    ));
                }
                ChallengeRecordStatus::Unwritten => {
                    return Err(OrderError::Hindered(
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
            // The authority may ask any node.
            notifications::settle(&context.db).await?;
        }
        challenge.set_ready().await?;
    }
    Ok(())
}

/// An authority takes an authorization of an account for weeks, and the account is all projects'. So nothing is left of it for whoever has
/// the hostname next.
async fn give_up_authorizations(name: &str, order: &mut Order) {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let given_up = match authorization {
            Ok(mut authorization) => authorization.deactivate().await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = given_up {
            // Proving a name to us does not rest on it.
            tracing::info!(name, %error, "an authorization could not be given up");
        }
    }
}

/// What the authority says it found.
async fn why_invalid(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        if let Some(problem) = authorization
            .challenges
            .iter()
            .find_map(|challenge| challenge.error.as_ref())
        {
            return told(problem);
        }
    }
    "the authority does not say why".to_owned()
}

/// An authority's problem in words. Clients know a refusal for CAA records by the word `caa_error`.
fn told(problem: &Problem) -> String {
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

/// Forgets the order of a hostname.
pub(crate) async fn forget(context: &DataPlaneContext, id: Uuid) -> Result<(), Error> {
    context
        .db
        .query("delete from acme_orders where hostname_id = $1", &[&id])
        .await
        .context("forgetting an order")?;
    context.table_changed(Table::AcmeOrders);
    Ok(())
}

/// What an authority is answered that looks whether a hostname leads here.
#[derive(Debug)]
pub struct ChallengeResponse {
    /// What it asks for.
    pub token: String,
    /// What it is told.
    pub key_authorization: String,
}

/// What authorities are answered at the moment, by hostname.
pub async fn challenges(
    context: &DataPlaneContext,
) -> Result<HashMap<SmolStr, Arc<ChallengeResponse>>, Error> {
    let sql = "select h.host, o.token, o.key_authorization from acme_orders o join custom_hostnames h on h.id = o.hostname_id \
               where o.token is not null and o.key_authorization is not null and h.state <> 'initiated'";
    let rows = context
        .db
        .query(sql, &[])
        .await
        .context("reading challenges")?;
    let challenge = |row: &Row| {
        (
            row.get::<_, &str>(0).into(),
            Arc::new(ChallengeResponse {
                token: row.get(1),
                key_authorization: row.get(2),
            }),
        )
    };
    Ok(rows.iter().map(challenge).collect())
}
