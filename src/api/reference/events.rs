//! The page of event types, generated from their declarations.

use std::fmt::Write;

use serde_json::Value;

use super::tables::NOTICE;
use crate::platform::events::{
    catalog,
    retention::{KEPT_DAYS, KEPT_MAX},
};

const INTRODUCTION: &str = "\
[Follow changes](../guides/events.md) shows how to read events. Each has this form; the fields of \
its type are in `payload`, beside the common ones:

```json
{\"id\": \"…\", \"type\": \"v1.project.paused\", \"timestamp\": \"2026-11-27T10:00:00.000Z\",
 \"payload\": {\"organization_slug\": \"…\", \"project_ref\": \"…\",
             \"actor\": {\"user_id\": \"…\"}, \"reason\": \"api_request\"}}
```

`project_ref` is null for events of the organization, `actor` for changes by the system. Names \
that begin with `gantry.` are not part of the published API. Types that this server never sends \
are marked.

";

/// Returns `docs/reference/events.md`.
pub fn events() -> String {
    let mut text = format!("# Events\n\n{NOTICE}{INTRODUCTION}");
    let _ = write!(
        text,
        "Events are kept for {KEPT_DAYS} days, and the last {KEPT_MAX} of an organization.\n\n"
    );
    text += "| Type | Subject | Change | Fields of `payload` |\n|---|---|---|---|\n";
    for declared in catalog() {
        let fields = declared.sample_payload();
        let fields = if fields.is_empty() {
            "–".to_owned()
        } else {
            format!("`{}`", Value::Object(fields))
        };
        let never = if declared.is_emitted {
            ""
        } else {
            " Never sent."
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {}{never} | {fields} |",
            declared.name,
            declared.scope.name(),
            declared.summary
        );
    }
    text
}
