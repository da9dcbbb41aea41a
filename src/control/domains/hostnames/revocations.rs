//! Revocation of certificates of deleted hostnames (RFC 8555 §7.6), attempted for two days.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use instant_acme::{Error as AcmeError, RevocationReason, RevocationRequest};
use tokio::time::timeout;

use super::{acme::OrderError, acme_account, certificates, state::CertificateAuthority};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Timeout of one revocation.
const PATIENCE: Duration = Duration::from_secs(30);
/// Certificates per pass, pause between attempts, and number of attempts.
const BATCH: i64 = 16;
const PAUSE: TimeDelta = TimeDelta::hours(1);
const ATTEMPTS_MAX: i32 = 48;

/// Revokes certificates that are due.
pub(crate) async fn pass(context: &ControlContext) -> Result<(), Error> {
    let Some(authority) = &context.control_settings.authority else {
        return Ok(());
    };
    let doing = "revoking certificates";
    let now = context.clock.now();
    // Expired certificates need no revocation.
    context
        .db
        .query(
            "delete from acme_revocations where not_after <= $1 or attempts >= $2",
            &[&now, &ATTEMPTS_MAX],
        )
        .await
        .context(doing)?;
    // Claimed by setting the time of the next attempt.
    let sql = "update acme_revocations set not_before = $2, attempts = attempts + 1 where id in \
               (select id from acme_revocations where not_before <= $1 and directory = $3 order by id limit $4 for update skip locked) \
               returning id, chain, not_after";
    let due = context
        .db
        .query(sql, &[&now, &(now + PAUSE), &authority.directory, &BATCH])
        .await
        .context(doing)?;
    for row in due {
        let id: i64 = row.get(0);
        let chain: &str = row.get(1);
        let until: DateTime<Utc> = row.get(2);
        match timeout(PATIENCE, Box::pin(revoke(context, authority, chain))).await {
            Ok(Ok(())) => {
                context
                    .db
                    .query("delete from acme_revocations where id = $1", &[&id])
                    .await
                    .context(doing)?;
            }
            Ok(Err(OrderError::Ours(error))) => return Err(error),
            Ok(Err(why)) => {
                tracing::info!(%until, %why, "failed to revoke a certificate; retrying later");
            }
            Err(_) => {
                tracing::info!(%until, "revocation timed out; retrying later");
            }
        }
    }
    Ok(())
}

async fn revoke(
    context: &ControlContext,
    authority: &CertificateAuthority,
    chain: &str,
) -> Result<(), OrderError> {
    let chain = certificates::read(chain)?;
    // Without an account or a certificate there is nothing to revoke.
    let (Some(account), Some(certificate)) = (
        acme_account::known_account(context, authority).await?,
        chain.first(),
    ) else {
        return Ok(());
    };
    match account
        .revoke(&RevocationRequest {
            certificate,
            reason: Some(RevocationReason::CessationOfOperation),
        })
        .await
    {
        Err(AcmeError::Api(problem))
            if problem
                .r#type
                .as_deref()
                .is_some_and(|kind| kind.ends_with(":alreadyRevoked")) =>
        {
            Ok(())
        }
        said => Ok(said?),
    }
}
