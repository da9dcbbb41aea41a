//! The logs of a project: what is asked, what was found, and what is wrong with the question, all on one page with an address.

use std::fmt;

use askama::Template;
use chrono::{SecondsFormat, TimeDelta};
use gantry_logs::{ROWS_MAX, event::Source};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::Detail;
use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Frame, Visitor, named::InProject, page},
};

pub(in crate::web) static LOGS: Endpoint = page(
    "page-project-logs",
    "Logs of a project",
    Verb::Get,
    "/projects/{project}/logs",
    Access::Caller,
    || mount(logs),
);

/// How far one can look back, in minutes.
const RANGES: [(i64, &str); 5] = [
    (15, "Last 15 minutes"),
    (60, "Last hour"),
    (180, "Last 3 hours"),
    (720, "Last 12 hours"),
    (1440, "Last 24 hours"),
];

/// What is often asked. `{source}` stands for the source that is chosen.
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

/// What is asked for. A field that was left empty is sent all the same.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Asked {
    source: String,
    minutes: String,
    dialect: String,
    preset: String,
    sql: String,
}

impl Asked {
    fn source(&self) -> Source {
        self.source.parse().unwrap_or(Source::Postgres)
    }

    fn minutes(&self) -> i64 {
        let asked: i64 = self.minutes.parse().unwrap_or_default();
        RANGES
            .iter()
            .find(|(minutes, _)| *minutes == asked)
            .map_or(60, |(minutes, _)| *minutes)
    }

    /// The name of the preset, if it is not an own statement that is asked.
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

    /// Presets are all in one language.
    fn is_bigquery(&self) -> bool {
        self.dialect == "bigquery" && !PRESETS.iter().any(|(name, ..)| *name == self.preset())
    }
}

/// What the operation answers.
#[derive(Deserialize)]
struct Found {
    result: Option<Vec<Row>>,
    error: Option<Value>,
}

/// A row in the order of its columns.
struct Row(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Columns;

        impl<'de> de::Visitor<'de> for Columns {
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

        from.deserialize_map(Columns)
    }
}

/// A value as a person reads it.
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
    frame: Frame,
    project: Detail,
    /// Why nothing is shown.
    hidden: Option<String>,
    source: Source,
    minutes: i64,
    bigquery: bool,
    preset: String,
    sql: String,
    /// What is wrong with the statement.
    wrong: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Page {
    fn is_cut(&self) -> bool {
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
    InProject(reference): InProject,
    Query(asked): Query<Asked>,
) -> Result<Answer, Error> {
    let project = Detail::of(&visitor, &reference).await?;
    let operation = if asked.is_bigquery() {
        "logs.all"
    } else {
        "logs"
    };
    let path = format!("/v1/projects/{reference}/analytics/endpoints/{operation}");
    let may = visitor.may("GET", &path).await?;
    let mut page = Page {
        frame: visitor.frame(),
        project,
        hidden: (!may.yes()).then(|| may.why().to_owned()),
        source: asked.source(),
        minutes: asked.minutes(),
        bigquery: asked.is_bigquery(),
        preset: asked.preset().to_owned(),
        sql: asked.sql(),
        wrong: None,
        columns: Vec::new(),
        rows: Vec::new(),
    };
    if page.hidden.is_some() {
        return Answer::page(&page);
    }
    let end = visitor.context.clock.now();
    let time = |at: chrono::DateTime<chrono::Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("sql", &page.sql)
        .append_pair(
            "iso_timestamp_start",
            &time(end - TimeDelta::minutes(page.minutes)),
        )
        .append_pair("iso_timestamp_end", &time(end))
        .finish();
    match visitor.get::<Found>(&format!("{path}?{query}")).await {
        Ok(Found {
            error: Some(error), ..
        }) => page.wrong = Some(cell(error.get("message").unwrap_or(&error))),
        Ok(Found { result, .. }) => {
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
        Err(Error::LimitReached) => {
            page.wrong =
                Some("Too many questions in a short time. Wait a minute, and ask again.".to_owned())
        }
        Err(error @ Error::Invalid { .. }) => page.wrong = Some(error.message().into_owned()),
        Err(error) => return Err(error),
    }
    Answer::page(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_of_ones_own_goes_before_nothing_and_behind_a_preset() {
        let asked = |preset: &str, sql: &str| Asked {
            source: "edge_logs".to_owned(),
            preset: preset.to_owned(),
            sql: sql.to_owned(),
            dialect: "bigquery".to_owned(),
            minutes: "7".to_owned(),
        };
        assert!(
            asked("", "").sql().contains("source = 'edge_logs'")
                && asked("", "").preset() == "latest"
        );
        assert!(asked("", "select 1").sql() == "select 1" && asked("", "select 1").is_bigquery());
        assert!(
            asked("errors", "select 1").sql().contains(">= 500")
                && !asked("errors", "select 1").is_bigquery()
        );
        assert_eq!(asked("own", "").sql(), "");
        assert_eq!(asked("", "").minutes(), 60);
        assert_eq!(
            Asked {
                source: "'; drop".to_owned(),
                ..Asked::default()
            }
            .source(),
            Source::Postgres
        );
    }

    #[test]
    fn rows_keep_the_order_of_their_columns() {
        let found: Found =
            serde_json::from_str(r#"{"result":[{"z":1,"a":null,"m":{"k":"v"}}],"error":null}"#)
                .unwrap();
        let row: Vec<_> = found.result.unwrap()[0]
            .0
            .iter()
            .map(|(name, value)| format!("{name}={}", cell(value)))
            .collect();
        assert_eq!(row, ["z=1", "a=", r#"m={"k":"v"}"#]);
    }
}
