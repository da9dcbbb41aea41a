//! DNS records that a custom hostname needs before it is certified. Pure.

use gantry_base::ids::ProjectRef;

use super::host::Host;
use crate::platform::sealing::SealingKey;

/// Label of the ownership record below which the hostname follows.
const CHALLENGE: &str = "_gantry-challenge";

/// Prefix of a CAA problem, which API clients recognize.
pub const CAA_ERROR: &str = "caa_error";

/// DNS records found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsRecords {
    /// Target of the CNAME record, without trailing dot.
    pub alias: Option<String>,
    /// TXT records at the ownership name.
    pub texts: Vec<String>,
    /// CAs that CAA records permit. Empty: any.
    pub issuers: Vec<String>,
    /// Name servers of the zone, which returned the records.
    pub servers: Vec<String>,
}

/// DNS records required.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredRecords {
    /// Target of the CNAME record: this project's name.
    pub alias: String,
    /// Name of the ownership TXT record.
    pub proof_name: String,
    /// Value of the ownership record: derived from project and hostname, so it never changes.
    pub proof: String,
    /// CAA identity of the certificate authority. `None`: unknown.
    pub issuer: Option<String>,
}

/// A kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Routes the name to the project.
    Cname,
    /// Proves ownership.
    Txt,
    /// Permits the certificate authority.
    Caa,
}

/// Comparison of a record with its requirement.
#[derive(Debug)]
pub struct RecordCheck {
    /// Kind of record.
    pub record: RecordKind,
    /// Required value.
    pub expected: String,
    /// Value found.
    pub observed: String,
    /// Whether the requirement is met.
    pub fits: bool,
}

impl RequiredRecords {
    /// Returns the required records of a project's hostname.
    pub fn new(
        host: &Host,
        project: &ProjectRef,
        domain: &str,
        key: &SealingKey,
        issuer: Option<&str>,
    ) -> Self {
        Self {
            alias: format!("{project}.{}", domain.to_ascii_lowercase()),
            proof_name: format!("{CHALLENGE}.{host}"),
            proof: key.mark(&format!("hostname {host} of project {project}")),
            issuer: issuer.map(str::to_owned),
        }
    }

    /// Compares CNAME, TXT and CAA records with their requirements.
    pub fn findings(&self, records: &DnsRecords) -> [RecordCheck; 3] {
        let several = |values: &[String], none: &str| {
            if values.is_empty() {
                none.to_owned()
            } else {
                values.join(", ")
            }
        };
        let issuer = self
            .issuer
            .clone()
            .unwrap_or_else(|| "any authority".to_owned());
        [
            RecordCheck {
                record: RecordKind::Cname,
                expected: self.alias.clone(),
                observed: records
                    .alias
                    .clone()
                    .unwrap_or_else(|| "no CNAME record".to_owned()),
                fits: self.alias_fits(records),
            },
            RecordCheck {
                record: RecordKind::Txt,
                expected: self.proof.clone(),
                observed: several(&records.texts, "no TXT record"),
                fits: self.proof_fits(records),
            },
            RecordCheck {
                record: RecordKind::Caa,
                expected: issuer,
                observed: several(&records.issuers, "no CAA record"),
                fits: self.issuer_fits(records),
            },
        ]
    }

    /// Returns a message for each unmet requirement.
    pub fn problems(&self, records: &DnsRecords) -> Vec<String> {
        let wrong = self
            .findings(records)
            .into_iter()
            .filter(|finding| !finding.fits);
        wrong
            .map(|RecordCheck { record, expected, observed, .. }| match record {
                RecordKind::Cname => format!("custom hostname does not CNAME to this project: found {observed}, expected {expected}"),
                RecordKind::Txt => format!(
                    "custom hostname is not proven to be this project's: found {observed} at {}, expected {expected}",
                    self.proof_name
                ),
                RecordKind::Caa => {
                    format!("{CAA_ERROR}: CAA records let only {observed} certify the custom hostname, expected {expected} among them")
                }
            })
            .collect()
    }

    /// Returns whether the name routes to the project.
    pub fn alias_fits(&self, records: &DnsRecords) -> bool {
        records
            .alias
            .as_ref()
            .is_some_and(|alias| alias.eq_ignore_ascii_case(&self.alias))
    }

    /// Returns whether the ownership record is present.
    pub fn proof_fits(&self, records: &DnsRecords) -> bool {
        records.texts.contains(&self.proof)
    }

    /// Returns whether CAA records permit the authority.
    pub fn issuer_fits(&self, records: &DnsRecords) -> bool {
        records.issuers.is_empty()
            || self.issuer.as_ref().is_none_or(|issuer| {
                records
                    .issuers
                    .iter()
                    .any(|one| one.eq_ignore_ascii_case(issuer))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(host: &str, project: &str) -> RequiredRecords {
        let key = SealingKey::new(&[7; 32]).unwrap();
        RequiredRecords::new(
            &Host::trusted(host),
            &project.repeat(20).parse().unwrap(),
            "Projects.test",
            &key,
            Some("ca.test"),
        )
    }

    fn right(required: &RequiredRecords) -> DnsRecords {
        DnsRecords {
            alias: Some(required.alias.clone()),
            texts: vec![required.proof.clone()],
            ..DnsRecords::default()
        }
    }

    #[test]
    fn both_records_of_the_project_are_required() {
        let ours = required("api.customer.test", "a");
        assert_eq!(
            (ours.alias.as_str(), ours.proof.len()),
            (format!("{}.projects.test", "a".repeat(20)).as_str(), 40)
        );
        assert_eq!(ours.problems(&right(&ours)), Vec::<String>::new());
        assert_eq!(
            ours.problems(&DnsRecords {
                alias: Some(ours.alias.to_uppercase()),
                ..right(&ours)
            }),
            Vec::<String>::new()
        );
        assert_eq!(
            ours.problems(&DnsRecords {
                texts: vec!["other".into(), ours.proof.clone()],
                ..right(&ours)
            }),
            Vec::<String>::new()
        );
        assert_eq!(
            ours,
            required("api.customer.test", "a"),
            "it is the same whenever it is asked for"
        );
        for theirs in [
            required("api.customer.test", "b"),
            required("app.customer.test", "a"),
        ] {
            assert!(
                !ours.proof_fits(&right(&theirs)),
                "it is nobody else's, and of no other name"
            );
        }
        assert!(!ours.alias_fits(&right(&required("api.customer.test", "b"))));
    }

    #[test]
    fn problems_name_found_and_expected_records() {
        let ours = required("api.customer.test", "a");
        let nothing = ours.problems(&DnsRecords::default());
        assert_eq!(
            nothing[0],
            format!(
                "custom hostname does not CNAME to this project: found no CNAME record, expected {}",
                ours.alias
            )
        );
        assert!(
            nothing[1].contains("found no TXT record at _gantry-challenge.api.customer.test")
                && nothing[1].ends_with(&ours.proof)
        );
        assert_eq!(nothing.len(), 2);
        let elsewhere = ours.problems(&DnsRecords {
            alias: Some("x.test".into()),
            ..right(&ours)
        });
        assert!(
            elsewhere.len() == 1 && elsewhere[0].contains("found x.test, expected"),
            "{elsewhere:?}"
        );
        let caa = ours.problems(&DnsRecords {
            issuers: vec!["other.test".into()],
            ..right(&ours)
        });
        assert!(
            caa.len() == 1 && caa[0].starts_with("caa_error: CAA records let only other.test"),
            "{caa:?}"
        );
        assert!(ours.issuer_fits(&DnsRecords {
            issuers: vec!["other.test".into(), "CA.test".into()],
            ..right(&ours)
        }));
        assert!(
            RequiredRecords {
                issuer: None,
                ..ours.clone()
            }
            .issuer_fits(&DnsRecords {
                issuers: vec!["other.test".into()],
                ..right(&ours)
            })
        );
    }
}
