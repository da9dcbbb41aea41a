//! Looks at hostnames when their time has come: at those that are to be proven often at first and then ever less, at those that
//! are served once a day.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{StreamExt, stream};
use tokio::{sync::Notify, time::timeout};

use super::{
    CustomHostname, State, acme, acme::OrderOutcome, certificates::OpenedCertificates,
    challenge_records, renewal, renewal::Renewal, revocations, select_hostname, wildcard, write,
};
use crate::{
    base::error::{Context, Error},
    data_plane::context::DataPlaneContext,
    platform::tables::Table,
};

/// Hostnames looked at at once.
const WORKERS: usize = 4;
/// Hostnames taken in one pass; the rest follow in the next.
const BATCH: i64 = 64;
/// Longest pause between passes.
const PASS: Duration = Duration::from_secs(30);
/// For how long who looks at a hostname keeps others from it. Longer than any look takes.
pub(crate) const CLAIM: TimeDelta = TimeDelta::minutes(2);
/// The pause after an authority refused, which allows few failures in an hour; the same where a certificate is there still;
/// where as much was asked for as may be; and after an order that did not come to its end.
const REFUSED_PAUSE: TimeDelta = TimeDelta::minutes(15);
const RENEWAL_PAUSE: TimeDelta = TimeDelta::hours(1);
pub(crate) const POSTPONED_PAUSE: TimeDelta = TimeDelta::minutes(10);
pub(crate) const UNFINISHED_PAUSE: TimeDelta = TimeDelta::seconds(20);
/// Quick looks, the pause between them, and the longest pause later.
const QUICK: i32 = 10;
const QUICK_PAUSE: TimeDelta = TimeDelta::minutes(2);
const PAUSE_MAX: TimeDelta = TimeDelta::hours(4);
/// A hostname that is served is looked at so often.
const DAILY: TimeDelta = TimeDelta::days(1);
/// After this time without the right records a hostname is told to have moved.
const MOVED: TimeDelta = TimeDelta::days(7);
/// After this time it is removed.
const GONE: TimeDelta = TimeDelta::days(14);

/// The hostname_reconciler's bell.
#[derive(Debug, Default)]
pub struct HostnameReconciler {
    bell: Notify,
    pub(crate) opened: OpenedCertificates,
}

impl HostnameReconciler {
    /// Something is to be looked at now.
    pub fn wake(&self) {
        self.bell.notify_one();
    }
}

/// Runs until the process ends.
pub async fn run(context: DataPlaneContext) {
    loop {
        if let Err(error) = pass(&context).await {
            tracing::warn!(%error, "could not look at hostnames");
        }
        let pause = pause_until_due(&context).await.unwrap_or(PASS);
        // Rung or not: what is due is looked for.
        let _ = timeout(pause, context.hostname_reconciler.bell.notified()).await;
    }
}

/// How long no hostname is to be looked at: [`PASS`] at most, for other nodes set times as well.
async fn pause_until_due(context: &DataPlaneContext) -> Result<Duration, Error> {
    let now = context.clock.now();
    let sql = "select min(not_before) from custom_hostnames where not_before > $1";
    let rows = context
        .db
        .query(sql, &[&now])
        .await
        .context("looking for hostnames")?;
    let due: Option<DateTime<Utc>> = rows.first().and_then(|row| row.get(0));
    Ok(due
        .and_then(|due| (due - now).to_std().ok())
        .map_or(PASS, |pause| pause.min(PASS)))
}

/// Looks at everything whose time has come.
pub async fn pass(context: &DataPlaneContext) -> Result<(), Error> {
    // None of them waits for, or fails with, what the authority or the zone does to another.
    let (wildcard, hostnames) = tokio::join!(wildcard::pass(context), look_at_hostnames(context));
    let (answers, revocations) =
        tokio::join!(challenge_records::tidy(context), revocations::pass(context));
    wildcard.and(hostnames).and(answers).and(revocations)
}

async fn look_at_hostnames(context: &DataPlaneContext) -> Result<(), Error> {
    loop {
        let now = context.clock.now();
        // Claimed by the time of the next look: whoever comes later, on any node, finds it taken.
        let sql = "update custom_hostnames set not_before = $2 where id in \
                   (select id from custom_hostnames where not_before <= $1 order by not_before limit $3 for update skip locked) returning id";
        let rows = context
            .db
            .query(sql, &[&now, &(now + CLAIM), &BATCH])
            .await
            .context("looking for hostnames")?;
        if rows.is_empty() {
            return Ok(());
        }
        let ids: Vec<uuid::Uuid> = rows.iter().map(|row| row.get(0)).collect();
        let rows = context
            .db
            .query(select_hostname!("where h.id = any($1)"), &[&ids])
            .await
            .context("reading hostnames")?;
        let due = rows
            .iter()
            .map(CustomHostname::read)
            .collect::<Result<Vec<_>, _>>()?;
        let work = due.into_iter().map(|hostname| async move {
            // One that fails holds up no other.
            if let Err(error) = advance(context, &hostname).await {
                tracing::warn!(host = %hostname.host, %error, "a hostname could not be looked at; it will be tried again");
            }
        });
        stream::iter(work)
            .buffer_unordered(WORKERS)
            .collect::<()>()
            .await;
    }
}

async fn advance(context: &DataPlaneContext, hostname: &CustomHostname) -> Result<(), Error> {
    if hostname.blocked {
        return write(
            context,
            hostname.state,
            hostname,
            context.clock.now() + DAILY,
        )
        .await
        .map(drop);
    }
    match hostname.state {
        State::Initiated => match look(context, hostname).await {
            Err(Error::Conflict(why)) => {
                let hostname = CustomHostname {
                    problems: vec![why.into()],
                    attempts: hostname.attempts.saturating_add(1),
                    ..hostname.clone()
                };
                write(
                    context,
                    hostname.state,
                    &hostname,
                    context.clock.now() + pause(hostname.attempts),
                )
                .await
                .map(drop)
            }
            other => other,
        },
        State::Verified => certify(context, hostname).await,
        State::Certified | State::Active => look_again(context, hostname).await,
    }
}

/// Why a hostname that is proven stays as it is.
const NO_AUTHORITY: &str = "This server has no certificate authority, so the custom hostname gets no certificate; its operator can name one with --acme-directory.";

/// Has a hostname certified, for the first time or again.
async fn certify(context: &DataPlaneContext, hostname: &CustomHostname) -> Result<(), Error> {
    let now = context.clock.now();
    let Some(authority) = &context.data_plane_settings.authority else {
        let refusal = Some(NO_AUTHORITY.to_owned());
        return write(
            context,
            hostname.state,
            &CustomHostname {
                refusal,
                ..hostname.clone()
            },
            now + PAUSE_MAX,
        )
        .await
        .map(drop);
    };
    let renewing = hostname.state != State::Verified;
    match acme::obtain(context, authority, &hostname.subject(context)).await? {
        OrderOutcome::Certified(renew_at) => {
            let state = if renewing {
                hostname.state
            } else {
                State::Certified
            };
            tracing::info!(host = %hostname.host, project = %hostname.reference, %renew_at, "a hostname has a certificate");
            let certified = CustomHostname {
                state,
                problems: Vec::new(),
                refusal: None,
                attempts: 0,
                ..hostname.clone()
            };
            write(
                context,
                hostname.state,
                &certified,
                (now + DAILY).min(renew_at),
            )
            .await?;
            acme::forget(context, hostname.id).await?;
            // The authority knows more about when that is than can be told from the certificate.
            bring_forward(
                context,
                hostname,
                renewal::settle(context, hostname.id).await?,
            )
            .await
        }
        OrderOutcome::Refused(why) => {
            tracing::warn!(host = %hostname.host, why, "a hostname was refused a certificate");
            // The records are looked at before it is tried again. What is served is served on.
            let state = if renewing {
                hostname.state
            } else {
                State::Initiated
            };
            let attempts = hostname.attempts.saturating_add(1);
            let pause = pause(attempts).max(if renewing {
                RENEWAL_PAUSE
            } else {
                REFUSED_PAUSE
            });
            write(
                context,
                hostname.state,
                &CustomHostname {
                    state,
                    refusal: Some(why),
                    attempts,
                    ..hostname.clone()
                },
                now + pause,
            )
            .await
            .map(drop)
        }
        OrderOutcome::Postponed(why) => {
            tracing::warn!(host = %hostname.host, why, "a certificate was not asked for");
            write(
                context,
                hostname.state,
                &CustomHostname {
                    refusal: Some(why),
                    ..hostname.clone()
                },
                now + POSTPONED_PAUSE,
            )
            .await
            .map(drop)
        }
        OrderOutcome::Unfinished(why) => {
            tracing::info!(host = %hostname.host, why, "a certificate is not there yet; it will be tried again");
            write(context, hostname.state, hostname, now + UNFINISHED_PAUSE)
                .await
                .map(drop)
        }
    }
}

/// The pause after so many looks that found something wrong.
fn pause(attempts: i32) -> TimeDelta {
    let late = attempts.saturating_sub(QUICK).clamp(0, 100);
    (0..late).fold(QUICK_PAUSE, |pause, _| (pause * 115 / 100).min(PAUSE_MAX))
}

/// Looks whether DNS says that a hostname is its project's. If it does, it is proven.
pub async fn look(context: &DataPlaneContext, hostname: &CustomHostname) -> Result<(), Error> {
    let (now, required) = (context.clock.now(), hostname.required(context));
    let problems = match context
        .data_plane_settings
        .dns
        .look(&hostname.host, &required.proof_name)
        .await
    {
        Ok(records) => required.problems(&records),
        Err(why) => vec![format!("DNS could not be asked: {why}")],
    };
    if problems.is_empty() {
        let proven = CustomHostname {
            state: State::Verified,
            problems,
            misrouted_since: None,
            attempts: if hostname.refusal.is_some() {
                hostname.attempts
            } else {
                0
            },
            ..hostname.clone()
        };
        if write(context, hostname.state, &proven, now).await? {
            tracing::info!(host = %hostname.host, project = %hostname.reference, "a hostname is proven");
        }
        context.hostname_reconciler.wake();
        return Ok(());
    }
    if now - hostname.created_at >= GONE {
        return forget(context, hostname, "it was not proven in time").await;
    }
    let attempts = hostname.attempts.saturating_add(1);
    let misrouted_since = (now - hostname.created_at >= MOVED).then_some(hostname.created_at);
    write(
        context,
        hostname.state,
        &CustomHostname {
            problems,
            misrouted_since,
            attempts,
            ..hostname.clone()
        },
        now + pause(attempts),
    )
    .await
    .map(drop)
}

/// Looks whether a hostname that has a certificate still leads to its project.
async fn look_again(context: &DataPlaneContext, hostname: &CustomHostname) -> Result<(), Error> {
    let (now, required) = (context.clock.now(), hostname.required(context));
    let problems = match context
        .data_plane_settings
        .dns
        .look(&hostname.host, &required.proof_name)
        .await
    {
        // Only where it leads: who has the record can have others.
        Ok(records) if required.alias_fits(&records) => Vec::new(),
        Ok(records) => required.problems(&records).into_iter().take(1).collect(),
        // No answer is no word that it has moved.
        Err(why) => {
            let problems = vec![format!("DNS could not be asked: {why}")];
            return write(
                context,
                hostname.state,
                &CustomHostname {
                    problems,
                    ..hostname.clone()
                },
                now + PAUSE_MAX,
            )
            .await
            .map(drop);
        }
    };
    let misrouted_since = (!problems.is_empty()).then(|| hostname.misrouted_since.unwrap_or(now));
    if misrouted_since.is_some_and(|since| now - since >= GONE) {
        return forget(context, hostname, "it leads elsewhere").await;
    }
    let fits = problems.is_empty();
    let hostname = CustomHostname {
        problems,
        misrouted_since,
        ..hostname.clone()
    };
    // Of a name that leads elsewhere no certificate is renewed.
    let renewal = if fits {
        renewal::settle(context, hostname.id).await?
    } else {
        None
    };
    if renewal.is_some_and(|renewal| renewal.at <= now) {
        return certify(context, &hostname).await;
    }
    write(context, hostname.state, &hostname, next_look(renewal, now))
        .await
        .map(drop)
}

/// When a hostname is looked at again: within a day.
pub(crate) fn next_look(renewal: Option<Renewal>, now: DateTime<Utc>) -> DateTime<Utc> {
    let moments = renewal
        .into_iter()
        .flat_map(|renewal| [Some(renewal.at), renewal.ask_at])
        .flatten();
    moments
        .filter(|at| *at > now)
        .fold(now + DAILY, DateTime::min)
}

/// Has a hostname looked at no later than its certificate wants.
async fn bring_forward(
    context: &DataPlaneContext,
    hostname: &CustomHostname,
    renewal: Option<Renewal>,
) -> Result<(), Error> {
    let sql = "update custom_hostnames set not_before = least(not_before, $2) where id = $1";
    context
        .db
        .query(
            sql,
            &[&hostname.id, &next_look(renewal, context.clock.now())],
        )
        .await
        .context("writing a hostname")
        .map(drop)
}

/// Whether a hostname is told to have moved.
pub(crate) fn has_moved(hostname: &CustomHostname, now: DateTime<Utc>) -> bool {
    hostname
        .misrouted_since
        .is_some_and(|since| now - since >= MOVED)
}

async fn forget(
    context: &DataPlaneContext,
    hostname: &CustomHostname,
    why: &str,
) -> Result<(), Error> {
    context
        .db
        .query(
            "delete from custom_hostnames where id = $1",
            &[&hostname.id],
        )
        .await
        .context("removing a hostname")?;
    tracing::info!(host = %hostname.host, project = %hostname.reference, why, "a hostname was removed");
    context.table_changed(Table::CustomHostnames);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_frequent_at_first_and_then_ever_rarer() {
        assert_eq!(
            (0..=10).map(pause).collect::<Vec<_>>(),
            vec![QUICK_PAUSE; 11]
        );
        assert!(pause(11) > QUICK_PAUSE && pause(11) < pause(12));
        assert_eq!((pause(60), pause(i32::MAX)), (PAUSE_MAX, PAUSE_MAX));
        let looks = (0..200).scan(TimeDelta::zero(), |at, n| {
            *at += pause(n);
            Some(*at)
        });
        let week: Vec<_> = looks.take_while(|at| *at < MOVED).collect();
        assert!((60..100).contains(&week.len()), "{}", week.len());
    }
}
