//! The audit log of changes and attempted changes, in hash chains that show altered, missing and
//! inserted entries.
//!
//! Each organization has a chain, each account has one for operations that name no organization,
//! and the server has one for commands of the operator that concern neither.
//!
//! The hash of an entry is the SHA-256 of these fields in this order: hash of the previous entry
//! (32 bytes; zeros before the first), chain, number, time, actor, token, address, request id,
//! operation, subject, status, before, after; then the client, only in entries that have one. Each
//! field is written as its length in bytes, 8 bytes big-endian, followed by its bytes; an absent
//! field as eight bytes `ff`. Numbers are decimal, the time is RFC 3339 in UTC with six fractional
//! digits and `Z`, the actor a lower-case hyphenated UUID, before and after the JSON text as
//! stored. An exported log can thus be verified with SHA-256 alone.

mod change;
pub mod client_name;
pub mod read;
pub mod record;
mod trial;
pub mod verify;

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use gantry_base::ids::{OrganizationId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;
use uuid::Uuid;

use crate::platform::error::{Context, Error};

pub use change::Change;
pub use record::Recorder;
pub use trial::TriedChange;

/// A chain of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Changes of an organization and its projects.
    Organization(OrganizationId),
    /// Operations of a user that name no organization.
    Account(UserId),
    /// Commands of the operator that concern neither an organization nor an account.
    Server,
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Organization(id) => write!(f, "organization {id}"),
            Self::Account(id) => write!(f, "account {id}"),
            Self::Server => f.write_str("server"),
        }
    }
}

/// The SHA-256 of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 32]);

impl Hash {
    /// The previous hash of the first entry: zeros.
    pub const NONE: Self = Self([0; 32]);

    fn read(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self(
            bytes
                .try_into()
                .context("reading a hash of the audit log")?,
        ))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Hash {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map(|()| Self(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// An entry of the log. Exported as one line of JSON.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AuditEntry")]
pub struct AuditEntry {
    /// Chain of the entry: `organization <id>`, `account <id>` or `server`.
    pub chain: String,
    /// Number of the entry in its chain, from 1.
    pub number: i64,
    /// Time of the entry, to the microsecond.
    #[serde(with = "moment")]
    #[schemars(with = "DateTime<Utc>")]
    pub at: DateTime<Utc>,
    /// The user of the request; the nil UUID for the operator.
    pub actor: Uuid,
    /// Id of the token of the request. 0 for browser sessions and the operator; the negative id of
    /// the approval for OAuth applications.
    pub token: i64,
    /// Address of the client, or `operator:` and the name of the operator's account on the machine.
    pub address: String,
    /// `X-Request-Id` of the request.
    pub request_id: String,
    /// Id of the operation.
    pub operation: String,
    /// Slug or ref that the request names.
    pub subject: Option<String>,
    /// HTTP status of the response. A request with 400 or more changed nothing. 102 announces an
    /// action that cannot be written in the same transaction; a later entry with the same request
    /// id has its outcome, unless the server crashed.
    pub status: i16,
    /// State before the change, without secrets, if the operation records it.
    #[schemars(with = "Option<serde_json::Value>")]
    pub before: Option<Box<RawValue>>,
    /// State after the change, without secrets, if the operation records it.
    #[schemars(with = "Option<serde_json::Value>")]
    pub after: Option<Box<RawValue>>,
    /// Name and version of the program that sent the request, as it states them, if it called a
    /// tool of the MCP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Hash of the previous entry.
    #[schemars(with = "String")]
    pub previous: Hash,
    /// Hash of this entry.
    #[schemars(with = "String")]
    pub hash: Hash,
}

/// Serialization of times in the form that is hashed.
mod moment {
    use super::{DateTime, Deserialize, SecondsFormat, Serializer, Utc};

    pub(super) fn serialize<S: Serializer>(
        at: &DateTime<Utc>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&at.to_rfc3339_opts(SecondsFormat::Micros, true))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<DateTime<Utc>, D::Error> {
        DateTime::deserialize(deserializer)
    }
}

impl AuditEntry {
    /// Computes the hash of the entry from its other fields.
    pub fn expected_hash(&self) -> Hash {
        let mut digest = Sha256::new();
        let mut field = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => {
                digest.update((bytes.len() as u64).to_be_bytes());
                digest.update(bytes);
            }
            None => digest.update([0xff; 8]),
        };
        field(Some(&self.previous.0));
        field(Some(self.chain.as_bytes()));
        field(Some(self.number.to_string().as_bytes()));
        field(Some(
            self.at
                .to_rfc3339_opts(SecondsFormat::Micros, true)
                .as_bytes(),
        ));
        field(Some(self.actor.to_string().as_bytes()));
        field(Some(self.token.to_string().as_bytes()));
        field(Some(self.address.as_bytes()));
        field(Some(self.request_id.as_bytes()));
        field(Some(self.operation.as_bytes()));
        field(self.subject.as_deref().map(str::as_bytes));
        field(Some(self.status.to_string().as_bytes()));
        field(self.before.as_ref().map(|value| value.get().as_bytes()));
        field(self.after.as_ref().map(|value| value.get().as_bytes()));
        if let Some(client) = &self.client {
            field(Some(client.as_bytes()));
        }
        Hash(digest.finalize().into())
    }
}

/// Appends an entry to its chain, in the transaction of the change. Fills in the number, the
/// previous hash and the hash while it holds the row lock of the chain's head.
async fn append(transaction: &Transaction<'_>, mut entry: AuditEntry) -> Result<(), Error> {
    let doing = "writing the audit log";
    let sql =
        "insert into audit_heads (chain, number, hash) values ($1, 0, $2) on conflict do nothing";
    transaction
        .execute(sql, &[&entry.chain, &&Hash::NONE.0[..]])
        .await
        .context(doing)?;
    let head = transaction
        .query_one(
            "select number, hash from audit_heads where chain = $1 for update",
            &[&entry.chain],
        )
        .await
        .context(doing)?;
    entry.number = head.get::<_, i64>(0) + 1;
    entry.previous = Hash::read(head.get(1))?;
    entry.hash = entry.expected_hash();
    let text = |value: &Option<Box<RawValue>>| value.as_ref().map(|value| value.get().to_owned());
    let sql = "insert into audit_entries (chain, number, at, actor, token, address, request_id, operation, subject, status, before, after, \
               previous, hash, client) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    transaction
        .execute(
            sql,
            &[
                &entry.chain,
                &entry.number,
                &entry.at,
                &entry.actor,
                &entry.token,
                &entry.address,
                &entry.request_id,
                &entry.operation,
                &entry.subject,
                &entry.status,
                &text(&entry.before),
                &text(&entry.after),
                &&entry.previous.0[..],
                &&entry.hash.0[..],
                &entry.client,
            ],
        )
        .await
        .context(doing)?;
    let sql = "update audit_heads set number = $2, hash = $3 where chain = $1";
    transaction
        .execute(sql, &[&entry.chain, &entry.number, &&entry.hash.0[..]])
        .await
        .context(doing)?;
    Ok(())
}
