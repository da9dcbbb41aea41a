//! How often the services of a project were asked: a chart for each, and the numbers behind them.

use std::fmt::Write;

use askama::Template;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Detail;
use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Frame, Visitor, named::InProject, page},
};

pub(in crate::web) static USAGE: Endpoint = page(
    "page-project-usage",
    "Usage of a project",
    Verb::Get,
    "/projects/{project}/usage",
    Access::Caller,
    || mount(usage),
);

/// How far one can look back, and how a bucket is told.
const INTERVALS: [(&str, &str, &str); 7] = [
    ("15min", "15 minutes", "%H:%M"),
    ("30min", "30 minutes", "%H:%M"),
    ("1hr", "1 hour", "%H:%M"),
    ("3hr", "3 hours", "%H:%M"),
    ("1day", "1 day", "%-d %b %H:%M"),
    ("3day", "3 days", "%-d %b %H:%M"),
    ("7day", "7 days", "%-d %b"),
];
/// The chart's size in its own units.
const WIDTH: usize = 600;
const HEIGHT: u64 = 100;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Asked {
    interval: String,
}

#[derive(Deserialize)]
struct Found {
    result: Vec<Bucket>,
}

#[derive(Deserialize)]
struct Bucket {
    timestamp: DateTime<Utc>,
    total_auth_requests: u64,
    total_realtime_requests: u64,
    total_rest_requests: u64,
    total_storage_requests: u64,
}

/// Requests to one service.
struct Series {
    name: &'static str,
    counts: Vec<u64>,
}

impl Series {
    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn most(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or_default()
    }

    /// One path of bars, so that a thousand of them are one element.
    fn bars(&self) -> String {
        let (most, mut path) = (self.most().max(1), String::new());
        let step = WIDTH / self.counts.len().max(1);
        for (place, count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            // What was there at all is seen.
            let height = (count * HEIGHT / most).max(1);
            // Writing into a text cannot fail.
            let _ = write!(
                path,
                "M{} {HEIGHT}v-{height}h{}v{height}z",
                place * step,
                step.saturating_sub(1).max(1)
            );
        }
        path
    }
}

#[derive(Template)]
#[template(path = "project_usage.html")]
struct Page {
    frame: Frame,
    project: Detail,
    /// Why nothing is shown.
    hidden: Option<String>,
    interval: &'static str,
    times: Vec<String>,
    series: Vec<Series>,
}

impl Page {
    /// The numbers by time.
    fn rows(&self) -> impl Iterator<Item = (&String, Vec<u64>)> {
        let counts = |place: usize| {
            self.series
                .iter()
                .filter_map(|series| series.counts.get(place).copied())
                .collect()
        };
        self.times
            .iter()
            .enumerate()
            .map(move |(place, time)| (time, counts(place)))
    }

    fn intervals() -> &'static [(&'static str, &'static str, &'static str)] {
        &INTERVALS
    }
}

async fn usage(
    visitor: Visitor,
    InProject(reference): InProject,
    Query(asked): Query<Asked>,
) -> Result<Answer, Error> {
    let project = Detail::of(&visitor, &reference).await?;
    let path = format!("/v1/projects/{reference}/analytics/endpoints/usage.api-counts");
    let may = visitor.may("GET", &path).await?;
    let (interval, _, form) = INTERVALS
        .iter()
        .find(|(name, ..)| *name == asked.interval)
        .unwrap_or(&INTERVALS[4]);
    let hidden = (!may.yes()).then(|| may.why().to_owned());
    let mut page = Page {
        frame: visitor.frame(),
        project,
        hidden,
        interval,
        times: Vec::new(),
        series: Vec::new(),
    };
    if page.hidden.is_none() {
        let Found { result } = visitor.get(&format!("{path}?interval={interval}")).await?;
        page.times = result
            .iter()
            .map(|bucket| bucket.timestamp.format(form).to_string())
            .collect();
        let series = |name, count: fn(&Bucket) -> u64| Series {
            name,
            counts: result.iter().map(count).collect(),
        };
        page.series = vec![
            series("Data API", |bucket| bucket.total_rest_requests),
            series("Auth", |bucket| bucket.total_auth_requests),
            series("Storage", |bucket| bucket.total_storage_requests),
            series("Realtime", |bucket| bucket.total_realtime_requests),
        ];
    }
    Answer::page(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_they_count() {
        let series = Series {
            name: "x",
            counts: vec![0, 1, 1000, 500],
        };
        assert_eq!(
            series.bars(),
            "M150 100v-1h149v1zM300 100v-100h149v100zM450 100v-50h149v50z"
        );
        assert_eq!((series.total(), series.most()), (1501, 1000));
        assert_eq!(
            Series {
                name: "x",
                counts: vec![0; 3]
            }
            .bars(),
            ""
        );
    }
}
