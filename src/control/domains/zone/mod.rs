//! The operator's zone for DNS-01 challenges. Owners of hostnames delegate to it once, with a CNAME
//! record.

mod hook;
mod update;

use std::{fs::File, io::Read, net::SocketAddr, path::Path};

use chrono::{DateTime, Utc};

pub use self::{hook::ZoneHook, update::TsigKey};

use crate::platform::sealing::SealingKey;

/// Label of DNS-01 challenges (RFC 8555 §8.4).
const CHALLENGE: &str = "_acme-challenge";
/// Longest key file, in bytes.
const KEY_BYTES_MAX: u64 = 1024;

/// Returns the name of the challenge record for a name, which may be a wildcard.
pub fn challenge_name(name: &str) -> String {
    format!("{CHALLENGE}.{}", name.strip_prefix("*.").unwrap_or(name))
}

/// The zone and the way to update it.
#[derive(Debug, Clone)]
pub struct Zone {
    /// Lower case, without trailing dot.
    name: String,
    writer: ZoneWriter,
}

/// Writes records of a zone.
#[derive(Debug, Clone)]
pub enum ZoneWriter {
    /// Dynamic updates (RFC 2136) of a name server, signed with TSIG (RFC 8945).
    Update(SocketAddr, TsigKey),
    /// A program of the operator's.
    Hook(ZoneHook),
}

/// Change of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordChange {
    /// Adds the record.
    Present,
    /// Removes the record.
    Cleanup,
}

/// A failure to configure or update a zone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ZoneError(pub String);

impl Zone {
    /// Creates a zone.
    pub fn new(name: &str, writer: ZoneWriter) -> Result<Self, ZoneError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        update::fqdn(&name).map_err(|error| ZoneError(format!("{name} is no zone: {error}")))?;
        Ok(Self { name, writer })
    }

    /// Returns the record name for challenges of a project's hostname. It differs for each project,
    /// so a delegation left by an earlier project is useless.
    pub fn place(&self, key: &SealingKey, host: &str, project: &str) -> String {
        format!(
            "{}.{}",
            key.mark(&format!(
                "challenges of hostname {host} of project {project}"
            )),
            self.name
        )
    }

    /// Returns whether a name is below the zone.
    pub fn holds(&self, name: &str) -> bool {
        name.strip_suffix(&self.name)
            .is_some_and(|rest| rest.ends_with('.'))
    }

    /// Adds or removes a TXT record. Idempotent. The error is for the operator's log.
    pub async fn write(
        &self,
        change: RecordChange,
        name: &str,
        value: &str,
        at: (DateTime<Utc>, u16),
    ) -> Result<(), String> {
        match &self.writer {
            ZoneWriter::Update(server, key) => {
                update::send(*server, key, &self.name, change, (name, value), at).await
            }
            ZoneWriter::Hook(hook) => hook.run(change, name, value).await,
        }
    }
}

impl TsigKey {
    /// Reads a key file: `hmac-sha256:name:base64`, the format of Knot DNS.
    pub fn read(file: &Path) -> Result<Self, ZoneError> {
        let said = |why: &dyn std::fmt::Display| {
            ZoneError(format!("the key in {}: {why}", file.display()))
        };
        let mut text = String::new();
        File::open(file)
            .and_then(|file| file.take(KEY_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| said(&error))?;
        Self::parse(text.trim()).map_err(|why| said(&why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_name_depends_on_hostname_and_project() {
        let key =
            TsigKey::parse("hmac-sha256:k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
        let zone = Zone::new(
            "ACME.Projects.test.",
            ZoneWriter::Update(([127, 0, 0, 1], 53).into(), key),
        )
        .unwrap();
        let sealing = SealingKey::new(&[7; 32]).unwrap();
        let place = zone.place(&sealing, "api.customer.test", "a");
        assert!(
            place.ends_with(".acme.projects.test") && place.split('.').next().unwrap().len() == 40,
            "{place}"
        );
        assert!(
            zone.holds(&place)
                && !zone.holds("acme.projects.test")
                && !zone.holds("x.evilacme.projects.test")
        );
        for other in [
            zone.place(&sealing, "api.customer.test", "b"),
            zone.place(&sealing, "app.customer.test", "a"),
        ] {
            assert_ne!(place, other);
        }
        assert_eq!(
            challenge_name("*.projects.test"),
            "_acme-challenge.projects.test"
        );
    }
}
