//! Reconciles custom hostnames with DNS and the certificate authority: unverified ones with
//! increasing intervals, served ones once a day.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{StreamExt, stream};
use gantry_base::repeat::pause_until;
use tokio::time::timeout;

use super::{
    CustomHostname, State,
    acme::{self, OrderOutcome},
    challenge_records,
    renewal::{self, Renewal},
    revocations, select_hostname, wildcard, write, write_refused,
};
use crate::{
    control::context::ControlContext,
    platform::{
        error::{Context, Error},
        tables::Table,
    },
};

/// Hostnames processed concurrently.
const WORKERS: usize = 4;
/// Hostnames claimed per batch.
const BATCH: i64 = 64;
/// Longest pause between passes.
const PASS: Duration = Duration::from_secs(30);
/// Duration of a claim. Longer than processing takes.
pub(crate) const CLAIM: TimeDelta = TimeDelta::minutes(2);
/// Pauses after a rejected order (authorities limit failures per hour), after a rejected renewal,
/// after a reached limit, and after an incomplete attempt.
const REFUSED_PAUSE: TimeDelta = TimeDelta::minutes(15);
const RENEWAL_PAUSE: TimeDelta = TimeDelta::hours(1);
pub(crate) const POSTPONED_PAUSE: TimeDelta = TimeDelta::minutes(10);
pub(crate) const UNFINISHED_PAUSE: TimeDelta = TimeDelta::seconds(20);
/// Number of initial checks with a constant pause, that pause, and the longest pause afterwards.
const QUICK: i32 = 10;
const QUICK_PAUSE: TimeDelta = TimeDelta::minutes(2);
const PAUSE_MAX: TimeDelta = TimeDelta::hours(4);
/// Interval of checks of a served hostname.
const DAILY: TimeDelta = TimeDelta::days(1);
/// Time without the required records after which a hostname is reported as moved.
const MOVED: TimeDelta = TimeDelta::days(7);
/// Time without the required records after which a hostname is deleted.
const GONE: TimeDelta = TimeDelta::days(14);

/// Runs until the process ends.
pub async fn run(context: ControlContext) {
    loop {
        if let Err(error) = pass(&context).await {
            tracing::warn!(%error, "hostname pass failed");
        }
        let pause = pause_until_due(&context).await.unwrap_or(PASS);
        // Woken or not, due hostnames are processed.
        let _ = timeout(pause, context.hostname_reconciler.bell.notified()).await;
    }
}

/// Returns the time until the next hostname is due, at most [`PASS`] because other nodes schedule
/// checks as well.
async fn pause_until_due(context: &ControlContext) -> Result<Duration, Error> {
    let now = context.clock.now();
    let sql = "select min(not_before) from custom_hostnames where not_before > $1";
    let rows = context
        .db
        .query(sql, &[&now])
        .await
        .context("looking for hostnames")?;
    let due: Option<DateTime<Utc>> = rows.first().and_then(|row| row.get(0));
    Ok(due.map_or(PASS, |due| pause_until(due, now, PASS)))
}

/// Processes everything that is due.
pub async fn pass(context: &ControlContext) -> Result<(), Error> {
    // The four parts are independent: none delays the others or prevents them from running.
    let (wildcard, hostnames) = tokio::join!(wildcard::pass(context), look_at_hostnames(context));
    let (answers, revocations) = tokio::join!(
        challenge_records::remove_finished(context),
        revocations::pass(context)
    );
    wildcard.and(hostnames).and(answers).and(revocations)
}

async fn look_at_hostnames(context: &ControlContext) -> Result<(), Error> {
    loop {
        let now = context.clock.now();
        // Claimed by setting the time of the next check, so that other nodes skip it.
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
            // A failure does not affect other hostnames.
            if let Err(error) = advance(context, &hostname).await {
                tracing::warn!(host = %hostname.host, %error, "hostname check failed; retrying later");
            }
        });
        stream::iter(work)
            .buffer_unordered(WORKERS)
            .collect::<()>()
            .await;
    }
}

async fn advance(context: &ControlContext, hostname: &CustomHostname) -> Result<(), Error> {
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

/// Message for verified hostnames on a server without a certificate authority.
const NO_AUTHORITY: &str = "This server has no certificate authority, so the custom hostname gets no certificate; its operator can name one with --acme-directory.";

/// Orders or renews the certificate of a hostname.
async fn certify(context: &ControlContext, hostname: &CustomHostname) -> Result<(), Error> {
    let now = context.clock.now();
    let Some(authority) = &context.control_settings.authority else {
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
            tracing::info!(host = %hostname.host, project = %hostname.reference, %renew_at, "hostname certified");
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
            // The authority may suggest another renewal time than the default.
            bring_forward(
                context,
                hostname,
                renewal::settle(context, hostname.id).await?,
            )
            .await
        }
        OrderOutcome::Refused(why) => {
            tracing::warn!(host = %hostname.host, why, "certificate order rejected");
            // The records are checked again before the next order. A served hostname remains
            // served.
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
            write_refused(
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
            tracing::warn!(host = %hostname.host, why, "certificate order postponed");
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
            tracing::info!(host = %hostname.host, why, "certificate order incomplete; retrying later");
            write(context, hostname.state, hostname, now + UNFINISHED_PAUSE)
                .await
                .map(drop)
        }
    }
}

/// Returns the pause after this many failed checks.
fn pause(attempts: i32) -> TimeDelta {
    let late = attempts.saturating_sub(QUICK).clamp(0, 100);
    (0..late).fold(QUICK_PAUSE, |pause, _| (pause * 115 / 100).min(PAUSE_MAX))
}

/// Checks the required records, and marks the hostname as verified if they are present.
pub async fn look(context: &ControlContext, hostname: &CustomHostname) -> Result<(), Error> {
    let now = context.clock.now();
    let required = hostname.required(context);
    let problems = match context
        .control_settings
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
            tracing::info!(host = %hostname.host, project = %hostname.reference, "hostname verified");
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

/// Checks that a certified hostname still routes to its project.
async fn look_again(context: &ControlContext, hostname: &CustomHostname) -> Result<(), Error> {
    let now = context.clock.now();
    let required = hostname.required(context);
    let problems = match context
        .control_settings
        .dns
        .look(&hostname.host, &required.proof_name)
        .await
    {
        // The CNAME record is sufficient: it proves control of the name.
        Ok(records) if required.alias_fits(&records) => Vec::new(),
        Ok(records) => required.problems(&records).into_iter().take(1).collect(),
        // A failed query does not show that the hostname has moved.
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
    // No certificate is renewed for a name that routes elsewhere.
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

/// Returns the time of the next check, at most one day from now.
pub(crate) fn next_look(renewal: Option<Renewal>, now: DateTime<Utc>) -> DateTime<Utc> {
    let moments = renewal
        .into_iter()
        .flat_map(|renewal| [Some(renewal.at), renewal.ask_at])
        .flatten();
    moments
        .filter(|at| *at > now)
        .fold(now + DAILY, DateTime::min)
}

/// Reschedules the next check to no later than the renewal requires.
async fn bring_forward(
    context: &ControlContext,
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

/// Returns whether a hostname is reported as moved.
pub(crate) fn has_moved(hostname: &CustomHostname, now: DateTime<Utc>) -> bool {
    hostname
        .misrouted_since
        .is_some_and(|since| now - since >= MOVED)
}

async fn forget(
    context: &ControlContext,
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
    tracing::info!(host = %hostname.host, project = %hostname.reference, why, "hostname deleted");
    context.table_changed(Table::CustomHostnames);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_attempts() {
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
