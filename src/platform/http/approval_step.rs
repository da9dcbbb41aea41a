//! The step of destructive requests: in a protected project they are refused until a person has
//! approved them, and then run once.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::header;
use tokio::sync::SemaphorePermit;

use super::{
    call::IncomingRequest,
    endpoint::{Destructive, JudgeRequest},
    guarded_endpoint::{GuardedEndpoint, RequestOutcome},
    idempotency_step::{content_length, permit_for_body},
    request_body::RequestBody,
};
use crate::platform::{
    access::{Caller, Project, RequestView, Subject, User},
    approvals::{self, DestructiveRequest, RequiredApproval},
    audit::Recorder,
    error::{Context, Error},
    idempotency,
};

/// Largest body that is judged at once, in bytes. A longer one is judged on another thread, and
/// only for a protected project.
const JUDGED_FIRST_BYTES_MAX: usize = 16 << 10;

/// A request of an operation that may be destructive, before its handler.
pub(super) struct ApprovalStep<'a> {
    guarded: &'a GuardedEndpoint,
    request: &'a mut IncomingRequest,
    user: &'a User,
    project: &'a Project,
    recorder: Option<&'a Arc<Recorder>>,
}

impl<'a> ApprovalStep<'a> {
    /// Returns the step, if the operation may be destructive.
    pub(super) fn of(
        guarded: &'a GuardedEndpoint,
        request: &'a mut IncomingRequest,
        caller: &'a Caller,
        subject: &'a Subject,
        outcome: &'a RequestOutcome,
    ) -> Option<Self> {
        let Subject::Project(project) = subject else {
            return None;
        };
        if matches!(guarded.destructive, Destructive::Never) {
            return None;
        }
        Some(Self {
            guarded,
            request,
            user: caller.user()?,
            project,
            recorder: outcome.recorder.as_ref(),
        })
    }

    /// Uses the approval of a destructive request. Returns the permit to keep a large body in
    /// memory.
    ///
    /// Errors: [`Error::ApprovalRequired`] without an approval. The request is stored, so that it
    /// can be approved.
    pub(super) async fn enter(mut self) -> Result<Option<SemaphorePermit<'static>>, Error> {
        // Most projects are not protected, and most requests harmless. A short body is judged
        // first, because reading the protection takes longer.
        let judge_first = matches!(self.guarded.destructive, Destructive::If(_)) && self.is_short();
        if !judge_first && !self.is_protected().await? {
            return Ok(None);
        }
        let (body, permit) = self.read_body().await?;
        let Some(effect) = self.effect(&body).await? else {
            return Ok(permit);
        };
        if judge_first && !self.is_protected().await? {
            return Ok(permit);
        }
        if let Some(recorder) = self.recorder.filter(|recorder| recorder.is_trial()) {
            recorder.note_approval(effect.into_owned());
            return Ok(permit);
        }
        self.use_approval(&body, effect).await.map(|()| permit)
    }

    /// Whether the body is known to be short.
    fn is_short(&self) -> bool {
        let length = match &self.request.body {
            RequestBody::Read(bytes) => Some(bytes.len()),
            RequestBody::Pending(_) => content_length(&self.request.headers),
        };
        length.is_some_and(|length| length <= JUDGED_FIRST_BYTES_MAX)
    }

    async fn read_body(&mut self) -> Result<(Bytes, Option<SemaphorePermit<'static>>), Error> {
        if let RequestBody::Read(bytes) = &self.request.body {
            return Ok((bytes.clone(), None));
        }
        let bytes_max = self.guarded.repeat_facts().body_bytes_max;
        let permit = permit_for_body(&self.request.headers, bytes_max).await?;
        let body = self.request.body.read_within(bytes_max).await?;
        Ok((body, permit))
    }

    /// Returns the effect of the request if it is destructive or cannot be judged.
    async fn effect(&mut self, body: &Bytes) -> Result<Option<Cow<'static, str>>, Error> {
        let query = self.request.uri.query().unwrap_or_default();
        match self.guarded.destructive {
            Destructive::Never => Ok(None),
            Destructive::Always(effect) => Ok(Some(effect.into())),
            Destructive::If(judge) if body.len() > JUDGED_FIRST_BYTES_MAX => {
                judge_elsewhere(judge, query.to_owned(), body.clone()).await
            }
            Destructive::If(judge) => Ok(judge(&RequestView { query, body })),
        }
    }

    async fn use_approval(&mut self, body: &[u8], effect: Cow<'static, str>) -> Result<(), Error> {
        let context = &self.guarded.context;
        let now = context.clock.now();
        let request = self.destructive_request(body, effect);
        if approvals::take(&context.db, &request, now).await? {
            return Ok(());
        }
        let settings = &context.settings;
        let (id, expires_at) = approvals::request(
            &context.db,
            &request,
            (&settings.sealing, &context.entropy),
            self.recorder.map(AsRef::as_ref),
            now,
        )
        .await?;
        let origin = settings.public_url.as_deref().unwrap_or_default();
        let page = approvals::page_path(self.project, id);
        Err(Error::ApprovalRequired(Box::new(RequiredApproval {
            id,
            reason: request.reason,
            url: format!("{origin}{page}"),
            page,
            expires_at,
        })))
    }

    async fn is_protected(&mut self) -> Result<bool, Error> {
        approvals::is_protected(&self.guarded.context.db, self.project.id).await
    }

    fn destructive_request<'b>(
        &'b self,
        body: &'b [u8],
        reason: Cow<'static, str>,
    ) -> DestructiveRequest<'b> {
        let IncomingRequest {
            method,
            uri,
            headers,
            ..
        } = &*self.request;
        let method = method.as_str();
        let path = uri.path_and_query().map_or("", |path| path.as_str());
        let content_type = headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        DestructiveRequest {
            project: self.project,
            user: self.user,
            operation: self.guarded.endpoint.id,
            method,
            path,
            reason,
            digest: idempotency::digest(method, path, content_type.unwrap_or_default(), body),
            body,
        }
    }
}

/// Judges a large body on a thread that may be busy for long.
async fn judge_elsewhere(
    judge: JudgeRequest,
    query: String,
    body: Bytes,
) -> Result<Option<Cow<'static, str>>, Error> {
    tokio::task::spawn_blocking(move || {
        judge(&RequestView {
            query: &query,
            body: &body,
        })
    })
    .await
    .context("judging a request")
}
