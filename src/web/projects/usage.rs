//! The usage of a project: requests per service, as charts and as a table.

use std::fmt::Write;

use askama::Template;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;

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

pub(in crate::web) static USAGE: Endpoint = page(
    "page-project-usage",
    "Usage of a project",
    Verb::Get,
    "/projects/{project}/usage",
    || mount(usage),
);

/// Time ranges: name, label, and format of the time of a bucket.
const INTERVALS: [(&str, &str, &str); 7] = [
    ("15min", "15 minutes", "%H:%M"),
    ("30min", "30 minutes", "%H:%M"),
    ("1hr", "1 hour", "%H:%M"),
    ("3hr", "3 hours", "%H:%M"),
    ("1day", "1 day", "%-d %b %H:%M"),
    ("3day", "3 days", "%-d %b %H:%M"),
    ("7day", "7 days", "%-d %b"),
];
/// Size of a chart, in units of its view box.
const WIDTH: usize = 600;
const HEIGHT: u64 = 100;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct UsagePageQuery {
    interval: String,
}

#[derive(Deserialize)]
struct UsageResponse {
    result: Vec<UsageBucket>,
}

#[derive(Deserialize)]
struct UsageBucket {
    timestamp: DateTime<Utc>,
    total_auth_requests: u64,
    total_realtime_requests: u64,
    total_rest_requests: u64,
    total_storage_requests: u64,
}

/// The request counts of one service.
struct Series {
    name: &'static str,
    counts: Vec<u64>,
}

impl Series {
    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn max(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or_default()
    }

    /// Returns the bars as one SVG path.
    fn bars(&self) -> String {
        let max = self.max().max(1);
        let mut path = String::new();
        let step = WIDTH / self.counts.len().max(1);
        for (index, count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            // A bar of a bucket with requests is visible.
            let height = (count * HEIGHT / max).max(1);
            // Writing to a String cannot fail.
            let _ = write!(
                path,
                "M{} {HEIGHT}v-{height}h{}v{height}z",
                index * step,
                step.saturating_sub(1).max(1)
            );
        }
        path
    }
}

#[derive(Template)]
#[template(path = "project_usage.html")]
struct Page {
    layout: Layout,
    project: ProjectResponse,
    /// The reason that the visitor may not see the usage.
    hidden: Option<String>,
    interval: &'static str,
    times: Vec<String>,
    series: Vec<Series>,
}

impl Page {
    /// Returns the time and the counts of all services, by bucket.
    fn rows(&self) -> impl Iterator<Item = (&String, Vec<u64>)> {
        let counts = |index: usize| {
            self.series
                .iter()
                .filter_map(|series| series.counts.get(index).copied())
                .collect()
        };
        self.times
            .iter()
            .enumerate()
            .map(move |(index, time)| (time, counts(index)))
    }

    fn intervals() -> &'static [(&'static str, &'static str, &'static str)] {
        &INTERVALS
    }
}

async fn usage(
    visitor: Visitor,
    PathProject(reference): PathProject,
    Query(query): Query<UsagePageQuery>,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(&visitor, &reference).await?;
    let path = format!("/v1/projects/{reference}/analytics/endpoints/usage.api-counts");
    let permission = visitor.check("GET", &path).await?;
    let (interval, _, time_format) = INTERVALS
        .iter()
        .find(|(name, ..)| *name == query.interval)
        .unwrap_or(&INTERVALS[4]);
    let hidden = permission.refusal();
    let mut page = Page {
        layout: visitor.layout(),
        project,
        hidden,
        interval,
        times: Vec::new(),
        series: Vec::new(),
    };
    if page.hidden.is_none() {
        let UsageResponse { result } = visitor.get(&format!("{path}?interval={interval}")).await?;
        page.times = result
            .iter()
            .map(|bucket| bucket.timestamp.format(time_format).to_string())
            .collect();
        let series = |name, count: fn(&UsageBucket) -> u64| Series {
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
    PageResponse::page(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_height_is_proportional_to_the_count() {
        let series = Series {
            name: "x",
            counts: vec![0, 1, 1000, 500],
        };
        assert_eq!(
            series.bars(),
            "M150 100v-1h149v1zM300 100v-100h149v100zM450 100v-50h149v50z"
        );
        assert_eq!((series.total(), series.max()), (1501, 1000));
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
