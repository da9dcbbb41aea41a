//! The logs of a project. The query is part of the address of the page, so that a result can be
//! bookmarked.

use std::fmt;

use askama::Template;
use chrono::{SecondsFormat, TimeDelta};
use gantry_logs::{ROWS_MAX, event::Source};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::project::ProjectResponse;
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, Visitor, page},
        path::PathProject,
    },
};

pub(in crate::web) static LOGS: Endpoint = page(
    "page-project-logs",
    "Logs of a project",
    Verb::Get,
    "/projects/{project}/logs",
    || mount(logs),
);

/// Time ranges: minutes and label.
const RANGES: [(i64, &str); 5] = [
    (15, "Last 15 minutes"),
    (60, "Last hour"),
    (180, "Last 3 hours"),
    (720, "Last 12 hours"),
    (1440, "Last 24 hours"),
];

/// Predefined queries: name, label and statement. `{source}` is replaced by the chosen source.
const PRESETS: [(&str, &str, &str); 4] = [
    (
        "latest",
        "Latest lines",
        "select timestamp, severity_text, event_message\nfrom logs\nwhere source = '{source}'\norder by timestamp desc\nlimit 100",
    ),
    (
        "errors",
        "Errors",
        "select timestamp, severity_text, event_message\nfrom logs\nwhere source = '{source}'\n  and (severity_text in ('ERROR', 'FATAL', 'PANIC') \
         or toInt32OrZero(log_attributes['response.status_code']) >= 500)\norder by timestamp desc\nlimit 100",
    ),
    (
        "minutes",
        "Lines by minute",
        "select toStartOfMinute(timestamp) as minute, count() as lines\nfrom logs\nwhere source = '{source}'\ngroup by minute\norder by minute desc\nlimit 100",
    ),
    (
        "sources",
        "Lines by source",
        "select source, count() as lines\nfrom logs\ngroup by source\norder by lines desc\nlimit 100",
    ),
];

/// The query form. Browsers send empty fields as well.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct LogsQuery {
    source: String,
    minutes: String,
    dialect: String,
    preset: String,
    sql: String,
}

impl LogsQuery {
    fn source(&self) -> Source {
        self.source.parse().unwrap_or(Source::Postgres)
    }

    fn minutes(&self) -> i64 {
        let requested: i64 = self.minutes.parse().unwrap_or_default();
        RANGES
            .iter()
            .find(|(minutes, _)| *minutes == requested)
            .map_or(60, |(minutes, _)| *minutes)
    }

    /// Returns the name of the preset; `own` or empty for a statement of the user. An empty form
    /// selects the first preset.
    fn preset(&self) -> &str {
        if self.preset.is_empty() && self.sql.trim().is_empty() {
            PRESETS[0].0
        } else {
            &self.preset
        }
    }

    fn sql(&self) -> String {
        let preset = PRESETS.iter().find(|(name, ..)| *name == self.preset());
        preset.map_or_else(
            || self.sql.clone(),
            |(_, _, sql)| sql.replace("{source}", self.source().as_str()),
        )
    }

    /// Returns whether the statement is in the `BigQuery` dialect. Presets are `ClickHouse` SQL.
    fn is_bigquery(&self) -> bool {
        self.dialect == "bigquery" && !PRESETS.iter().any(|(name, ..)| *name == self.preset())
    }
}

/// The response of the operation.
#[derive(Deserialize)]
struct LogsResponse {
    result: Option<Vec<Row>>,
    error: Option<Value>,
    warning: Option<String>,
}

/// A row with its columns in order.
struct Row(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct RowVisitor;

        impl<'de> de::Visitor<'de> for RowVisitor {
            type Value = Row;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a row")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(Row(columns))
            }
        }

        from.deserialize_map(RowVisitor)
    }
}

/// Returns the text of a table cell.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[derive(Template)]
#[template(path = "project_logs.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    /// The reason that the visitor may not read the logs.
    hidden: Option<String>,
    source: Source,
    minutes: i64,
    bigquery: bool,
    preset: String,
    sql: String,
    /// The error of the statement.
    problem: Option<String>,
    /// The reason that the result is incomplete.
    warning: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Page {
    fn is_truncated(&self) -> bool {
        self.rows.len() >= ROWS_MAX
    }

    fn is_preset(&self) -> bool {
        PRESETS.iter().any(|(name, ..)| *name == self.preset)
    }

    fn sources() -> &'static [Source] {
        Source::ALL
    }

    fn ranges() -> &'static [(i64, &'static str)] {
        &RANGES
    }

    fn presets() -> &'static [(&'static str, &'static str, &'static str)] {
        &PRESETS
    }
}

async fn logs(
    visitor: Visitor,
    PathProject(reference): PathProject,
    Query(query): Query<LogsQuery>,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let operation = if query.is_bigquery() {
        "logs.all"
    } else {
        "logs"
    };
    let path = format!("/v1/projects/{reference}/analytics/endpoints/{operation}");
    let permission = visitor.check("GET", &path).await?;
    let mut page = Page {
        layout: visitor.layout(),
        project,
        hidden: permission.refusal(),
        source: query.source(),
        minutes: query.minutes(),
        bigquery: query.is_bigquery(),
        preset: query.preset().to_owned(),
        sql: query.sql(),
        problem: None,
        warning: None,
        columns: Vec::new(),
        rows: Vec::new(),
    };
    if page.hidden.is_some() {
        return PageResponse::page(&page);
    }
    let end = visitor.context.clock.now();
    let time = |at: chrono::DateTime<chrono::Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let parameters = form_urlencoded::Serializer::new(String::new())
        .append_pair("sql", &page.sql)
        .append_pair(
            "iso_timestamp_start",
            &time(end - TimeDelta::minutes(page.minutes)),
        )
        .append_pair("iso_timestamp_end", &time(end))
        .finish();
    match visitor
        .get::<LogsResponse>(&format!("{path}?{parameters}"))
        .await
    {
        Ok(LogsResponse {
            error: Some(error), ..
        }) => page.problem = Some(cell(error.get("message").unwrap_or(&error))),
        Ok(LogsResponse {
            result, warning, ..
        }) => {
            page.warning = warning;
            let rows = result.unwrap_or_default();
            page.columns = rows
                .first()
                .map(|row| row.0.iter().map(|(name, _)| name.clone()).collect())
                .unwrap_or_default();
            page.rows = rows
                .iter()
                .map(|row| row.0.iter().map(|(_, value)| cell(value)).collect())
                .collect();
        }
        Err(Error::Busy { .. }) => {
            page.problem = Some("Other queries are still running. Try again shortly.".to_owned());
        }
        Err(Error::LimitReached) => {
            page.problem =
                Some("Too many queries. Wait a minute, then run the query again.".to_owned());
        }
        Err(error @ Error::Invalid { .. }) => page.problem = Some(error.message().into_owned()),
        Err(error) => return Err(error),
    }
    PageResponse::page(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_takes_precedence_over_a_custom_statement() {
        let query = |preset: &str, sql: &str| LogsQuery {
            source: "edge_logs".to_owned(),
            preset: preset.to_owned(),
            sql: sql.to_owned(),
            dialect: "bigquery".to_owned(),
            minutes: "7".to_owned(),
        };
        assert!(
            query("", "").sql().contains("source = 'edge_logs'")
                && query("", "").preset() == "latest"
        );
        assert!(query("", "select 1").sql() == "select 1" && query("", "select 1").is_bigquery());
        assert!(
            query("errors", "select 1").sql().contains(">= 500")
                && !query("errors", "select 1").is_bigquery()
        );
        assert_eq!(query("own", "").sql(), "");
        assert_eq!(query("", "").minutes(), 60);
        assert_eq!(
            LogsQuery {
                source: "'; drop".to_owned(),
                ..LogsQuery::default()
            }
            .source(),
            Source::Postgres
        );
    }

    #[test]
    fn rows_keep_the_column_order() {
        let response: LogsResponse =
            serde_json::from_str(r#"{"result":[{"z":1,"a":null,"m":{"k":"v"}}],"error":null}"#)
                .unwrap();
        let row: Vec<_> = response.result.unwrap()[0]
            .0
            .iter()
            .map(|(name, value)| format!("{name}={}", cell(value)))
            .collect();
        assert_eq!(row, ["z=1", "a=", r#"m={"k":"v"}"#]);
    }
}
