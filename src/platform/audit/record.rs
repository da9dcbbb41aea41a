//! Writing the log: one recorder for each request or command that may change something.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use chrono::{DateTime, SubsecRound, Utc};
use serde_json::{Value, value::RawValue};
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{Chain, Entry, Hash, append};
use crate::{
    base::{
        clock::Entropy,
        db::Db,
        error::{Context, Error},
        ids::{ApprovalId, OrganizationId, TokenId, UserId},
    },
    platform::access::{Subject, User},
};

/// Parts of field names whose values are not written down. Handlers give no secrets; this is for the day one does.
const SECRETS: [&str; 6] = ["pass", "secret", "token", "key", "digest", "credential"];

/// Status of an entry that announces what is about to be done.
const INTENT: i16 = 102;

/// What is known about a request, or a command of the operator, before it has an outcome.
#[derive(Debug)]
pub struct Recorder {
    chain: Chain,
    subject: Option<String>,
    actor: Uuid,
    token: TokenId,
    address: String,
    request_id: String,
    operation: &'static str,
    written: AtomicBool,
    passed_on: AtomicBool,
}

impl Recorder {
    /// For a request of `user` about `subject`.
    pub fn new(
        user: &User,
        subject: &Subject,
        address: IpAddr,
        request_id: &str,
        operation: &'static str,
    ) -> Self {
        let (chain, subject) = match subject {
            Subject::Account => (Chain::Account(user.id), None),
            Subject::Organization(organization) => (
                Chain::Organization(organization.id),
                Some(organization.slug.to_string()),
            ),
            Subject::Project(project) => (
                Chain::Organization(project.organization),
                Some(project.reference.to_string()),
            ),
        };
        let (address, request_id, token) = (
            address.to_string(),
            request_id.to_owned(),
            user.credential(),
        );
        Self {
            chain,
            subject,
            actor: user.gotrue_id,
            token,
            address,
            request_id,
            operation,
            written: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
        }
    }

    /// For a request of an application about what a member approved for it.
    pub fn of_approval(
        (approval, actor): (ApprovalId, Uuid),
        organization: OrganizationId,
        (address, request_id, operation): (IpAddr, &str, &'static str),
    ) -> Self {
        Self {
            chain: Chain::Organization(organization),
            actor,
            token: TokenId(-approval.0),
            ..Self::of_application(Uuid::nil(), (address, request_id, operation))
        }
    }

    /// For an application that acts for nobody: it registers itself.
    pub fn of_application(
        client_id: Uuid,
        (address, request_id, operation): (IpAddr, &str, &'static str),
    ) -> Self {
        Self {
            chain: Chain::Server,
            subject: None,
            actor: client_id,
            token: TokenId(0),
            address: address.to_string(),
            request_id: request_id.to_owned(),
            operation,
            written: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
        }
    }

    /// For a command of the operator, who is `name` on this machine.
    pub fn operator(name: &str, entropy: &Entropy, command: &'static str) -> Self {
        Self {
            chain: Chain::Server,
            subject: None,
            actor: Uuid::nil(),
            token: TokenId(0),
            address: format!("operator:{name}"),
            request_id: hex::encode(entropy.bytes::<16>()),
            operation: command,
            written: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
        }
    }

    /// Ties entries to a request.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The same about an organization or one of its projects.
    #[must_use]
    pub fn about(self, organization: OrganizationId, subject: &impl ToString) -> Self {
        Self {
            chain: Chain::Organization(organization),
            subject: Some(subject.to_string()),
            ..self
        }
    }

    /// The same about somebody's account.
    #[must_use]
    pub fn about_account(self, user: UserId) -> Self {
        Self {
            chain: Chain::Account(user),
            ..self
        }
    }

    /// Announces what is about to be done where the log cannot be written in the same transaction.
    pub async fn announce(&self, db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
        self.append_alone(db, INTENT, now).await
    }

    /// Writes what a handler changed, and the status it will answer, in the transaction that changes it: both are there afterwards, or neither.
    pub async fn write_in(
        &self,
        transaction: &Transaction<'_>,
        status: i16,
        (before, after): (Option<Value>, Option<Value>),
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        append(
            transaction,
            self.entry(self.chain, self.subject.clone(), status, now, before, after)?,
        )
        .await?;
        self.written.store(true, Ordering::Release);
        Ok(())
    }

    /// The same in another log than that of what the request names.
    pub async fn write_elsewhere(
        &self,
        transaction: &Transaction<'_>,
        chain: Chain,
        after: Value,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        append(
            transaction,
            self.entry(chain, None, 200, now, None, Some(after))?,
        )
        .await
    }

    /// Writes nothing: the request only asked another operation, which writes its own entry.
    pub fn pass_on(&self) {
        self.passed_on.store(true, Ordering::Release);
    }

    /// Writes how the request ended, unless its handler wrote what it changed. A handler that wrote and failed after that took
    /// both back.
    pub async fn finish(&self, db: &Db, status: u16, now: DateTime<Utc>) -> Result<(), Error> {
        if self.passed_on.load(Ordering::Acquire)
            || status < 400 && self.written.load(Ordering::Acquire)
        {
            return Ok(());
        }
        self.append_alone(db, i16::try_from(status).unwrap_or(i16::MAX), now)
            .await
    }

    async fn append_alone(&self, db: &Db, status: i16, now: DateTime<Utc>) -> Result<(), Error> {
        let mut client = db.client().await?;
        let transaction = client
            .transaction()
            .await
            .context("writing the audit log")?;
        append(
            &transaction,
            self.entry(self.chain, self.subject.clone(), status, now, None, None)?,
        )
        .await?;
        transaction.commit().await.context("writing the audit log")
    }

    fn entry(
        &self,
        chain: Chain,
        subject: Option<String>,
        status: i16,
        now: DateTime<Utc>,
        before: Option<Value>,
        after: Option<Value>,
    ) -> Result<Entry, Error> {
        let text = |value: Option<Value>| {
            let raw = |value: Value| RawValue::from_string(redacted(value).to_string());
            value.map(raw).transpose().context("writing the audit log")
        };
        Ok(Entry {
            chain: chain.to_string(),
            number: 0,
            // What the database keeps, so that what is hashed is what is read back.
            at: now.trunc_subsecs(6),
            actor: self.actor,
            token: self.token.0,
            address: self.address.clone(),
            request_id: self.request_id.clone(),
            operation: self.operation.to_owned(),
            subject,
            status,
            before: text(before)?,
            after: text(after)?,
            previous: Hash::NONE,
            hash: Hash::NONE,
        })
    }
}

/// The value without what its field names say is secret.
fn redacted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let secret = |name: &str| {
                SECRETS
                    .iter()
                    .any(|part| name.to_lowercase().contains(part))
            };
            let field = |(name, value): (String, Value)| {
                if secret(&name) {
                    (name, "[redacted]".into())
                } else {
                    (name, redacted(value))
                }
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        Value::Array(values) => values.into_iter().map(redacted).collect(),
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_named_like_a_secret_is_not_written() {
        let value = json!({"name": "x", "db_pass": "hunter2", "list": [{"apiKey": {"a": 1}, "role": "owner"}], "Token": null});
        let expected = json!({"name": "x", "db_pass": "[redacted]", "list": [{"apiKey": "[redacted]", "role": "owner"}], "Token": "[redacted]"});
        assert_eq!(redacted(value), expected);
    }
}
