//! Random requests against a simple model of the counters. Status and headers of each response must
//! match the model.

use std::collections::HashMap;

use gantry_base::clock::Entropy;
use serde_json::{Value, json};

use crate::support::{
    Actor, TestApp,
    client::{Call, Quota},
};

const RUNS: u64 = 2;
const STEPS: usize = 600;

/// The name of a counter, and the windows of its operation as requests and seconds.
type Counter = String;
type Windows = &'static [(u32, u32)];

const MINUTE: Windows = &[(120, 60)];
const ANALYTICS: Windows = &[(30, 60)];
const CONTEXT: Windows = &[(10, 60), (1, 1)];
const MIGRATIONS: Windows = &[(120, 180)];

/// End and count of the open windows.
#[derive(Default)]
struct Model {
    now: u32,
    open: HashMap<(Counter, usize), (u32, u32)>,
}

impl Model {
    /// Returns whether a request is admitted, and the quota in its headers.
    fn ask(&mut self, counter: &str, windows: Windows) -> (bool, Quota) {
        let key = |index| (counter.to_owned(), index);
        let standing = |index: usize, secs: u32| match self.open.get(&key(index)) {
            Some(&(ends, used)) if ends > self.now => (ends, used),
            _ => (self.now + secs, 0),
        };
        let mut counts: Vec<_> = windows
            .iter()
            .enumerate()
            .map(|(index, (_, secs))| standing(index, *secs))
            .collect();
        let admitted = counts
            .iter()
            .zip(windows)
            .all(|((_, used), (requests, _))| used < requests);
        if admitted {
            for (_, used) in &mut counts {
                *used += 1;
            }
            self.open.extend(
                counts
                    .iter()
                    .enumerate()
                    .map(|(index, count)| (key(index), *count)),
            );
        }
        let quotas = counts
            .iter()
            .zip(windows)
            .map(|((ends, used), (limit, _))| Quota {
                limit: *limit,
                remaining: limit - used,
                reset: ends - self.now,
            });
        (
            admitted,
            quotas
                .min_by_key(|quota| (quota.remaining, u32::MAX - quota.reset))
                .unwrap(),
        )
    }
}

/// A repeatable request and the counter it belongs to.
struct Ask {
    method: &'static str,
    path: String,
    body: Option<Value>,
    actor: Option<Actor>,
    address: &'static str,
    counter: Counter,
    windows: Windows,
}

impl Ask {
    fn random(app: &TestApp, dice: &mut Dice) -> Self {
        let actor = [&app.owner, &app.developer, &app.stranger]
            .get(dice.roll(4))
            .map(|actor| (*actor).clone());
        let subject = dice.roll(3);
        let (project, slug) = match subject {
            0 => (app.home.project.as_str(), app.home.slug.as_str()),
            1 => (app.foreign.project.as_str(), app.foreign.slug.as_str()),
            _ => ("abcdefghijklmnopqrst", "nobody"),
        };
        let is_own = actor
            .as_ref()
            .is_some_and(|actor| subject == usize::from(actor.user == app.stranger.user));
        let (method, path, windows) = match dice.roll(6) {
            0 => ("GET", "/v1/profile".to_owned(), MINUTE),
            1 => ("GET", format!("/v1/organizations/{slug}"), MINUTE),
            // The operation has two paths.
            2 => (
                "GET",
                format!(
                    "/v1/projects/{project}{}/endpoints/logs.all",
                    ["", "/analytics"][dice.roll(2)]
                ),
                ANALYTICS,
            ),
            3 => (
                "GET",
                format!("/v1/projects/{project}/database/context"),
                CONTEXT,
            ),
            4 => (
                "POST",
                format!("/v1/projects/{project}/database/migrations"),
                MIGRATIONS,
            ),
            _ => ("POST", "/v1/projects".to_owned(), MINUTE),
        };
        let in_body = path == "/v1/projects";
        let body = in_body.then(|| json!({ "organization_slug": slug }));
        // All unknown and foreign names share one counter. Bodies of anonymous clients are not
        // read.
        let scope = match &actor {
            _ if path == "/v1/profile" => "own",
            None if in_body => "own",
            _ if is_own => slug,
            _ => "unresolved",
        };
        let address = ["203.0.113.7", "2001:db8::1", "2001:db8::2"][dice.roll(3)];
        let whom = actor.as_ref().map_or_else(
            || address.split("::").next().unwrap().to_owned(),
            |actor| actor.user.to_string(),
        );
        let operation = path
            .replace(project, "_")
            .replace(slug, "_")
            .replace("/analytics", "");
        let counter = format!("{whom} {method} {operation} {scope}");
        Self {
            method,
            path,
            body,
            actor,
            address,
            counter,
            windows,
        }
    }

    fn call(&self, app: &TestApp) -> Call {
        // A local proxy reports the client's address and https.
        let call = app
            .request(self.method, &self.path)
            .header("x-forwarded-for", self.address)
            .header("x-forwarded-proto", "https");
        let call = if let Some(actor) = &self.actor {
            call.as_(actor)
        } else {
            call
        };
        if let Some(body) = &self.body {
            call.json(body)
        } else {
            call
        }
    }
}

/// A repeatable source of random numbers.
struct Dice(Entropy);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        usize::from(self.0.bytes::<1>()[0]) % sides
    }
}

#[tokio::test]
async fn responses_match_the_model() {
    for seed in 0..RUNS {
        let transport = gantry::platform::http::Transport {
            trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
            ..Default::default()
        };
        let app = TestApp::with(
            transport,
            std::sync::Arc::new(crate::support::machine::Machine::bare()),
        )
        .await;
        let (mut dice, mut model) = (Dice(Entropy::seeded(seed)), Model::default());
        let mut refused = 0;
        for step in 0..STEPS {
            // Most requests follow at once, so that limits are reached. Sometimes a window ends.
            let pause = if dice.roll(40) == 0 {
                [1, 9, 50, 61][dice.roll(4)]
            } else {
                0
            };
            app.advance(pause);
            model.now += pause;
            let ask = Ask::random(&app, &mut dice);
            // Sometimes a request is repeated, because few counters would be exhausted otherwise.
            let times = if dice.roll(30) == 0 { 121 } else { 1 };
            for _ in 0..times {
                let answer = ask.call(&app).send().await;
                let (admitted, quota) = model.ask(&ask.counter, ask.windows);
                assert_eq!(
                    answer.quota, quota,
                    "seed {seed}, step {step}: {}: {answer:?}",
                    ask.counter
                );
                assert_eq!(
                    answer.status != 429,
                    admitted,
                    "seed {seed}, step {step}: {}: {answer:?}",
                    ask.counter
                );
                refused += usize::from(!admitted);
            }
        }
        assert!(
            refused > STEPS / 20,
            "seed {seed}: limits were hardly reached: {refused}"
        );
    }
}
