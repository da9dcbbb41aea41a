//! The operator's zone, in which text records answer authorities that look by DNS. Owners lead there once, with a CNAME record.

mod hook;
mod update;

use std::{fs::File, io::Read, net::SocketAddr, path::Path};

use chrono::{DateTime, Utc};

pub use self::{hook::ZoneHook, update::TsigKey};

use crate::base::sealing::SealingKey;

/// What the label of names is that authorities look at (RFC 8555, 8.4).
const CHALLENGE: &str = "_acme-challenge";
/// Longest content of a file with a key.
const KEY_BYTES_MAX: u64 = 1024;

/// Where authorities look by DNS for a name, which may be a wildcard.
pub fn challenge_name(name: &str) -> String {
    format!("{CHALLENGE}.{}", name.strip_prefix("*.").unwrap_or(name))
}

/// The zone, and how records get there.
#[derive(Debug, Clone)]
pub struct Zone {
    /// Lower case, without its last dot.
    name: String,
    writer: ZoneWriter,
}

/// How records get into the zone.
#[derive(Debug, Clone)]
pub enum ZoneWriter {
    /// By dynamic updates (RFC 2136) of a name server, signed with a key (RFC 8945).
    Update(SocketAddr, TsigKey),
    /// By a program of the operator's.
    Hook(ZoneHook),
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordChange {
    /// It is there from now on.
    Present,
    /// It is not there any more.
    Cleanup,
}

/// Why a zone cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ZoneError(pub String);

impl Zone {
    /// A zone of this name.
    pub fn new(name: &str, writer: ZoneWriter) -> Result<Self, ZoneError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        update::fqdn(&name).map_err(|error| ZoneError(format!("{name} is no zone: {error}")))?;
        Ok(Self { name, writer })
    }

    /// Where the answers for `host`, a hostname of a project, stand: nobody else's records lead there, also not those that an earlier
    /// project left behind.
    pub fn place(&self, key: &SealingKey, host: &str, project: &str) -> String {
        format!(
            "{}.{}",
            key.mark(&format!(
                "challenges of hostname {host} of project {project}"
            )),
            self.name
        )
    }

    /// Whether a name is below it.
    pub fn holds(&self, name: &str) -> bool {
        name.strip_suffix(&self.name)
            .is_some_and(|rest| rest.ends_with('.'))
    }

    /// Writes a text record, or takes it away. Either may be done twice. What went wrong is the operator's to know.
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
    /// The key in a file: `hmac-sha256:name:base64`, as knot's and other tools write it.
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
    fn answers_stand_in_the_zone_for_one_hostname_of_one_project() {
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
