//! Operations on the logs and usage of a project.

use bytes::Bytes;
use gantry_logs::{Answer, Dialect, QueryError};
use http::{HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, ser::SerializeMap};
use serde_json::{Value, json};

use super::{
    database_calls, keys, metrics, query, usage,
    usage::{Interval, UsageRows},
    window::Window,
};
use crate::{
    api::context::ApiContext,
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs, pat_only},
        error::{Context, Error},
        http::{
            Endpoint, Json, Output, Query, Response, Tag, Verb, mount, operation_doc::OperationDoc,
            output::with_type,
        },
        rate_limits::{ANALYTICS, Limit, LimitKey, STANDARD, per},
    },
};

/// Endpoints of this module.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LOGS_ALL,
    &LOGS,
    &API_COUNTS,
    &REQUESTS_COUNT,
    &FUNCTION_STATS,
    &METRICS,
    &database_calls::LIST,
    &keys::operations::LIST,
    &keys::operations::CREATE,
    &keys::operations::DELETE,
];

/// Rate limit of 10 requests per minute, as in the newer dialect.
static LOGS_LIMIT: Limit = Limit {
    key: LimitKey::Path,
    windows: &[per(10, 60)],
};

const SCANNED_ROWS: HeaderName = HeaderName::from_static("x-gantry-scanned-rows");
const SCANNED_BYTES: HeaderName = HeaderName::from_static("x-gantry-scanned-bytes");
const CUT: HeaderName = HeaderName::from_static("x-gantry-rows-cut");

static LOGS_ALL: Endpoint = Endpoint {
    id: "v1-get-project-logs-all",
    summary: "Query a project's logs, a table for each source",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/endpoints/logs.all",
    aliases: &["/v1/projects/{ref}/analytics/endpoints/logs.all"],
    access: needs(&[&[P::AnalyticsLogsRead]], S::AnalyticsRead),
    limit: &ANALYTICS,
    handler: || mount(logs_all),
};

static LOGS: Endpoint = Endpoint {
    id: "v1-get-project-logs",
    summary: "Query a project's logs, one table of all",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/analytics/endpoints/logs",
    aliases: &[],
    access: needs(&[&[P::AnalyticsLogsRead]], S::AnalyticsRead),
    limit: &LOGS_LIMIT,
    handler: || mount(logs),
};

/// Statement and time range of a query. Empty parameters count as absent.
#[derive(Debug, Deserialize, JsonSchema)]
struct LogQuery {
    /// A single `SELECT` statement.
    sql: Option<String>,
    /// Exclusive start of the range. Default: one minute before the end.
    #[schemars(extend("format" = "date-time"))]
    iso_timestamp_start: Option<String>,
    /// Inclusive end of the range. Default: now.
    #[schemars(extend("format" = "date-time"))]
    iso_timestamp_end: Option<String>,
}

/// Rows of a query, or the error of the statement; the other field is absent. The status is 200 in
/// both cases.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnalyticsResponse")]
struct AnalyticsResponse {
    result: Option<Vec<Value>>,
    error: Option<AnalyticsError>,
    /// The reason that the result is incomplete: damaged files were left out.
    warning: Option<String>,
}

/// Error of a statement.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[expect(dead_code, reason = "we answer texts; clients know both")]
enum AnalyticsError {
    Text(String),
    Detailed {
        code: i32,
        message: String,
        status: String,
        errors: Vec<ErrorDetail>,
    },
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct ErrorDetail {
    domain: String,
    location: String,
    location_type: String,
    message: String,
    reason: String,
}

async fn logs_all(
    project: Project,
    context: ApiContext,
    Query(query): Query<LogQuery>,
) -> Result<QueryResponse, Error> {
    answer(&context, &project, Dialect::BigQuery, &query).await
}

async fn logs(
    project: Project,
    context: ApiContext,
    Query(query): Query<LogQuery>,
) -> Result<QueryResponse, Error> {
    answer(&context, &project, Dialect::ClickHouse, &query).await
}

async fn answer(
    context: &ApiContext,
    project: &Project,
    dialect: Dialect,
    query: &LogQuery,
) -> Result<QueryResponse, Error> {
    let window = Window::parse(
        query.iso_timestamp_start.as_deref(),
        query.iso_timestamp_end.as_deref(),
        context.clock.now(),
    )?;
    QueryResponse::new(
        &query::ask(
            context,
            &project.reference,
            dialect,
            query.sql.as_deref(),
            window,
        )
        .await?,
    )
}

/// A query response with the amount of data scanned.
struct QueryResponse {
    body: Bytes,
    scanned_rows: u64,
    scanned_bytes: u64,
    cut: bool,
}

impl QueryResponse {
    fn new(answer: &Result<Answer, QueryError>) -> Result<Self, Error> {
        let body = match answer {
            Ok(answer) => {
                let rows: Vec<Row<'_>> = answer
                    .rows
                    .iter()
                    .map(|row| Row(&answer.columns, row))
                    .collect();
                serde_json::to_vec(&Enveloped {
                    result: Some(rows),
                    error: None,
                    warning: answer.warning(),
                })
            }
            Err(error) => serde_json::to_vec(&Enveloped {
                result: None,
                error: Some(error.to_string()),
                warning: None,
            }),
        };
        let body = body.context("writing an answer")?.into();
        let (scanned_rows, scanned_bytes, cut) = answer.as_ref().map_or((0, 0, false), |answer| {
            (answer.scanned_rows, answer.scanned_bytes, answer.truncated)
        });
        Ok(Self {
            body,
            scanned_rows,
            scanned_bytes,
            cut,
        })
    }
}

/// Body of a query response. No field is nullable in the contract.
#[derive(Serialize)]
struct Enveloped<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Vec<Row<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// A row with its columns in the order of the statement.
struct Row<'a>(&'a [String], &'a serde_json::Map<String, Value>);

impl Serialize for Row<'_> {
    fn serialize<Z: serde::Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for column in self.0 {
            map.serialize_entry(column, self.1.get(column).unwrap_or(&Value::Null))?;
        }
        map.end()
    }
}

impl Output for QueryResponse {
    fn describe(described: &mut OperationDoc) {
        <Json<AnalyticsResponse> as Output>::describe(described);
    }

    fn respond(self) -> Response {
        let mut response = with_type(StatusCode::OK, "application/json; charset=utf-8", self.body);
        let headers = response.headers_mut();
        headers.insert(SCANNED_ROWS, self.scanned_rows.into());
        headers.insert(SCANNED_BYTES, self.scanned_bytes.into());
        if self.cut {
            headers.insert(CUT, HeaderValue::from_static("true"));
        }
        response
    }
}

static API_COUNTS: Endpoint = Endpoint {
    id: "v1-get-project-usage-api-count",
    summary: "Count a project's requests by service and time",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/endpoints/usage.api-counts",
    aliases: &["/v1/projects/{ref}/analytics/endpoints/usage.api-counts"],
    access: pat_only(&[&[P::AnalyticsUsageRead]]),
    limit: &ANALYTICS,
    handler: || mount(api_counts),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Since {
    /// Length of the range before now. Default: one day.
    interval: Option<Interval>,
}

/// Number of requests in a bucket.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Bucket {
    #[schemars(extend("format" = "date-time"))]
    timestamp: String,
    total_auth_requests: i64,
    total_realtime_requests: i64,
    total_rest_requests: i64,
    total_storage_requests: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1GetUsageApiCountResponse")]
struct ApiCounts {
    result: Vec<Bucket>,
    error: Option<AnalyticsError>,
    /// The reason that counts are incomplete: damaged files were left out.
    warning: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V1GetUsageApiRequestsCountResponse")]
struct RequestsCount {
    result: Vec<Count>,
    error: Option<AnalyticsError>,
    /// The reason that counts are incomplete: damaged files were left out.
    warning: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Count {
    count: i64,
}

async fn api_counts(
    project: Project,
    context: ApiContext,
    Query(since): Query<Since>,
) -> Result<Counted<ApiCounts>, Error> {
    Ok(Counted::new(
        usage::by_service(
            &context,
            &project.reference,
            since.interval.unwrap_or_default(),
        )
        .await?,
    ))
}

/// Aggregated rows of type `T`.
struct Counted<T> {
    usage: UsageRows,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T> Counted<T> {
    fn new(usage: UsageRows) -> Self {
        Self {
            usage,
            of: std::marker::PhantomData,
        }
    }
}

impl<T: JsonSchema + Serialize + Send> Output for Counted<T> {
    fn describe(described: &mut OperationDoc) {
        <Json<T> as Output>::describe(described);
    }

    fn respond(self) -> Response {
        let UsageRows { rows, warning } = self.usage;
        let mut body = json!({ "result": rows });
        if let Some(warning) = warning {
            body["warning"] = warning.into();
        }
        crate::platform::http::output::json(StatusCode::OK, &body)
    }
}

static REQUESTS_COUNT: Endpoint = Endpoint {
    id: "v1-get-project-usage-request-count",
    summary: "Count a project's requests of the last day",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/endpoints/usage.api-requests-count",
    aliases: &["/v1/projects/{ref}/analytics/endpoints/usage.api-requests-count"],
    access: pat_only(&[&[P::AnalyticsUsageRead]]),
    limit: &ANALYTICS,
    handler: || mount(requests_count),
};

async fn requests_count(
    project: Project,
    context: ApiContext,
) -> Result<Counted<RequestsCount>, Error> {
    Ok(Counted::new(
        usage::in_all(&context, &project.reference).await?,
    ))
}

static FUNCTION_STATS: Endpoint = Endpoint {
    id: "v1-get-project-function-combined-stats",
    summary: "Count the calls of a function by outcome and time",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/analytics/endpoints/functions.combined-stats",
    aliases: &[],
    access: pat_only(&[&[P::AnalyticsUsageRead]]),
    limit: &STANDARD,
    handler: || mount(function_stats).sample_query("?interval=1hr&function_id=hello"),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct OfFunction {
    interval: FunctionInterval,
    function_id: String,
}

/// Length of the range before now.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(inline)]
enum FunctionInterval {
    #[serde(rename = "15min")]
    Quarter,
    #[serde(rename = "1hr")]
    Hour,
    #[serde(rename = "3hr")]
    Hours,
    #[serde(rename = "1day")]
    Day,
}

async fn function_stats(
    project: Project,
    context: ApiContext,
    Query(of): Query<OfFunction>,
) -> Result<Counted<AnalyticsResponse>, Error> {
    let interval = match of.interval {
        FunctionInterval::Quarter => Interval::Quarter,
        FunctionInterval::Hour => Interval::Hour,
        FunctionInterval::Hours => Interval::Hours,
        FunctionInterval::Day => Interval::Day,
    };
    Ok(Counted::new(
        usage::of_function(&context, &project.reference, &of.function_id, interval).await?,
    ))
}

static METRICS: Endpoint = Endpoint {
    id: "v1-scrape-project-metrics",
    summary: "What a project's server counts, for Prometheus",
    tag: Tag::Analytics,
    method: Verb::Get,
    path: "/v1/projects/{ref}/analytics/endpoints/metrics",
    aliases: &[],
    access: needs(&[&[P::AnalyticsLogsRead]], S::AnalyticsRead),
    limit: &STANDARD,
    handler: || mount(scrape),
};

/// A response in Prometheus text format.
struct Page(String);

impl Output for Page {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        with_type(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            self.0,
        )
    }
}

async fn scrape(project: Project, context: ApiContext) -> Result<Page, Error> {
    metrics::page(&context, project.id, &project.reference)
        .await
        .map(Page)
}
