//! Rows of `idempotency_keys`.

use chrono::{DateTime, Utc};
use tokio_postgres::Transaction;

use super::{
    Idempotency, KeptAnswer, KeyRecord, KeyStage, KeyedRequest, RETRY, RUNNING_MAX, ScopedKey,
};
use crate::platform::{
    db::{Db, Param},
    error::{Context, Error, KeyProblem},
};

/// Most live keys of a caller.
pub const KEYS_MAX: i64 = 10_000;
/// Most bytes of kept answers of a caller.
const ANSWERS_BYTES_MAX: i64 = 64 << 20;

/// Parameters `$1` to `$11` are those of a request. A row that has expired is replaced.
macro_rules! insert {
    ($replaced:literal) => {
        concat!(
            "insert into idempotency_keys as k (caller, target, key, digest, operation, ",
            "request_id, attempt, step, answer, at, expires_at) ",
            "values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ",
            "on conflict (caller, target, key) do update set digest = excluded.digest, ",
            "operation = excluded.operation, request_id = excluded.request_id, ",
            "attempt = excluded.attempt, step = excluded.step, answer = excluded.answer, ",
            "at = excluded.at, expires_at = excluded.expires_at ",
            "where k.expires_at <= excluded.at or ",
            $replaced,
            " returning 1"
        )
    };
}

/// Replaces the row of the request itself.
const OWN: &str = insert!("k.attempt = excluded.attempt");

/// The values of a row to write.
struct NewRow<'a> {
    request: &'a KeyedRequest,
    digest: &'a [u8],
    step: &'static str,
    sealed: Option<Vec<u8>>,
    expires_at: DateTime<Utc>,
}

impl<'a> NewRow<'a> {
    fn of(
        request: &'a KeyedRequest,
        step: KeyStage,
        answer: Option<&KeptAnswer>,
    ) -> Result<Self, Error> {
        Ok(Self {
            request,
            digest: &request.digest,
            step: step.name(),
            sealed: answer.map(|answer| request.seal(answer)).transpose()?,
            expires_at: request.expires_at(),
        })
    }

    fn params(&self) -> [Param<'_>; 11] {
        let request = self.request;
        [
            &request.key.caller,
            &request.key.target,
            &request.key.key,
            &self.digest,
            &request.operation,
            &request.request_id,
            &request.attempt,
            &self.step,
            &self.sealed,
            &request.at,
            &self.expires_at,
        ]
    }
}

/// Returns the live record of a key.
pub async fn read(
    db: &Db,
    key: &ScopedKey,
    now: DateTime<Utc>,
) -> Result<Option<KeyRecord>, Error> {
    let doing = "reading an idempotency key";
    let sql = "select digest, request_id, attempt, step, answer, at from idempotency_keys \
               where caller = $1 and target = $2 and key = $3 and expires_at > $4";
    let ScopedKey {
        caller,
        target,
        key,
    } = key;
    let rows = db.query(sql, &[caller, target, key, &now]).await;
    let rows = rows.context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(KeyRecord {
        digest: row.get::<_, &[u8]>(0).try_into().context(doing)?,
        request_id: row.get(1),
        attempt: row.get(2),
        step: KeyStage::from_name(row.get(3)),
        answer: row.get(4),
        at: row.get(5),
    }))
}

/// Rejects a caller that has used too many keys in their lifetime.
pub async fn require_room(db: &Db, key: &ScopedKey) -> Result<(), Error> {
    let sql = "select count(*), coalesce(sum(octet_length(answer)), 0)::bigint from idempotency_keys where caller = $1";
    let rows = db.query(sql, &[&key.caller]).await;
    let rows = rows.context("counting idempotency keys")?;
    let full = rows.first().is_some_and(|row| {
        row.get::<_, i64>(0) >= KEYS_MAX || row.get::<_, i64>(1) >= ANSWERS_BYTES_MAX
    });
    if full {
        return Err(Error::Rejected(
            format!(
                "Idempotency-Key: at most {KEYS_MAX} keys, with 64 MiB of answers, are kept for 24 hours. \
                 Send the request without a key, or later"
            )
            .into(),
        ));
    }
    Ok(())
}

/// Records the key before the effect. An earlier request that has ended without an answer is
/// replaced if the operation is repeatable.
///
/// Errors: [`Error::IdempotencyKey`] if another request with the key was announced meanwhile.
pub async fn claim(db: &Db, request: &KeyedRequest, kind: Idempotency) -> Result<(), Error> {
    let sql = insert!("(k.step = 'begun' and k.digest = excluded.digest and k.at <= $12)");
    let replaced = (kind == Idempotency::Repeatable).then_some(request.at - RUNNING_MAX);
    let row = NewRow::of(request, KeyStage::Begun, None)?;
    let params = [&row.params()[..], &[&replaced]].concat();
    let rows = db.query(sql, &params).await;
    require_written(rows.context("recording an idempotency key")?.len() as u64)
}

/// Records the key in the transaction of the change.
pub(super) async fn record_in(
    transaction: &Transaction<'_>,
    request: &KeyedRequest,
    step: KeyStage,
    answer: Option<&KeptAnswer>,
) -> Result<(), Error> {
    let row = NewRow::of(request, step, answer)?;
    let written = transaction.execute(OWN, &row.params()).await;
    require_written(written.context("recording an idempotency key")?)
}

/// Records the answer of a request after its effect. `None`: the answer cannot be kept.
///
/// Errors: [`Error::IdempotencyKey`] if another request with the key was answered first.
pub async fn keep(
    db: &Db,
    request: &KeyedRequest,
    answer: Option<&KeptAnswer>,
) -> Result<(), Error> {
    let row = NewRow::of(request, KeyStage::Answered, answer)?;
    let rows = db.query(OWN, &row.params()).await;
    require_written(rows.context("recording an answer")?.len() as u64)
}

/// Deletes the record of a request that was rejected.
pub async fn forget(db: &Db, request: &KeyedRequest) -> Result<(), Error> {
    let sql = "delete from idempotency_keys where caller = $1 and target = $2 and key = $3 and attempt = $4";
    let ScopedKey {
        caller,
        target,
        key,
    } = &request.key;
    db.query(sql, &[caller, target, key, &request.attempt])
        .await
        .context("deleting an idempotency key")
        .map(drop)
}

fn require_written(rows: u64) -> Result<(), Error> {
    if rows == 0 {
        return Err(Error::IdempotencyKey(KeyProblem::Running { retry: RETRY }));
    }
    Ok(())
}
