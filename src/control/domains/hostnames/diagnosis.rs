//! Diagnosis of a custom hostname: every precondition with its status and the next action.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use super::{
    CustomHostname, State, certificates,
    certificates::StoredCertificate,
    reach,
    reach::PortReport,
    required_records::{DnsRecords, RecordCheck, RecordKind, RequiredRecords},
    spelling::{Spelling, spelling},
};
use crate::{
    control::{context::ControlContext, domains::zone::challenge_name},
    platform::error::Error,
};

/// Timeout for queries to name servers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum CheckStatus {
    /// The requirement is met.
    Passed,
    /// An action is required.
    Failed,
    /// In progress; no action is required.
    Waiting,
    /// An action is possible and not required.
    Optional,
    /// Not checked, because of another check or because it is no longer relevant.
    Skipped,
}

/// One check.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct HostnameCheck {
    /// `spelling`, `cname`, `txt`, `caa`, `delegation`, `http`, `https`, `certificate` or `chain`.
    pub name: &'static str,
    /// Result.
    pub status: CheckStatus,
    /// Required value.
    pub expected: String,
    /// Value found.
    pub observed: String,
    /// Action that resolves the problem.
    pub next_action: Option<String>,
}

/// Runs all checks within a bounded time.
pub async fn examine(
    context: &ControlContext,
    hostname: &CustomHostname,
) -> Result<Vec<HostnameCheck>, Error> {
    let required = hostname.required(context);
    let kept = certificates::kept(context, hostname).await?;
    let looked = timeout(
        PATIENCE,
        context
            .control_settings
            .dns
            .look(&hostname.host, &required.proof_name),
    )
    .await;
    let records = looked.unwrap_or_else(|_| Err("the name servers take too long".to_owned()));
    let leads_here = records
        .as_ref()
        .is_ok_and(|records| required.alias_fits(records));
    let mut checks: Vec<HostnameCheck> = match &records {
        Ok(records) => required
            .findings(records)
            .into_iter()
            .map(|finding| record(hostname, &required, finding))
            .collect(),
        Err(why) => required
            .findings(&DnsRecords::default())
            .iter()
            .map(|finding| unasked(&required, finding, why))
            .collect(),
    };
    if let Some(spelling) = spelling(&hostname.host) {
        checks.insert(0, spelled(spelling));
    }
    if let Some(place) = hostname.delegate(context) {
        checks.push(delegation(context, hostname, &place).await);
    }
    checks.extend(reachability(context, hostname, &required, kept.as_ref(), leads_here).await);
    checks.extend(certificate(context, hostname, kept.as_ref())?);
    Ok(checks)
}

/// Returns the name of a record's check and the required record.
fn written(
    required: &RequiredRecords,
    record: RecordKind,
    expected: &str,
) -> (&'static str, String) {
    match record {
        RecordKind::Cname => ("cname", format!("CNAME {expected}")),
        RecordKind::Txt => ("txt", format!("TXT {expected} at {}", required.proof_name)),
        RecordKind::Caa => (
            "caa",
            format!("no CAA record, or one with issue \"{expected}\""),
        ),
    }
}

fn record(
    hostname: &CustomHostname,
    required: &RequiredRecords,
    finding: RecordCheck,
) -> HostnameCheck {
    let (name, expected) = written(required, finding.record, &finding.expected);
    let host = &hostname.host;
    let (status, next_action) = match finding.record {
        _ if finding.fits => (CheckStatus::Passed, None),
        // Only needed before the verification.
        RecordKind::Txt if hostname.state != State::Initiated => (CheckStatus::Skipped, None),
        RecordKind::Cname => {
            let action = format!(
                "Where the DNS of {host} is kept, make it a CNAME of {} and remove its other records.",
                finding.expected
            );
            (CheckStatus::Failed, Some(action))
        }
        RecordKind::Txt => {
            let action = format!(
                "Where the DNS of {host} is kept, add a TXT record {} with the text {}.",
                required.proof_name, finding.expected
            );
            (CheckStatus::Failed, Some(action))
        }
        RecordKind::Caa => {
            let action = format!(
                "Add a CAA record 0 issue \"{}\" for {host}, or remove those that name only others.",
                finding.expected
            );
            (CheckStatus::Failed, Some(action))
        }
    };
    HostnameCheck {
        name,
        status,
        expected,
        observed: finding.observed,
        next_action,
    }
}

/// Returns the check of a record for which the DNS query failed.
fn unasked(required: &RequiredRecords, finding: &RecordCheck, why: &str) -> HostnameCheck {
    let (name, expected) = written(required, finding.record, &finding.expected);
    let next_action = Some(
        "See to it that the name servers of the domain answer to everybody, then check again."
            .to_owned(),
    );
    HostnameCheck {
        name,
        status: CheckStatus::Failed,
        expected,
        observed: format!("DNS could not be asked: {why}"),
        next_action,
    }
}

/// Shows how an internationalized name is displayed, and its similarity to other names.
fn spelled(Spelling { unicode, doubts }: Spelling) -> HostnameCheck {
    let action = format!(
        "Look twice whether this is the name that was meant: {}.",
        doubts.join("; ")
    );
    let (status, next_action) = if doubts.is_empty() {
        (CheckStatus::Passed, None)
    } else {
        (CheckStatus::Optional, Some(action))
    };
    HostnameCheck {
        name: "spelling",
        status,
        expected: "letters that cannot be taken for others".to_owned(),
        observed: unicode,
        next_action,
    }
}

/// Checks the optional delegation of DNS-01 challenges to the operator's zone.
async fn delegation(
    context: &ControlContext,
    hostname: &CustomHostname,
    place: &str,
) -> HostnameCheck {
    let name = challenge_name(hostname.host.as_str());
    let said = timeout(PATIENCE, context.control_settings.dns.alias(&name)).await;
    let (fits, observed) =
        match said.unwrap_or_else(|_| Err("the name servers take too long".to_owned())) {
            Ok(Some(alias)) => (alias == place, alias),
            Ok(None) => (false, "no CNAME record".to_owned()),
            Err(why) => (false, format!("DNS could not be asked: {why}")),
        };
    let action = format!(
        "Only where something else answers on port 80 and 443 of {}, such as a proxy: make {name} a CNAME of {place}, \
         and the authority looks there instead.",
        hostname.host
    );
    let (status, next_action) = if fits {
        (CheckStatus::Passed, None)
    } else {
        (CheckStatus::Optional, Some(action))
    };
    HostnameCheck {
        name: "delegation",
        status,
        expected: format!("CNAME {place} at {name}"),
        observed,
        next_action,
    }
}

async fn reachability(
    context: &ControlContext,
    hostname: &CustomHostname,
    required: &RequiredRecords,
    kept: Option<&StoredCertificate>,
    leads_here: bool,
) -> [HostnameCheck; 2] {
    let http = "this server answers on port 80";
    let https = "this server answers on port 443, with the certificate";
    let check = |name, status, expected: &str, observed, next_action| HostnameCheck {
        name,
        status,
        expected: expected.to_owned(),
        observed,
        next_action,
    };
    if !leads_here {
        let skipped = |name, expected| {
            check(
                name,
                CheckStatus::Skipped,
                expected,
                "not asked: the hostname does not lead here".to_owned(),
                Some("See to cname first.".to_owned()),
            )
        };
        return [skipped("http", http), skipped("https", https)];
    }
    let reached = match reach::reach(
        context,
        &hostname.host,
        &required.alias,
        kept.map(|kept| &kept.chain[..]),
    )
    .await
    {
        Ok(reached) => reached,
        Err(why) => {
            let action =
                "The operator of this server has to give the projects' domain addresses in DNS."
                    .to_owned();
            let failed = |name, expected| {
                check(
                    name,
                    CheckStatus::Failed,
                    expected,
                    why.clone(),
                    Some(action.clone()),
                )
            };
            return [failed("http", http), failed("https", https)];
        }
    };
    let told = |name, expected, PortReport { text, fits }, waits: bool, option| {
        let action = format!(
            "The operator of this server has to see to it that it is reached there: {option}."
        );
        let status = match (fits, waits) {
            (true, false) => CheckStatus::Passed,
            (true, true) => CheckStatus::Waiting,
            (false, _) => CheckStatus::Failed,
        };
        check(name, status, expected, text, (!fits).then_some(action))
    };
    [
        told(
            "http",
            http,
            reached.http,
            false,
            "--edge-http-listen, and whatever stands before it",
        ),
        told(
            "https",
            https,
            reached.https,
            kept.is_none(),
            "--edge-https-listen, and whatever stands before it",
        ),
    ]
}

fn certificate(
    context: &ControlContext,
    hostname: &CustomHostname,
    kept: Option<&StoredCertificate>,
) -> Result<[HostnameCheck; 2], Error> {
    let now = context.clock.now();
    let expected = (
        format!("a certificate for {}", hostname.host),
        "each certificate is signed by the next",
    );
    let check = |name, status, expected: &str, observed, next_action| HostnameCheck {
        name,
        status,
        expected: expected.to_owned(),
        observed,
        next_action,
    };
    let Some(kept) = kept else {
        let (status, observed, action) = match (&hostname.refusal, hostname.state) {
            (Some(why), State::Initiated) => {
                let action = "Correct what the authority found. It is asked again by itself once the records are right.";
                (CheckStatus::Failed, why.clone(), Some(action.to_owned()))
            }
            (Some(why), _) => (CheckStatus::Failed, why.clone(), None),
            (None, State::Initiated) => (
                CheckStatus::Waiting,
                "it is ordered once the records are right".to_owned(),
                None,
            ),
            (None, _) => (CheckStatus::Waiting, "it is being ordered".to_owned(), None),
        };
        let skipped = check(
            "chain",
            CheckStatus::Skipped,
            expected.1,
            "there is no certificate yet".to_owned(),
            None,
        );
        return Ok([
            check("certificate", status, &expected.0, observed, action),
            skipped,
        ]);
    };
    let (issuer, names) = kept.issuer_and_names()?;
    let day = |at: chrono::DateTime<chrono::Utc>| at.format("%Y-%m-%d");
    let observed = format!(
        "for {}, by {issuer}, until {}, renewed from {}",
        names.join(", "),
        day(kept.until),
        day(kept.renew_at)
    );
    let (status, action) =
        if now >= kept.until || !names.iter().any(|name| name == hostname.host.as_str()) {
            (
                CheckStatus::Failed,
                Some(hostname.refusal.clone().unwrap_or_else(|| {
                    "It is renewed by itself once the records are right.".to_owned()
                })),
            )
        } else if let Some(why) = &hostname.refusal {
            // The current certificate is valid; its renewal failed.
            (
                CheckStatus::Failed,
                Some(format!(
                    "Correct what the authority found when it was asked for the next one: {why}"
                )),
            )
        } else {
            (CheckStatus::Passed, None)
        };
    let chain = match kept.verify(&hostname.host) {
        Ok(()) => check(
            "chain",
            CheckStatus::Passed,
            expected.1,
            format!("{} certificates, and they fit", kept.chain.len()),
            None,
        ),
        Err(why) => {
            let action = "Delete the hostname and ask for it again; if that does not help, the authority is at fault.".to_owned();
            check("chain", CheckStatus::Failed, expected.1, why, Some(action))
        }
    };
    Ok([
        check("certificate", status, &expected.0, observed, action),
        chain,
    ])
}
