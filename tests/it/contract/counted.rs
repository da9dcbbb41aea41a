//! Rate limits: every operation is called until it returns 429, and again after its window.

use std::ops::Range;

use gantry::{
    api::endpoints,
    platform::{
        http::Endpoint,
        rate_limits::{CounterKey, CounterScope, Identifier, Limit, LimitKey},
    },
};
use gantry_base::ids::ProjectId;

use super::{Findings, call, callable, is_public, names_project, names_subject, spellings};
use crate::support::{
    Actor, Tenant, TestApp,
    client::{Answer, Quota},
};

/// Requests before the skipped ones: enough for each token with each path.
const CALLS_BEFORE: u32 = 7;
/// Requests after the skipped ones, the last admitted one among them.
const CALLS_AFTER: u32 = 2;

/// An operation under test.
struct Counted<'a> {
    app: &'a TestApp,
    endpoint: &'static Endpoint,
    /// Two tokens of one user, used alternately.
    hands: [&'a Actor; 2],
    /// The project of the home tenant.
    project: ProjectId,
    /// Whether all calls are sent.
    counts_all_calls: bool,
}

impl Counted<'_> {
    /// Sends the `n`th call. Calls alternate between the tokens and the spellings of the path.
    async fn call(&self, n: u32, tenant: &Tenant) -> Answer {
        let n = n as usize;
        let spellings: Vec<_> = spellings(self.endpoint).collect();
        call(
            &self.app.node,
            self.endpoint,
            spellings[n % spellings.len()],
            tenant,
        )
        .as_(self.hands[n % 2])
        .send()
        .await
    }

    /// Returns the requests that are not sent. They are taken directly from the expected counter.
    ///
    /// Requests before them show that each token and path is counted once, requests after them that
    /// the operation uses this counter.
    fn skipped(&self) -> Range<u32> {
        let skips = !self.counts_all_calls && self.endpoint.limit.key == LimitKey::Path;
        let end = self.endpoint.limit.windows[0]
            .requests
            .saturating_sub(CALLS_AFTER);
        if skips { CALLS_BEFORE..end } else { 0..0 }
    }

    /// Takes one request from the counter of this operation, the owner and the home tenant.
    async fn take(&self) {
        let app = &self.app.app;
        let scope = if names_project(self.endpoint) {
            CounterScope::Project(self.project)
        } else if self.endpoint.path.contains("{slug}") {
            CounterScope::Organization(self.app.home.id)
        } else {
            CounterScope::User
        };
        let operation = endpoints::all()
            .iter()
            .position(|one| one.id == self.endpoint.id);
        let key = CounterKey {
            identifier: Identifier::User(self.app.owner.user),
            scope,
            operation: operation.unwrap().try_into().unwrap(),
        };
        let windows = self.endpoint.limit.windows;
        let verdict = app.limits.take(key, windows, app.clock.ticks()).await;
        assert!(verdict.admitted);
    }

    /// Checks the rate limit of the operation.
    async fn check(&self, elsewhere: &Tenant) -> Result<(), String> {
        let (app, window) = (self.app, self.endpoint.limit.windows[0]);
        let quota = |remaining, reset| Quota {
            limit: window.requests,
            remaining,
            reset,
        };
        let expect = |what: &str, answer: &Answer, refused: bool, quota: Quota| {
            let right = (answer.status == 429) == refused && answer.quota == quota;
            if right {
                Ok(())
            } else {
                Err(format!(
                    "{what}: expected {quota:?}, refused: {refused}, got {answer:?}"
                ))
            }
        };
        expect(
            "first",
            &self.call(0, &app.home).await,
            false,
            quota(window.requests - 1, window.secs),
        )?;
        app.advance(1);
        let skipped = self.skipped();
        for n in 1..window.requests {
            if skipped.contains(&n) {
                self.take().await;
                continue;
            }
            expect(
                "then",
                &self.call(n, &app.home).await,
                false,
                quota(window.requests - 1 - n, window.secs - 1),
            )?;
        }

        let refusal = self.call(0, &app.home).await;
        expect("over", &refusal, true, quota(0, window.secs - 1))?;
        let head = self.endpoint.method.name() == "HEAD";
        if !head
            && refusal.json()
                != serde_json::json!({"message": "ThrottlerException: Too Many Requests"})
            && !self.endpoint.path.starts_with("/v2/")
        {
            return Err(format!("over: {refusal:?}"));
        }
        if refusal.header("retry-after") != Some(&*refusal.quota.reset.to_string()) {
            return Err(format!("no retry-after: {refusal:?}"));
        }

        // Other users, and other subjects of the same user, are not affected.
        let other = call(&app.node, self.endpoint, self.endpoint.path, &app.home)
            .as_(&app.administrator)
            .send()
            .await;
        expect(
            "another user",
            &other,
            false,
            quota(window.requests - 1, window.secs),
        )?;
        if names_subject(self.endpoint) {
            expect(
                "another subject",
                &self.call(0, elsewhere).await,
                false,
                quota(window.requests - 1, window.secs),
            )?;
        }
        if names_subject(self.endpoint) && names_project(self.endpoint) {
            let sibling = Tenant {
                project: app.stub(app.home.id, self.endpoint.id).await,
                ..app.home.clone()
            };
            expect(
                "another project of it",
                &self.call(0, &sibling).await,
                false,
                quota(window.requests - 1, window.secs),
            )?;
        }

        app.advance(window.secs - 2);
        expect(
            "still over",
            &self.call(1, &app.home).await,
            true,
            quota(0, 1),
        )?;
        app.advance(1);
        expect(
            "after the reset",
            &self.call(0, &app.home).await,
            false,
            quota(window.requests - 1, window.secs),
        )
    }
}

/// Runs the check on every `of`th operation. The calls are divided among several tests.
async fn count(part: usize, of: usize) {
    let app = TestApp::new().await;
    let second = Actor {
        token: app.token(&app.owner, None).await.0,
        ..app.owner.clone()
    };
    let sql = "select id from projects where ref = $1";
    let rows = app.app.db.query(sql, &[&app.home.project.as_str()]).await;
    let project = ProjectId(rows.unwrap()[0].get(0));
    // All calls are sent only for the first operation of each limit.
    let mut limits: Vec<&Limit> = Vec::new();
    let mut found = Findings::default();
    for endpoint in callable()
        .into_iter()
        .skip(part)
        .step_by(of)
        .filter(|endpoint| !is_public(endpoint))
    {
        if endpoint.limit.windows.len() > 1 {
            continue; // Two windows at once have a test of their own.
        }
        let elsewhere = app.tenant(endpoint.id, &app.owner).await;
        let counted = Counted {
            app: &app,
            endpoint,
            hands: [&app.owner, &second],
            project,
            counts_all_calls: !limits.contains(&endpoint.limit),
        };
        limits.push(endpoint.limit);
        if let Err(problem) = counted.check(&elsewhere).await {
            found.add(endpoint, problem);
        }
    }
    found.verdict("quota");
}

#[tokio::test]
async fn even_operations_return_429_over_quota_until_the_window_ends() {
    count(0, 2).await;
}

#[tokio::test]
async fn odd_operations_return_429_over_quota_until_the_window_ends() {
    count(1, 2).await;
}
