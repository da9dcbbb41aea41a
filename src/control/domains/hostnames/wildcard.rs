//! The wildcard certificate of the projects' domain, if issued by ACME: validated by DNS-01 and
//! stored like those of hostnames.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use rustls::sign::CertifiedKey;
use uuid::Uuid;

use super::{
    acme::{self, CertificateSubject, OrderOutcome},
    certificates, hostname_reconciler, renewal,
    state::CertificateAuthority,
};
use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// Pause after a rejected order.
const REFUSED_PAUSE: TimeDelta = TimeDelta::hours(1);

/// Returns the authority and the wildcard name, if the authority issues it.
fn name(context: &ControlContext) -> Option<(&CertificateAuthority, String)> {
    let authority = context
        .control_settings
        .authority
        .as_ref()
        .filter(|authority| authority.wildcard)?;
    Some((
        authority,
        format!("*.{}", context.settings.project_domain.to_ascii_lowercase()),
    ))
}

/// Orders or renews the certificate if that is due.
pub(crate) async fn pass(context: &ControlContext) -> Result<(), Error> {
    let Some((authority, name)) = name(context) else {
        return Ok(());
    };
    let doing = "looking for the certificate of the projects' domain";
    let now = context.clock.now();
    let sql =
        "insert into wildcards (name, id, not_before) values ($1, $2, $3) on conflict do nothing";
    context
        .db
        .query(sql, &[&name, &context.entropy.uuid(), &now])
        .await
        .context(doing)?;
    // Claimed by setting the time of the next check, so that one node orders.
    let sql = "update wildcards set not_before = $3 where name = $1 and not_before <= $2 returning id, attempts";
    let rows = context
        .db
        .query(sql, &[&name, &now, &(now + hostname_reconciler::CLAIM)])
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let subject = CertificateSubject {
        id: row.get(0),
        name,
        organization: None,
        attempts: row.get(1),
        delegate: None,
    };
    let renewal = renewal::settle(context, subject.id).await?;
    if renewal.is_some_and(|renewal| renewal.at > now) {
        return write(
            context,
            &subject,
            None,
            hostname_reconciler::next_look(renewal, now),
        )
        .await;
    }
    order(context, authority, subject).await
}

async fn order(
    context: &ControlContext,
    authority: &CertificateAuthority,
    subject: CertificateSubject,
) -> Result<(), Error> {
    let now = context.clock.now();
    let name = subject.name.as_str();
    match acme::obtain(context, authority, &subject).await? {
        OrderOutcome::Certified(renew_at) => {
            tracing::info!(name, %renew_at, "wildcard certificate issued");
            write(
                context,
                &CertificateSubject {
                    attempts: 0,
                    ..subject.clone()
                },
                None,
                now,
            )
            .await?;
            acme::forget(context, subject.id).await
        }
        OrderOutcome::Refused(why) => {
            tracing::error!(name, why, "wildcard certificate order rejected");
            let attempts = subject.attempts.saturating_add(1);
            write(
                context,
                &CertificateSubject {
                    attempts,
                    ..subject
                },
                Some(&why),
                now + REFUSED_PAUSE,
            )
            .await
        }
        OrderOutcome::Postponed(why) => {
            tracing::warn!(name, why, "wildcard certificate order postponed");
            write(
                context,
                &subject,
                Some(&why),
                now + hostname_reconciler::POSTPONED_PAUSE,
            )
            .await
        }
        OrderOutcome::Unfinished(why) => {
            tracing::info!(
                name,
                why,
                "wildcard certificate order incomplete; retrying later"
            );
            write(
                context,
                &subject,
                None,
                now + hostname_reconciler::UNFINISHED_PAUSE,
            )
            .await
        }
    }
}

async fn write(
    context: &ControlContext,
    subject: &CertificateSubject,
    refusal: Option<&str>,
    not_before: DateTime<Utc>,
) -> Result<(), Error> {
    let sql = "update wildcards set refusal = $2, attempts = $3, not_before = $4 where id = $1";
    let params: [Param<'_>; 4] = [&subject.id, &refusal, &subject.attempts, &not_before];
    context
        .db
        .query(sql, &params)
        .await
        .context("writing what became of a certificate")
        .map(drop)
}

/// Returns the certificate with its decrypted key, if there is one.
pub async fn certificate(context: &ControlContext) -> Result<Option<Arc<CertifiedKey>>, Error> {
    let Some((_, name)) = name(context) else {
        return Ok(None);
    };
    let sql = "select w.id, c.chain, c.sealed_key, c.not_after from wildcards w join hostname_certificates c on c.hostname_id = w.id where w.name = $1";
    let rows = context
        .db
        .query(sql, &[&name])
        .await
        .context("reading the certificate of the projects' domain")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let id: Uuid = row.get(0);
    let chain: &str = row.get(1);
    let sealed: &[u8] = row.get(2);
    let until: DateTime<Utc> = row.get(3);
    let opened = certificates::open(context, id, chain, sealed, until);
    // An unreadable certificate must not prevent hostnames from being served.
    Ok(opened
        .inspect_err(|error| tracing::error!(%error, "failed to load the wildcard certificate"))
        .ok())
}
