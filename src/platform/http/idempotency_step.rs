//! The step of requests with an `Idempotency-Key`: they run once, and further ones get the first
//! answer.

use std::{any::Any, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, header};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    body::{self, Response},
    call::IncomingRequest,
    endpoint::Verb,
    guarded_endpoint::{GuardedEndpoint, RequestOutcome},
    output::Output,
    request_target::RequestTarget,
    standard_headers::RequestId,
};
use crate::platform::{
    access::{Caller, User},
    audit::Recorder,
    error::Error,
    idempotency::{
        self, Decision, IDEMPOTENCY_KEY, Idempotency, KeptAnswer, KeyRecord, KeyStage,
        KeyedRequest, REPLAYED, ScopedKey,
    },
};

/// Requests with a key and a body over 1 MiB that are in memory. Further ones wait.
static LARGE_BODIES: Semaphore = Semaphore::const_new(4);
/// Longest wait for one of them.
const LARGE_BODY_WAIT: Duration = Duration::from_mins(1);
/// `Retry-After` of a request that waited in vain.
const LARGE_BODY_RETRY: Duration = Duration::from_secs(5);

/// A request with a key, before its handler.
pub(super) struct KeyStep<'a> {
    guarded: &'a GuardedEndpoint,
    request: &'a mut IncomingRequest,
    user: &'a User,
    recorder: &'a Arc<Recorder>,
    request_id: &'a RequestId,
}

/// The treatment of a request with a key.
pub(super) enum Entry {
    /// The handler runs.
    Run(RunningRequest),
    /// The request gets the first answer.
    Replay(Response),
}

/// A request with a key while its handler runs.
pub(super) struct RunningRequest {
    keyed: Arc<KeyedRequest>,
    _permit: Option<SemaphorePermit<'static>>,
}

impl<'a> KeyStep<'a> {
    /// Returns the step, if the request has a key and may change something.
    pub(super) fn of(
        guarded: &'a GuardedEndpoint,
        request: &'a mut IncomingRequest,
        caller: &'a Caller,
        outcome: &'a RequestOutcome,
        request_id: &'a RequestId,
    ) -> Option<Self> {
        let recorder = outcome.recorder.as_ref()?;
        let is_read = !matches!(guarded.idempotency, Idempotency::Ignored | Idempotency::Own)
            && !guarded.calls_operations();
        if !is_read || recorder.is_trial() || !request.headers.contains_key(IDEMPOTENCY_KEY) {
            return None;
        }
        Some(Self {
            guarded,
            request,
            user: caller.user()?,
            recorder,
            request_id,
        })
    }

    /// Decides whether the request runs, and records its key before an effect that cannot be in a
    /// transaction with it.
    pub(super) async fn enter(mut self) -> Result<Entry, Error> {
        let bytes_max = self.guarded.repeat_facts().body_bytes_max;
        let permit = permit_for_body(&self.request.headers, bytes_max).await?;
        let (key, digest) = self.read().await?;
        let Self {
            guarded,
            recorder,
            request_id,
            ..
        } = self;
        let context = &guarded.context;
        let now = context.clock.now();
        let record = idempotency::read(&context.db, &key, now).await?;
        match idempotency::decide(guarded.idempotency, record.as_ref(), &digest, now) {
            Decision::Run => {}
            Decision::Replay => {
                recorder.delegate();
                return replay(guarded, &key, record).map(Entry::Replay);
            }
            Decision::Refuse(problem) => return Err(Error::IdempotencyKey(problem)),
        }
        idempotency::require_room(&context.db, &key).await?;
        let is_recorded = guarded.idempotency == Idempotency::Recorded;
        let answer = guarded.repeat_facts().empty.filter(|_| is_recorded);
        let keyed = Arc::new(KeyedRequest::new(
            (key, digest),
            (guarded.endpoint.id, request_id.as_str(), now),
            answer.map(KeptAnswer::empty),
            (&context.settings.sealing, &context.entropy),
        ));
        if guarded.idempotency.is_claimed() {
            idempotency::claim(&context.db, &keyed, guarded.idempotency).await?;
        }
        recorder.set_keyed(keyed.clone());
        Ok(Entry::Run(RunningRequest {
            keyed,
            _permit: permit,
        }))
    }

    /// Returns the answer to a deletion of a target that does not exist any more, if the caller has
    /// deleted it with this key.
    pub(super) async fn replay_of_removed(mut self) -> Result<Option<Response>, Error> {
        if self.guarded.endpoint.method != Verb::Delete {
            return Ok(None);
        }
        let (key, digest) = self.read().await?;
        let context = &self.guarded.context;
        let now = context.clock.now();
        let record = idempotency::read(&context.db, &key, now).await?;
        let kind = self.guarded.idempotency;
        if idempotency::decide(kind, record.as_ref(), &digest, now) != Decision::Replay {
            return Ok(None);
        }
        self.recorder.delegate();
        replay(self.guarded, &key, record).map(Some)
    }

    /// Reads the key and the digest of the request.
    async fn read(&mut self) -> Result<(ScopedKey, idempotency::RequestDigest), Error> {
        let key = idempotency::read_key(&self.request.headers)?.unwrap_or_default();
        let bytes_max = self.guarded.repeat_facts().body_bytes_max;
        let body = self.request.body.read_within(bytes_max).await?;
        let request = &*self.request;
        let uri = &request.uri;
        let target = RequestTarget::name(
            self.guarded.target_location,
            self.guarded.endpoint.limit.key,
            (uri.path(), uri.query().unwrap_or_default(), &body),
        );
        let content_type = request.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let line = uri.path_and_query().map_or("", |line| line.as_str());
        let digest = idempotency::digest(
            request.method.as_str(),
            line,
            content_type.unwrap_or_default(),
            &body,
        );
        let caller = match &self.user.approval {
            Some(approval) => format!("approval {}", approval.id.0),
            None => format!("user {}", self.user.id.0),
        };
        Ok((
            ScopedKey {
                caller,
                target,
                key,
            },
            digest,
        ))
    }
}

/// Returns the announced length of the body, in bytes.
pub(super) fn content_length(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Waits for the permit to keep a large body in memory. Returns `None` for other bodies.
pub(super) async fn permit_for_body(
    headers: &HeaderMap,
    bytes_max: usize,
) -> Result<Option<SemaphorePermit<'static>>, Error> {
    let is_small = content_length(headers).is_some_and(|length| length <= body::BYTES_MAX);
    if is_small || bytes_max <= body::BYTES_MAX {
        return Ok(None);
    }
    let permit = tokio::time::timeout(LARGE_BODY_WAIT, LARGE_BODIES.acquire()).await;
    let permit = permit.ok().and_then(Result::ok).ok_or(Error::Busy {
        retry: LARGE_BODY_RETRY,
    })?;
    Ok(Some(permit))
}

/// Records the answer of a request with a key, unless the transaction of its change did.
///
/// A failed request may have lost a race against another one with its key, and gets its answer.
pub(super) async fn finish(
    guarded: &GuardedEndpoint,
    running: &RunningRequest,
    result: Result<Response, Error>,
) -> Result<Response, Error> {
    let keyed = &*running.keyed;
    match result {
        Ok(response) if response.status().as_u16() < 400 => {
            Ok(keep(guarded, keyed, response).await)
        }
        Ok(response) => {
            forget(guarded, keyed).await;
            Ok(response)
        }
        Err(error) => match look_again(guarded, keyed).await {
            Some(Ok(response)) => Ok(response),
            // The other request is not finished, or its answer was not kept.
            Some(Err(other)) => Err(other),
            None => {
                if had_no_effect(&error) {
                    forget(guarded, keyed).await;
                }
                Err(error)
            }
        },
    }
}

/// Whether the operation rejects the request, so that the corrected one may have the same key.
fn had_no_effect(error: &Error) -> bool {
    error.code().status < 500 || matches!(error, Error::NotBuilt(_) | Error::Unconfigured(_))
}

/// Keeps a successful response and returns the one to send: the recorded one, so that further
/// requests get the same bytes.
async fn keep(guarded: &GuardedEndpoint, keyed: &KeyedRequest, response: Response) -> Response {
    if keyed.recorded() == Some(KeyStage::Answered) {
        let recorded = keyed.answer().map(KeptAnswer::into_response);
        return recorded.and_then(Result::ok).unwrap_or(response);
    }
    let answer = KeptAnswer::of(&response);
    let kept = idempotency::keep(&guarded.context.db, keyed, answer.as_ref()).await;
    match kept {
        Ok(()) => response,
        Err(Error::IdempotencyKey(_)) => match look_again(guarded, keyed).await {
            Some(Ok(first)) => first,
            _ => response,
        },
        Err(error) => {
            tracing::error!(request_id = keyed.request_id, operation = keyed.operation, %error, "answer could not be recorded");
            response
        }
    }
}

/// Deletes the record of a rejected request. If this fails, the outcome counts as unknown.
async fn forget(guarded: &GuardedEndpoint, keyed: &KeyedRequest) {
    if !guarded.idempotency.is_claimed() && keyed.recorded().is_none() {
        return;
    }
    if let Err(error) = idempotency::forget(&guarded.context.db, keyed).await {
        tracing::error!(request_id = keyed.request_id, operation = keyed.operation, %error, "idempotency key could not be deleted");
    }
}

/// Returns the response to a request if another one with its key was recorded meanwhile.
async fn look_again(
    guarded: &GuardedEndpoint,
    keyed: &KeyedRequest,
) -> Option<Result<Response, Error>> {
    let context = &guarded.context;
    let now = context.clock.now();
    let record = idempotency::read(&context.db, &keyed.key, now).await.ok()?;
    let other = record.filter(|record| record.attempt != keyed.attempt)?;
    match idempotency::decide(guarded.idempotency, Some(&other), &keyed.digest, now) {
        Decision::Run => None,
        Decision::Replay => Some(replay(guarded, &keyed.key, Some(other))),
        Decision::Refuse(problem) => Some(Err(Error::IdempotencyKey(problem))),
    }
}

/// Returns the recorded answer.
fn replay(
    guarded: &GuardedEndpoint,
    key: &ScopedKey,
    record: Option<KeyRecord>,
) -> Result<Response, Error> {
    let sealed = record.and_then(|record| record.answer).unwrap_or_default();
    let answer = KeptAnswer::open(&guarded.context.settings.sealing, key, &sealed)?;
    let mut response = answer.into_response()?;
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

impl Recorder {
    /// Sets the response of a request with a key before its change is committed, so that both are
    /// recorded together.
    pub fn answer<R: Output>(&self, output: impl FnOnce() -> R) {
        if let Some(keyed) = self.keyed() {
            keyed.set_answer(&output().respond());
        }
    }

    /// Sets how the response follows from the result of the change, which [`Self::result`] gets.
    pub fn answer_with<T: 'static>(
        &self,
        respond: impl Fn(&T) -> Response + Send + Sync + 'static,
    ) {
        if let Some(keyed) = self.keyed() {
            keyed.render_with(Box::new(move |result: &dyn Any| {
                Some(respond(result.downcast_ref()?))
            }));
        }
    }

    /// Makes the response from the result of the change before it is committed.
    pub fn result<T: 'static>(&self, result: &T) {
        if let Some(keyed) = self.keyed() {
            keyed.render(result);
        }
    }
}
