//! Output of projects' services that Gantry runs: `postgrest_logs` and others.
//!
//! Lines are acknowledged after they are durable. Only then are they removed from the pipe of the
//! service, so a killed Gantry loses none.

use gantry_logs::event::{Attributes, Event, Source};
use gantry_node::kits::Service;

use super::{analytics::ShutdownSignal, queue, requests::text};
use crate::{api::context::ApiContext, control::services::output::OutputLine};

/// Words of messages about failures.
const FAILURE_WORDS: [&str; 4] = ["error", "fatal", "failed", "could not"];

/// Appends lines until shutdown. Runs once per process.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let output = &context.services.output;
    output.collect();
    let mut batches = Vec::new();
    while queue::next(&output.batches, &mut batches, &mut shutdown).await {
        let (mut lines, mut stored) = (Vec::new(), Vec::new());
        for batch in batches.drain(..) {
            lines.extend(batch.lines);
            stored.push(batch.stored);
        }
        let rows = lines.into_iter().map(|line| (line.project.clone(), line));
        context
            .analytics
            .keep_all(&queue::by_project(rows), event, &shutdown)
            .await;
        for stored in stored {
            // A reader that has ended needs no message.
            let _ = stored.send(());
        }
    }
}

fn event(line: &OutputLine) -> Event {
    let source = match line.service {
        Service::Rest => Source::Postgrest,
        Service::Auth => Source::Auth,
        Service::Storage => Source::Storage,
        Service::Realtime => Source::Realtime,
        Service::Functions => Source::Function,
        Service::Pooler => Source::Pgbouncer,
    };
    let lower = line.text.to_lowercase();
    let is_failure = FAILURE_WORDS.iter().any(|word| lower.contains(word));
    let mut all = Attributes::default();
    text(&mut all, "identifier", line.project.as_str());
    text(&mut all, "level", if is_failure { "error" } else { "info" });
    Event::new(
        line.id.to_string(),
        line.at.timestamp_micros(),
        source,
        line.text.clone(),
        all,
    )
}

#[cfg(test)]
mod tests {
    use gantry_logs::event::Severity;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn line_of_postgrest_becomes_an_event_of_its_log() {
        let line = |text: &str| OutputLine {
            id: Uuid::nil(),
            at: "2026-11-21T09:15:03Z".parse().unwrap(),
            project: "abcdefghijklmnopqrst".parse().unwrap(),
            service: Service::Rest,
            text: text.to_owned(),
        };
        let event_of = |text: &str| event(&line(text));
        let loaded = event_of("Schema cache loaded");
        assert_eq!(
            (loaded.source, &*loaded.message, loaded.timestamp),
            (
                Source::Postgrest,
                "Schema cache loaded",
                1_795_252_503_000_000
            )
        );
        assert_eq!(Severity::of(&loaded.attributes), Severity::Info);
        let failed = event_of("Failed reloading config: Error in config");
        assert_eq!(Severity::of(&failed.attributes), Severity::Error);
    }
}
