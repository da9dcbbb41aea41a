//! Log events of functions: `function_logs`.

use gantry_logs::event::{Attributes, Event, Source};

use super::{analytics::ShutdownSignal, queue, requests::text};
use crate::{api::context::ApiContext, control::services::functions::log_queue::FunctionLogRow};

/// Appends events until the server has stopped and the queue is empty. Runs once per process.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let mut batch = Vec::new();
    while queue::next(&context.services.function_log, &mut batch, &mut shutdown).await {
        let rows = batch.drain(..).map(|row| (row.project.clone(), row));
        context
            .analytics
            .keep_all(&queue::by_project(rows), event, &shutdown)
            .await;
    }
}

/// Returns the log line of an event.
fn event(row: &FunctionLogRow) -> Event {
    let mut all = Attributes::default();
    let deployment = format!("{}_{}_{}", row.project, row.function, row.version);
    for (key, value) in [
        ("identifier", row.project.to_string()),
        ("project_ref", row.project.to_string()),
        ("function_id", row.function.to_string()),
        ("deployment_id", deployment),
        ("version", row.version.to_string()),
        ("execution_id", row.execution.to_string()),
        ("event_type", row.kind.clone()),
        ("level", row.level.to_lowercase()),
        ("slug", row.slug.clone()),
    ] {
        text(&mut all, key, value);
    }
    Event::new(
        row.id.to_string(),
        row.at.timestamp_micros(),
        Source::Function,
        row.text.clone(),
        all,
    )
}
