//! The rate-limit step of the guard: resolves the target of a request and takes from its counter.

use futures_util::{FutureExt, future::OptionFuture};
use gantry_base::clock::Ticks;

use super::guarded_endpoint::{GuardedEndpoint, RequestOutcome};
use crate::platform::{
    access::{Caller, EffectiveRoles, ResourceName, Subject, User},
    error::Error,
    rate_limits::{CounterKey, CounterScope, Identifier, LimitKey, PolicyContext, Quotas},
};

/// The rate-limit step of one request.
pub(super) struct RateLimitStep<'a> {
    pub(super) guarded: &'a GuardedEndpoint,
    pub(super) caller: &'a Caller,
    pub(super) now: Ticks,
    pub(super) outcome: &'a mut RequestOutcome,
}

impl RateLimitStep<'_> {
    /// Resolves a reference to a project or organization of the caller: from the cache, or by a
    /// query within the limit on lookups.
    pub(super) async fn find(
        &mut self,
        user: &User,
        reference: &ResourceName,
    ) -> Result<Option<(Subject, EffectiveRoles)>, Error> {
        let directory = &self.guarded.context.directory;
        if directory.is_hidden(user, reference, self.now) {
            return Ok(None);
        }
        let _turn = directory.lookup_lock(user, reference).await;
        // A concurrent request may have completed the lookup.
        let known = directory.resolve_cached(user, reference, self.now);
        if known.is_some() || directory.is_hidden(user, reference, self.now) {
            return Ok(known);
        }
        let limits = &self.guarded.context.limits;
        let identifier = user.identifier();
        if let Err((policy, quotas)) = limits.take_look_up(identifier, self.now) {
            self.outcome.quota = Some((policy, quotas));
            self.outcome.limited = true;
            return Err(Error::TooManyLookUps);
        }
        let found = directory.resolve(user, reference).await?;
        // A resource of the caller is counted under its own key, so its lookup is not counted.
        if found.is_some() {
            limits.give_back_look_up(identifier, self.now);
        }
        Ok(found)
    }

    /// Takes from the counter of the caller's account, organization or project, unless the
    /// operation is not counted.
    pub(super) fn take_own(
        &mut self,
        subject: &Subject,
    ) -> impl Future<Output = Result<(), Error>> {
        if let Subject::Project(project) = subject {
            self.outcome.project = Some(project.reference.clone());
        }
        let (scope, organization) = match subject {
            Subject::Account => (CounterScope::User, None),
            Subject::Organization(organization) => (
                CounterScope::Organization(organization.id),
                Some(organization.id),
            ),
            Subject::Project(project) => (
                CounterScope::Project(project.id),
                Some(project.organization),
            ),
        };
        let application = self
            .caller
            .user()
            .and_then(|user| user.approval.as_ref())
            .map(|approval| approval.client_id);
        let place = PolicyContext {
            organization,
            application,
        };
        let counted =
            self.guarded.endpoint.limit.key != LimitKey::Uncounted || self.caller.user().is_none();
        if !counted {
            let policy = self
                .guarded
                .context
                .limits
                .policy(self.guarded.operation, place);
            let whole = Quotas::whole(policy.windows());
            self.outcome.quota = Some((policy, whole));
        }
        let taking = OptionFuture::from(counted.then(|| self.take(scope, place)));
        taking.map(|taken| taken.unwrap_or(Ok(())))
    }

    /// Takes one request from the counter of this scope.
    pub(super) fn take(
        &mut self,
        scope: CounterScope,
        place: PolicyContext,
    ) -> impl Future<Output = Result<(), Error>> {
        let Self {
            guarded: GuardedEndpoint {
                context, operation, ..
            },
            caller,
            now,
            outcome,
        } = self;
        let identifier = match caller {
            Caller::User(user) => user.identifier(),
            Caller::Anonymous { address, .. } => Identifier::address(*address),
        };
        let key = CounterKey {
            identifier,
            scope,
            operation: *operation,
        };
        let policy = context.limits.policy(*operation, place);
        async move {
            let verdict = context.limits.take(key, policy.windows(), *now).await;
            outcome.quota = Some((policy, verdict.quotas));
            outcome.limited = !verdict.admitted;
            if verdict.admitted {
                Ok(())
            } else {
                Err(Error::LimitReached)
            }
        }
    }
}
