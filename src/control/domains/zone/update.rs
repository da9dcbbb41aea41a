//! Dynamic updates (RFC 2136), signed with TSIG (RFC 8945).

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use hickory_resolver::proto::{
    ProtoError,
    op::{Message, MessageType, OpCode, Query, ResponseCode, UpdateMessage},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{
            TSIG, TXT,
            tsig::{TsigAlgorithm, make_tsig_record, message_tbs},
        },
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::RecordChange;

/// Timeout of an update.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time to live of challenge records, in seconds. Short, because the next challenge differs.
const TTL: u32 = 10;
/// Permitted clock difference, in seconds.
const FUDGE: u16 = 300;
/// Shortest key, in bytes. Shorter keys can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// A TSIG key.
#[derive(Clone)]
pub struct TsigKey {
    name: Name,
    algorithm: TsigAlgorithm,
    secret: Arc<hmac::Key>,
}

impl fmt::Debug for TsigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TsigKey({})", self.name)
    }
}

impl TsigKey {
    /// Parses `algorithm:name:base64`. Errors do not contain the key.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = text.splitn(3, ':');
        let (Some(algorithm), Some(name), Some(secret)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err("expected algorithm:name:base64");
        };
        let (algorithm, mac) = match algorithm {
            "hmac-sha256" => (TsigAlgorithm::HmacSha256, hmac::HMAC_SHA256),
            "hmac-sha384" => (TsigAlgorithm::HmacSha384, hmac::HMAC_SHA384),
            "hmac-sha512" => (TsigAlgorithm::HmacSha512, hmac::HMAC_SHA512),
            _ => return Err("expected the algorithm hmac-sha256, hmac-sha384 or hmac-sha512"),
        };
        let secret = BASE64_STANDARD
            .decode(secret)
            .map_err(|_| "expected the key in base64")?;
        if secret.len() < KEY_BYTES_MIN {
            return Err("expected a key of sixteen bytes at least");
        }
        let name = fqdn(name.trim_end_matches('.'))
            .map_err(|_| "expected a name of DNS as the key's name")?;
        Ok(Self {
            name,
            algorithm,
            secret: Arc::new(hmac::Key::new(mac, &secret)),
        })
    }
}

pub(super) fn fqdn(name: &str) -> Result<Name, ProtoError> {
    Ok(Name::from_ascii(format!("{name}."))?.to_lowercase())
}

/// Sends an update of one record. Publication is checked separately, at all name servers of the
/// zone.
pub(super) async fn send(
    server: SocketAddr,
    key: &TsigKey,
    zone: &str,
    change: RecordChange,
    (name, value): (&str, &str),
    (now, id): (DateTime<Utc>, u16),
) -> Result<(), String> {
    let update = message(key, zone, change, (name, value), (now, id))
        .map_err(|error| format!("making an update of {zone}: {error}"))?;
    let told = timeout(PATIENCE, exchange(server, &update))
        .await
        .map_err(|_| format!("{server} takes too long"))?;
    let told = Message::from_vec(&told.map_err(|error| format!("{server}: {error}"))?)
        .map_err(|error| format!("{server}: {error}"))?;
    match told.metadata.response_code {
        _ if told.metadata.id != id => Err(format!("{server} answers something else")),
        ResponseCode::NoError => Ok(()),
        refused => {
            let why = signature(&told)
                .and_then(|signature| signature.error)
                .map(|error| format!(", {error:?}"));
            Err(format!(
                "{server} refuses to update {zone}: {refused}{}",
                why.unwrap_or_default()
            ))
        }
    }
}

/// Returns the TSIG record of a message, which the library leaves among the additional records.
fn signature(message: &Message) -> Option<&TSIG> {
    message.additionals.iter().find_map(|record| {
        if let RData::TSIG(signature) = &record.data {
            Some(signature)
        } else {
            None
        }
    })
}

/// Encodes a signed update.
fn message(
    key: &TsigKey,
    zone: &str,
    change: RecordChange,
    (name, value): (&str, &str),
    (now, id): (DateTime<Utc>, u16),
) -> Result<Vec<u8>, ProtoError> {
    let mut query = Query::new();
    query
        .set_name(fqdn(zone)?)
        .set_query_class(DNSClass::IN)
        .set_query_type(RecordType::SOA);
    let ttl = if change == RecordChange::Present {
        TTL
    } else {
        0
    };
    let mut record = Record::from_rdata(
        fqdn(name)?,
        ttl,
        RData::TXT(TXT::new(vec![value.to_owned()])),
    );
    if change == RecordChange::Cleanup {
        // Class NONE deletes this record only (RFC 2136 §2.5.4).
        record.dns_class = DNSClass::NONE;
    }
    let mut message = Message::new(id, MessageType::Query, OpCode::Update);
    message.add_zone(query);
    message.add_update(record);
    let unsigned = TSIG::new(
        key.algorithm.clone(),
        now.timestamp().unsigned_abs(),
        FUDGE,
        Vec::new(),
        id,
        None,
        Vec::new(),
    );
    let mac = hmac::sign(&key.secret, &message_tbs(&message, &unsigned, &key.name)?);
    message.signature = Some(Box::new(make_tsig_record(
        key.name.clone(),
        unsigned.set_mac(mac.as_ref().to_vec()),
    )));
    message.to_vec()
}

/// Exchanges messages over TCP, each prefixed with its length in two bytes.
async fn exchange(server: SocketAddr, message: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), message].concat())
        .await?;
    let mut told = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut told).await?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_parsed_and_not_printed() {
        let secret = BASE64_STANDARD.encode([7; 32]);
        let key = TsigKey::parse(&format!("hmac-sha512:acme.key.:{secret}")).unwrap();
        assert_eq!(format!("{key:?}"), "TsigKey(acme.key.)");
        for (text, why) in [
            ("", "algorithm:name:base64"),
            ("key:acme", "algorithm:name:base64"),
            ("hmac-md5:acme:AAAA", "hmac-sha256"),
            ("hmac-sha256:acme:!", "base64"),
            ("hmac-sha256:acme:AAAA", "sixteen bytes"),
        ] {
            let error = TsigKey::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn update_is_signed_and_changes_one_record() {
        let key = TsigKey::parse(&format!(
            "hmac-sha256:k:{}",
            BASE64_STANDARD.encode([7; 32])
        ))
        .unwrap();
        let wire = |change| {
            message(
                &key,
                "acme.test",
                change,
                ("a.acme.test", "v"),
                (DateTime::UNIX_EPOCH, 9),
            )
            .unwrap()
        };
        let update = Message::from_vec(&wire(RecordChange::Cleanup)).unwrap();
        assert_eq!(
            (update.metadata.op_code, update.queries[0].query_type()),
            (OpCode::Update, RecordType::SOA)
        );
        assert_eq!(
            (update.authorities.len(), update.authorities[0].dns_class),
            (1, DNSClass::NONE)
        );
        let signature = signature(&update).unwrap();
        assert_eq!(
            (signature.mac.len(), signature.oid, signature.fudge),
            (32, 9, 300)
        );
        assert_eq!(
            Message::from_vec(&wire(RecordChange::Present))
                .unwrap()
                .authorities[0]
                .dns_class,
            DNSClass::IN
        );
    }
}
