//! Log ingestion: the Logflare format, as Vector of a self-hosted stack sends it, and OTLP over
//! HTTP.

mod logflare;
pub mod operations;
mod otlp;
pub(super) mod recent;

use std::io::Read;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use flate2::read::GzDecoder;
use gantry_logs::event::Source;

use crate::platform::error::Error;

/// Maximum size of a body, compressed and decompressed.
const BYTES_MAX: usize = 4 << 20;
/// Maximum number of lines in a request.
const LINES_MAX: usize = 10_000;

/// Maximum length of the id that a sender gives to a line, in bytes.
const ID_BYTES_MAX: usize = 64;

/// Names that stacks send, and the corresponding sources. Other names become sources unchanged.
const NAMES: [(&str, Source); 9] = [
    ("gotrue.logs.prod", Source::Auth),
    ("postgREST.logs.prod", Source::Postgrest),
    ("postgres.logs", Source::Postgres),
    ("realtime.logs.prod", Source::Realtime),
    ("storage.logs.prod.2", Source::Storage),
    ("deno-relay-logs", Source::FunctionEdge),
    ("deno-subhosting-events", Source::Function),
    ("cloudflare.logs.prod", Source::Edge),
    ("pgbouncer.logs.prod", Source::Pgbouncer),
];

/// Returns the source for a sender's name. Sources that Gantry itself writes are reserved.
fn source(name: &str) -> Result<Source, Error> {
    let known = NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, source)| *source);
    let found = known
        .or_else(|| name.parse().ok())
        .filter(|source| *source != Source::Management);
    found.ok_or_else(|| Error::invalid("source", format!("there is no source {name:?}")))
}

/// Returns the decompressed body.
fn unpacked(body: Bytes, encoding: Option<&str>) -> Result<Bytes, Error> {
    match encoding {
        None | Some("" | "identity") => Ok(body),
        Some("gzip") => {
            let mut whole = Vec::new();
            let read = GzDecoder::new(&*body)
                .take(BYTES_MAX as u64 + 1)
                .read_to_end(&mut whole);
            read.map_err(|_| Error::invalid("body", "is not gzip"))?;
            if whole.len() > BYTES_MAX {
                Err(Error::TooLarge {
                    bytes_max: BYTES_MAX,
                })
            } else {
                Ok(whole.into())
            }
        }
        Some(_) => Err(Error::invalid("Content-Encoding", "expected gzip, or none")),
    }
}

/// Times outside the range that clients send and stores support are ignored.
fn within_reach(micros: i64, now: DateTime<Utc>) -> bool {
    const DAY: i64 = 86_400_000_000;
    (0..=now.timestamp_micros().saturating_add(DAY)).contains(&micros)
}

fn too_many() -> Error {
    Error::invalid(
        "body",
        format!("has more than {LINES_MAX} lines; send them in several requests"),
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn packed(bytes: &[u8]) -> Bytes {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap().into()
    }

    #[test]
    fn a_packed_body_has_the_bound_of_one_that_is_not() {
        assert_eq!(unpacked(packed(b"[]"), Some("gzip")).unwrap(), "[]");
        assert!(matches!(
            unpacked(packed(&vec![0; BYTES_MAX + 1]), Some("gzip")),
            Err(Error::TooLarge { .. })
        ));
        assert!(
            unpacked("[]".into(), Some("gzip")).is_err()
                && unpacked("[]".into(), Some("br")).is_err()
        );
    }

    #[test]
    fn the_names_of_stacks_are_sources() {
        assert_eq!(source("gotrue.logs.prod").unwrap(), Source::Auth);
        assert_eq!(source("postgres_logs").unwrap(), Source::Postgres);
        assert!(source("management_logs").is_err() && source("").is_err());
    }
}
