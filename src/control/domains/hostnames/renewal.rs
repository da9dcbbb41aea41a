//! Renewal times of certificates: a random time in the window that the authority suggests (RFC
//! 9773), otherwise after two thirds of the validity period.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::clock::Entropy;
use instant_acme::{CertificateIdentifier, Error as AcmeError};
use rustls::pki_types::Der;
use tokio::time::timeout;
use x509_cert::{der::Encode, ext::pkix::AuthorityKeyIdentifier};

use super::{
    acme, acme_account,
    certificates::{self, ValidityPeriod},
    state::CertificateAuthority,
};
use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::{Context, Error},
    },
};

/// Timeout for requesting the renewal window.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limits for the interval between requests, which `Retry-After` determines.
const ASKED: (TimeDelta, TimeDelta) = (TimeDelta::hours(1), TimeDelta::days(1));
/// Interval after a failed request (RFC 9773 §4.3.3).
const SILENT: TimeDelta = TimeDelta::hours(6);
/// Minimum age for a renewal because of its window: limits orders to one a day if an authority
/// always returns past windows.
const REST: TimeDelta = TimeDelta::days(1);

/// Renewal window suggested by the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RenewalWindow {
    pub(crate) start: DateTime<Utc>,
    pub(crate) end: DateTime<Utc>,
}

/// Scheduled renewal of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) at: DateTime<Utc>,
    /// Time of the next request for the renewal window.
    pub(crate) ask_at: Option<DateTime<Utc>>,
}

impl RenewalWindow {
    /// Returns a time in the window, selected by 64 random bits, before the last tenth of the
    /// validity period. `None`: the window is unusable.
    fn moment(self, life: ValidityPeriod, random: u64) -> Option<DateTime<Utc>> {
        let last = life.from + life.length() * 9 / 10;
        if self.end <= self.start || self.start >= last {
            return None;
        }
        let millis = (self.end.min(last) - self.start).num_milliseconds();
        let part = i64::try_from((u128::from(random) * u128::try_from(millis).ok()?) >> 64).ok()?;
        Some(
            (self.start + TimeDelta::milliseconds(part))
                .max(life.from + REST.min(life.length() / 3)),
        )
    }
}

impl ValidityPeriod {
    /// Returns the default renewal time.
    pub(crate) fn two_thirds(self) -> DateTime<Utc> {
        self.from + self.length() * 2 / 3
    }
}

/// Returns the certificate identifier (RFC 9773 §4.1), or `None` without an authority key
/// identifier.
pub(crate) fn identifier(chain: &str) -> Result<Option<CertificateIdentifier<'static>>, Error> {
    let doing = "reading a certificate";
    let certificate = certificates::leaf(chain)?.tbs_certificate;
    let Some((_, by)) = certificate.get::<AuthorityKeyIdentifier>().context(doing)? else {
        return Ok(None);
    };
    let serial = certificate.serial_number.to_der().context(doing)?;
    let key = by
        .key_identifier
        .as_ref()
        .map(x509_cert::der::asn1::OctetString::as_bytes);
    // Without tag and length, one byte each: a serial number has at most twenty bytes.
    Ok(key.zip(serial.get(2..)).map(|(key, serial)| {
        CertificateIdentifier::new(Der::from_slice(key), Der::from_slice(serial)).into_owned()
    }))
}

/// Renewal columns of a stored certificate.
struct Row {
    chain: String,
    at: DateTime<Utc>,
    directory: Option<String>,
    window: Option<RenewalWindow>,
    ask_at: Option<DateTime<Utc>>,
}

async fn row(context: &ControlContext, id: uuid::Uuid) -> Result<Option<Row>, Error> {
    let sql = "select chain, renew_at, directory, window_start, window_end, ask_at from hostname_certificates where hostname_id = $1";
    let rows = context
        .db
        .query(sql, &[&id])
        .await
        .context("reading a certificate")?;
    Ok(rows.first().map(|row| Row {
        chain: row.get(0),
        at: row.get(1),
        directory: row.get(2),
        window: row
            .get::<_, Option<_>>(3)
            .zip(row.get(4))
            .map(|(start, end)| RenewalWindow { start, end }),
        ask_at: row.get(5),
    }))
}

/// Returns the identifier of the certificate that an order replaces, if the same authority issued
/// it and supports renewal information.
pub(crate) async fn replaced(
    context: &ControlContext,
    authority: &CertificateAuthority,
    id: uuid::Uuid,
) -> Result<Option<CertificateIdentifier<'static>>, Error> {
    match row(context, id).await? {
        Some(row)
            if row.window.is_some() && row.directory.as_ref() == Some(&authority.directory) =>
        {
            identifier(&row.chain)
        }
        _ => Ok(None),
    }
}

/// Returns the scheduled renewal of a hostname's certificate, after requesting the window if that
/// is due. `None`: there is no certificate.
pub(crate) async fn settle(
    context: &ControlContext,
    id: uuid::Uuid,
) -> Result<Option<Renewal>, Error> {
    let Some(row) = row(context, id).await? else {
        return Ok(None);
    };
    let now = context.clock.now();
    let kept = Renewal {
        at: row.at,
        ask_at: row.ask_at,
    };
    let life = certificates::life(&row.chain)?;
    let Some(authority) = context
        .control_settings
        .authority
        .as_ref()
        .filter(|authority| row.directory.as_ref() == Some(&authority.directory))
    else {
        return Ok(Some(Renewal {
            ask_at: None,
            ..kept
        }));
    };
    if now >= life.until {
        return Ok(Some(Renewal {
            ask_at: None,
            ..kept
        }));
    }
    if row.ask_at.is_none_or(|at| at > now) {
        return Ok(Some(kept));
    }
    let (at, window, again) = match ask(context, authority, &row.chain).await? {
        Ok((window, again)) if row.window == Some(window) => (row.at, row.window, again),
        Ok((window, again)) => {
            let moment = chosen(window, life, &context.entropy);
            (
                moment.unwrap_or_else(|| life.two_thirds()),
                moment.map(|_| window),
                again,
            )
        }
        // Keeps the previous schedule.
        Err(why) => {
            tracing::info!(why, "failed to request the renewal window");
            (row.at, row.window, SILENT)
        }
    };
    let ask_at = now + again;
    let sql = "update hostname_certificates set renew_at = $2, window_start = $3, window_end = $4, ask_at = $5 \
               where hostname_id = $1 and chain = $6";
    let start = window.map(|window| window.start);
    let end = window.map(|window| window.end);
    let params: [Param<'_>; 6] = [&id, &at, &start, &end, &ask_at, &row.chain];
    context
        .db
        .query(sql, &params)
        .await
        .context("writing when a certificate is renewed")?;
    Ok(Some(Renewal {
        at,
        ask_at: Some(ask_at),
    }))
}

fn chosen(window: RenewalWindow, life: ValidityPeriod, entropy: &Entropy) -> Option<DateTime<Utc>> {
    let moment = window.moment(life, u64::from_le_bytes(entropy.bytes()));
    if moment.is_none() {
        tracing::info!(start = %window.start, end = %window.end, until = %life.until, "unusable renewal window; using the default");
    }
    moment
}

/// Requests the renewal window and the time until the next request. The inner error is the reason
/// of a failed request.
async fn ask(
    context: &ControlContext,
    authority: &CertificateAuthority,
    chain: &str,
) -> Result<Result<(RenewalWindow, TimeDelta), String>, Error> {
    let Some(identifier) = identifier(chain)? else {
        return Ok(Err(
            "the certificate does not say whose key made it".to_owned()
        ));
    };
    let asked = async {
        let Some(account) = acme_account::known_account(context, authority).await? else {
            return Ok(Err("there is no account".to_owned()));
        };
        let said = account.renewal_info(&identifier).await?;
        Ok::<_, acme::OrderError>(Ok(said))
    };
    let said = match timeout(PATIENCE, Box::pin(asked)).await {
        Err(_) => Err("it takes its time".to_owned()),
        Ok(Err(acme::OrderError::Ours(error))) => return Err(error),
        Ok(Err(other)) => Err(other.to_string()),
        Ok(Ok(said)) => said,
    };
    Ok(said.and_then(|(said, again)| {
        let at = |seconds| DateTime::from_timestamp(seconds, 0).ok_or("it names no time");
        let window = RenewalWindow {
            start: at(said.suggested_window.start.unix_timestamp())?,
            end: at(said.suggested_window.end.unix_timestamp())?,
        };
        Ok((
            window,
            TimeDelta::from_std(again)
                .unwrap_or(ASKED.1)
                .clamp(ASKED.0, ASKED.1),
        ))
    }))
}

/// Returns whether an order was rejected because of its `replaces` field.
pub(crate) fn is_about_replacing(error: &AcmeError) -> bool {
    match error {
        AcmeError::Unsupported(_) => true,
        AcmeError::Api(problem) => problem
            .r#type
            .as_deref()
            .is_some_and(|kind| kind.ends_with(":alreadyReplaced") || kind.ends_with(":malformed")),
        // The authority accepted the order without the field, which the client library reports as
        // an error.
        AcmeError::Other(error) => error.to_string().starts_with("replaces field"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(day)
    }

    fn moment(start: i64, end: i64, random: u64) -> Option<DateTime<Utc>> {
        RenewalWindow {
            start: day(start),
            end: day(end),
        }
        .moment(
            ValidityPeriod {
                from: day(0),
                until: day(90),
            },
            random,
        )
    }

    #[test]
    fn renewal_time_is_random_within_the_window() {
        assert_eq!(moment(40, 60, 0), Some(day(40)));
        assert_eq!(moment(40, 60, 1 << 63), Some(day(50)));
        let last = moment(40, 60, u64::MAX).unwrap();
        assert!(
            last < day(60) && last > day(60) - TimeDelta::seconds(1),
            "{last}"
        );
    }

    #[test]
    fn past_window_renews_after_the_minimum_age() {
        assert_eq!(moment(-20, -10, 7), Some(day(1)), "right after it was made");
        assert_eq!(moment(5, 6, 0), Some(day(5)), "whatever time it is");
        let short = RenewalWindow {
            start: day(-2),
            end: day(-1),
        }
        .moment(
            ValidityPeriod {
                from: day(0),
                until: day(0) + TimeDelta::hours(6),
            },
            0,
        );
        assert_eq!(
            short,
            Some(day(0) + TimeDelta::hours(2)),
            "of a life of hours a third"
        );
    }

    #[test]
    fn unusable_window_is_ignored() {
        assert_eq!(moment(60, 40, 0), None);
        assert_eq!(moment(60, 60, 0), None);
        assert_eq!(moment(90, 95, 0), None, "after its end");
        assert_eq!(moment(81, 100, 0), None, "in its last tenth");
        assert!(
            moment(71, 2000, u64::MAX).unwrap() <= day(81),
            "no later than is safe"
        );
    }
}
