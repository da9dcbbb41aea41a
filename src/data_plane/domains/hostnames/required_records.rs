//! What DNS must say of a hostname before anything is done for it. Pure.

use super::host::Host;
use crate::base::{ids::ProjectRef, sealing::SealingKey};

/// What the label of the proof is, below which is the hostname.
const CHALLENGE: &str = "_gantry-challenge";

/// Begins a problem with CAA records: a word that clients of the API know.
pub const CAA_ERROR: &str = "caa_error";

/// What DNS says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsRecords {
    /// Where the name leads, without its last dot.
    pub alias: Option<String>,
    /// What stands where the proof is expected.
    pub texts: Vec<String>,
    /// Who may certify the name. Empty: anybody.
    pub issuers: Vec<String>,
    /// Who said so: the name servers of the zone.
    pub servers: Vec<String>,
}

/// What DNS is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredRecords {
    /// Where the name is to lead: to this project, and no other.
    pub alias: String,
    /// Where the proof is expected.
    pub proof_name: String,
    /// The proof: bound to the project and the name, the same whenever it is asked for.
    pub proof: String,
    /// As whom the authority is known that is to certify the name. None: nobody knows.
    pub issuer: Option<String>,
}

/// A record that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Where the name leads.
    Cname,
    /// BudgetScope it is.
    Txt,
    /// Who may certify it.
    Caa,
}

/// A record beside what it is to be.
#[derive(Debug)]
pub struct RecordCheck {
    /// Which record.
    pub record: RecordKind,
    /// What it is to say.
    pub expected: String,
    /// What it says.
    pub observed: String,
    /// Whether that will do.
    pub fits: bool,
}

impl RequiredRecords {
    /// Of a hostname of a project.
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

    /// What each record says beside what it is to say: where the name leads, its proof, who may certify it.
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

    /// What is wrong with what was records, as people are told.
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

    /// Whether the name leads to the project.
    pub fn alias_fits(&self, records: &DnsRecords) -> bool {
        records
            .alias
            .as_ref()
            .is_some_and(|alias| alias.eq_ignore_ascii_case(&self.alias))
    }

    /// Whether the proof is there.
    pub fn proof_fits(&self, records: &DnsRecords) -> bool {
        records.texts.contains(&self.proof)
    }

    /// Whether the authority may certify the name.
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
    fn a_hostname_is_proven_by_both_records_of_this_project() {
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
    fn each_fault_is_named_with_what_was_found_and_what_was_expected() {
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
