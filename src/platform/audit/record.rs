//! Writing the log: one recorder for each request or command that may change something.

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use chrono::{DateTime, SubsecRound, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{ApprovalId, OrganizationId, TokenId, UserId},
};
use serde_json::{Value, value::RawValue};
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::{
    AuditEntry, Chain, Hash, append,
    change::Change,
    client_name::ClientName,
    trial::{Trial, TriedChange},
};
use crate::platform::{
    access::{Subject, User},
    db::Db,
    error::{Context, Error},
    events::{self, NewEvent},
    idempotency::KeyedRequest,
};

/// Parts of field names. Fields with such names are redacted. Handlers pass no secrets; this is a
/// second safeguard.
const SECRETS: [&str; 6] = ["pass", "secret", "token", "key", "digest", "credential"];

/// Status of an entry that announces an action before it starts.
const INTENT: i16 = 102;

/// The recorder of a request, or of a command of the operator.
#[derive(Debug)]
pub struct Recorder {
    chain: Chain,
    subject: Option<String>,
    actor: Uuid,
    token: TokenId,
    address: String,
    request_id: String,
    operation: &'static str,
    /// The program that sent the request, if it is known.
    client: Option<ClientName>,
    /// Makes the ids of events.
    entropy: Entropy,
    written: AtomicBool,
    delegated: AtomicBool,
    /// The request, if it has an `Idempotency-Key`.
    keyed: OnceLock<Arc<KeyedRequest>>,
    /// The trial, if the request is tried.
    trial: OnceLock<Trial>,
}

impl Recorder {
    /// Returns the recorder of a request of `user` about `subject`.
    pub fn new(
        user: &User,
        subject: &Subject,
        (address, request_id, operation): (IpAddr, &str, &'static str),
        entropy: &Entropy,
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
        Self {
            chain,
            subject,
            actor: user.gotrue_id,
            token: user.credential(),
            address: address.to_string(),
            request_id: request_id.to_owned(),
            operation,
            client: None,
            entropy: entropy.clone(),
            written: AtomicBool::new(false),
            delegated: AtomicBool::new(false),
            keyed: OnceLock::new(),
            trial: OnceLock::new(),
        }
    }

    /// Returns the recorder of an application's request about an approval.
    pub fn of_approval(
        (approval, actor): (ApprovalId, Uuid),
        organization: OrganizationId,
        request: (IpAddr, &str, &'static str),
        entropy: &Entropy,
    ) -> Self {
        Self {
            chain: Chain::Organization(organization),
            actor,
            token: TokenId(-approval.0),
            ..Self::of_application(Uuid::nil(), request, entropy)
        }
    }

    /// Returns the recorder of an application without a user, for its own registration, or of a
    /// service identity, for its exchanges of tokens.
    pub fn of_application(
        client_id: Uuid,
        (address, request_id, operation): (IpAddr, &str, &'static str),
        entropy: &Entropy,
    ) -> Self {
        Self {
            chain: Chain::Server,
            subject: None,
            actor: client_id,
            token: TokenId(0),
            address: address.to_string(),
            request_id: request_id.to_owned(),
            operation,
            client: None,
            entropy: entropy.clone(),
            written: AtomicBool::new(false),
            delegated: AtomicBool::new(false),
            keyed: OnceLock::new(),
            trial: OnceLock::new(),
        }
    }

    /// Returns the recorder of a command of the operator. `name` is the operator's account on this
    /// machine.
    pub fn operator(name: &str, entropy: &Entropy, command: &'static str) -> Self {
        Self {
            chain: Chain::Server,
            subject: None,
            actor: Uuid::nil(),
            token: TokenId(0),
            address: format!("operator:{name}"),
            request_id: hex::encode(entropy.bytes::<16>()),
            operation: command,
            client: None,
            entropy: entropy.clone(),
            written: AtomicBool::new(false),
            delegated: AtomicBool::new(false),
            keyed: OnceLock::new(),
            trial: OnceLock::new(),
        }
    }

    /// Returns the recorder of a change that Gantry makes by itself, such as the repair of a
    /// project.
    pub fn system(entropy: &Entropy, operation: &'static str) -> Self {
        Self {
            address: "gantry".to_owned(),
            ..Self::operator("", entropy, operation)
        }
    }

    /// Returns the user of the entries; the nil UUID for the operator.
    pub const fn actor(&self) -> Uuid {
        self.actor
    }

    /// Returns the request id of the entries.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Returns the recorder with the chain of this organization and another subject.
    #[must_use]
    pub fn about(self, organization: OrganizationId, subject: &impl ToString) -> Self {
        Self {
            chain: Chain::Organization(organization),
            subject: Some(subject.to_string()),
            ..self
        }
    }

    /// Returns the recorder with the chain of this account.
    #[must_use]
    pub fn about_account(self, user: UserId) -> Self {
        Self {
            chain: Chain::Account(user),
            ..self
        }
    }

    /// Returns the recorder with the program that sent the request.
    #[must_use]
    pub fn with_client(self, client: Option<ClientName>) -> Self {
        Self { client, ..self }
    }

    /// Writes an entry before an action that cannot share a transaction with the log.
    pub async fn announce(&self, db: &Db, now: DateTime<Utc>) -> Result<(), Error> {
        self.append_alone(db, INTENT, now).await
    }

    /// Writes the change and the status of the response in the transaction of the change, then its
    /// events, so that all or nothing is committed. Entries of other chains are written before.
    ///
    /// Errors: [`Error::DryRun`] if the request is tried. The transaction must be rolled back.
    pub async fn write_in(
        &self,
        transaction: &Transaction<'_>,
        status: i16,
        change: impl Into<Change>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let change = change.into();
        if let Some(trial) = self.trial.get() {
            trial.keep(status, change, redacted);
            return Err(Error::DryRun);
        }
        let Change {
            before,
            after,
            events,
        } = change;
        append(
            transaction,
            self.entry(self.chain, self.subject.clone(), status, now, before, after)?,
        )
        .await?;
        self.append_events(transaction, &events, now).await?;
        if status < 400 {
            self.record_key(transaction).await?;
        }
        self.written.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes the change as [`Self::write_in`] does, and commits the transaction. `doing` completes
    /// "failed while …".
    pub async fn commit(
        &self,
        transaction: deadpool_postgres::Transaction<'_>,
        doing: &'static str,
        status: i16,
        change: impl Into<Change>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        self.write_in(&transaction, status, change, now).await?;
        transaction.commit().await.context(doing)
    }

    /// Writes an entry to another chain than that of the request.
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

    /// Appends events of the request's user, after all entries of the transaction.
    pub async fn append_events(
        &self,
        transaction: &Transaction<'_>,
        new: &[NewEvent],
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        events::append(transaction, new, Some(self.actor), &self.entropy, now).await
    }

    /// Records the `Idempotency-Key` of the request, if it has one, in the transaction of the
    /// change. [`Self::write_in`] does so as well.
    pub async fn record_key(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        match self.keyed.get() {
            Some(keyed) => keyed.record_in(transaction).await,
            None => Ok(()),
        }
    }

    /// Sets the request with the key that [`Self::write_in`] records. Later calls do nothing.
    pub(crate) fn set_keyed(&self, keyed: Arc<KeyedRequest>) {
        let _ = self.keyed.set(keyed);
    }

    /// Returns the request, if it has an `Idempotency-Key`.
    pub(crate) fn keyed(&self) -> Option<&KeyedRequest> {
        self.keyed.get().map(|keyed| &**keyed)
    }

    /// Tries the request: its change is kept instead of written, and its transaction rolled back.
    pub(crate) fn begin_trial(&self) {
        self.trial.get_or_init(Trial::default);
    }

    /// Whether the request is tried.
    pub(crate) fn is_trial(&self) -> bool {
        self.trial.get().is_some()
    }

    /// Returns the change of a request that is tried, if it has one.
    pub(crate) fn tried_change(&self) -> Option<&TriedChange> {
        self.trial.get()?.change()
    }

    /// Notes the effect for which a request that is tried needs an approval.
    pub(crate) fn note_approval(&self, effect: String) {
        if let Some(trial) = self.trial.get() {
            trial.note_approval(effect);
        }
    }

    /// Returns the effect for which a request that is tried needs an approval.
    pub(crate) fn required_approval(&self) -> Option<&str> {
        self.trial.get()?.approval()
    }

    /// Disables the recorder: the request is delegated to another operation, which writes its own
    /// entry.
    pub fn delegate(&self) {
        self.delegated.store(true, Ordering::Release);
    }

    /// Writes the outcome of the request, unless [`Self::write_in`] did. After a failure the
    /// transaction of `write_in` was rolled back, so the outcome is written.
    pub async fn finish(&self, db: &Db, status: u16, now: DateTime<Utc>) -> Result<(), Error> {
        if self.is_trial()
            || self.delegated.load(Ordering::Acquire)
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
    ) -> Result<AuditEntry, Error> {
        let text = |value: Option<Value>| {
            let raw = |value: Value| RawValue::from_string(redacted(value).to_string());
            value.map(raw).transpose().context("writing the audit log")
        };
        Ok(AuditEntry {
            chain: chain.to_string(),
            number: 0,
            // PostgreSQL stores microseconds, and the hash must match the stored time.
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
            client: self
                .client
                .as_ref()
                .map(|client| client.as_str().to_owned()),
            previous: Hash::NONE,
            hash: Hash::NONE,
        })
    }
}

/// Returns the value with the values of secret fields replaced.
pub(crate) fn redacted(value: Value) -> Value {
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
    fn fields_named_like_secrets_are_redacted() {
        let value = json!({"name": "x", "db_pass": "hunter2", "list": [{"apiKey": {"a": 1}, "role": "owner"}], "Token": null});
        let expected = json!({"name": "x", "db_pass": "[redacted]", "list": [{"apiKey": "[redacted]", "role": "owner"}], "Token": "[redacted]"});
        assert_eq!(redacted(value), expected);
    }
}
