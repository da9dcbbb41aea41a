//! A dashboard for Grafana: rates, errors and durations of requests first, then utilization and
//! saturation of projects and nodes, then backups and deliveries.

use serde_json::{Value, json};

/// Panels in a row of the dashboard.
const COLUMNS: usize = 3;
/// Width of the dashboard, in units of Grafana.
const WIDTH: usize = 24;
const PANEL_HEIGHT: usize = 8;

/// A row of panels with a heading.
#[derive(Debug)]
pub struct Row {
    /// Heading.
    pub title: &'static str,
    /// Panels.
    pub panels: &'static [Panel],
}

/// A chart over time.
#[derive(Debug)]
pub struct Panel {
    /// Heading.
    pub title: &'static str,
    /// Unit of the values, as Grafana names it.
    pub unit: &'static str,
    /// The `PromQL` expressions, each with the legend of its series.
    pub series: &'static [(&'static str, &'static str)],
}

const fn panel(
    title: &'static str,
    unit: &'static str,
    series: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel {
        title,
        unit,
        series,
    }
}

/// All rows of the dashboard.
pub const ROWS: &[Row] = &[
    Row {
        title: "API",
        panels: &[
            panel(
                "Requests",
                "reqps",
                &[(
                    "sum by (status) (rate(gantry_requests_total[$__rate_interval]))",
                    "{{status}}",
                )],
            ),
            panel(
                "Duration of requests",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(gantry_request_seconds_bucket[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(gantry_request_seconds_bucket[$__rate_interval])))",
                        "95 %",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(gantry_request_seconds_bucket[$__rate_interval])))",
                        "99 %",
                    ),
                ],
            ),
            panel(
                "Operations with errors",
                "reqps",
                &[(
                    "topk(10, sum by (operation) (rate(gantry_requests_total{status=\"5xx\"}[$__rate_interval])) > 0)",
                    "{{operation}}",
                )],
            ),
        ],
    },
    Row {
        title: "Services and connections",
        panels: &[
            panel(
                "Requests to services",
                "reqps",
                &[(
                    "sum by (service) (rate(gantry_edge_requests_total[$__rate_interval]))",
                    "{{service}}",
                )],
            ),
            panel(
                "Errors of services",
                "reqps",
                &[(
                    "sum by (service) (rate(gantry_edge_requests_total{status=\"5xx\"}[$__rate_interval]))",
                    "{{service}}",
                )],
            ),
            panel(
                "PostgreSQL sessions and WebSockets",
                "short",
                &[
                    ("sum(gantry_router_sessions)", "sessions"),
                    ("sum(gantry_edge_websockets)", "WebSockets"),
                ],
            ),
            panel(
                "Connections by outcome",
                "cps",
                &[
                    (
                        "sum by (outcome) (rate(gantry_router_connections_total[$__rate_interval]))",
                        "PostgreSQL {{outcome}}",
                    ),
                    (
                        "sum by (outcome) (rate(gantry_edge_connections_total[$__rate_interval]))",
                        "HTTP {{outcome}}",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "Projects",
        panels: &[
            panel(
                "Projects by status",
                "short",
                &[("max by (status) (gantry_projects)", "{{status}}")],
            ),
            panel(
                "Processor time",
                "percentunit",
                &[(
                    "topk(10, sum by (project) (rate(gantry_project_cpu_seconds_total[$__rate_interval])))",
                    "{{project}}",
                )],
            ),
            panel(
                "Memory of the limit",
                "percentunit",
                &[(
                    "topk(10, max by (project) (gantry_project_memory_bytes / gantry_project_memory_limit_bytes))",
                    "{{project}}",
                )],
            ),
            panel(
                "Disk of the limit",
                "percentunit",
                &[(
                    "topk(10, max by (project) (gantry_project_disk_bytes / gantry_project_disk_limit_bytes))",
                    "{{project}}",
                )],
            ),
            panel(
                "Connections",
                "short",
                &[(
                    "topk(10, sum by (project, mode) (gantry_project_connections))",
                    "{{project}} {{mode}}",
                )],
            ),
            panel(
                "Requests",
                "reqps",
                &[(
                    "topk(10, sum by (project, service) (rate(gantry_project_requests_total[$__rate_interval])))",
                    "{{project}} {{service}}",
                )],
            ),
            panel(
                "Errors",
                "reqps",
                &[(
                    "topk(10, sum by (project, service) (rate(gantry_project_request_errors_total[$__rate_interval])) > 0)",
                    "{{project}} {{service}}",
                )],
            ),
            panel(
                "Limits reached",
                "short",
                &[(
                    "sum by (bound) (increase(gantry_project_bounds_reached_total[$__rate_interval]))",
                    "{{bound}}",
                )],
            ),
            panel(
                "Duration of cluster steps, 95 %",
                "s",
                &[(
                    "histogram_quantile(0.95, sum by (le, step) (rate(gantry_cluster_step_seconds_bucket[$__rate_interval])))",
                    "{{step}}",
                )],
            ),
        ],
    },
    Row {
        title: "Nodes and open work",
        panels: &[
            panel(
                "Nodes",
                "bool_on_off",
                &[("min by (node) (gantry_node_up)", "{{node}}")],
            ),
            panel(
                "Free disk space",
                "bytes",
                &[("min by (node) (gantry_node_disk_free_bytes)", "{{node}}")],
            ),
            panel(
                "Age of the oldest open work",
                "s",
                &[("max by (kind) (gantry_work_oldest_age_seconds)", "{{kind}}")],
            ),
            panel(
                "Processor time of Gantry",
                "percentunit",
                &[(
                    "sum by (instance) (rate(process_cpu_seconds_total{job=\"gantry\"}[$__rate_interval]))",
                    "{{instance}}",
                )],
            ),
            panel(
                "Memory of Gantry",
                "bytes",
                &[(
                    "sum by (instance) (process_resident_memory_bytes{job=\"gantry\"})",
                    "{{instance}}",
                )],
            ),
            panel(
                "Prepared clusters",
                "short",
                &[("sum by (kind) (gantry_clusters_prepared)", "{{kind}}")],
            ),
        ],
    },
    Row {
        title: "Backups",
        panels: &[
            panel(
                "Write-ahead log that is not in the store",
                "s",
                &[("max(gantry_backup_lag_seconds)", "age of the oldest")],
            ),
            panel(
                "Projects that need attention",
                "short",
                &[
                    ("max(gantry_backup_behind_projects)", "behind"),
                    ("max(gantry_backup_missing_projects)", "without a backup"),
                    (
                        "max(gantry_backup_failed_verification_projects)",
                        "failed verification",
                    ),
                    (
                        "max(gantry_backup_unverified_projects)",
                        "not verified in time",
                    ),
                ],
            ),
            panel(
                "Errors of the store",
                "cps",
                &[(
                    "sum(rate(gantry_backup_store_errors_total[$__rate_interval]))",
                    "errors",
                )],
            ),
        ],
    },
    Row {
        title: "Deliveries",
        panels: &[
            panel(
                "Webhook attempts",
                "cps",
                &[(
                    "sum by (result) (rate(gantry_webhook_attempts_total[$__rate_interval]))",
                    "{{result}}",
                )],
            ),
            panel(
                "HTTP requests of databases",
                "cps",
                &[(
                    "sum by (result) (rate(gantry_database_calls_total[$__rate_interval]))",
                    "{{result}}",
                )],
            ),
            panel(
                "Lines of log drains",
                "cps",
                &[
                    (
                        "sum by (outcome) (rate(gantry_log_drain_lines_total[$__rate_interval]))",
                        "{{outcome}}",
                    ),
                    ("sum(gantry_log_drain_lag_lines)", "waiting"),
                ],
            ),
        ],
    },
];

/// Returns the dashboard as Grafana imports it.
pub fn dashboard() -> Value {
    let mut panels = Vec::new();
    let mut top = 0;
    for row in ROWS {
        let place = json!({ "h": 1, "w": WIDTH, "x": 0, "y": top });
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": row.title, "collapsed": false,
            "gridPos": place, "panels": [],
        }));
        top += 1;
        for (index, panel) in row.panels.iter().enumerate() {
            let width = WIDTH / COLUMNS;
            let place = json!({
                "h": PANEL_HEIGHT, "w": width,
                "x": index % COLUMNS * width, "y": top + index / COLUMNS * PANEL_HEIGHT,
            });
            panels.push(chart(panel, panels.len() + 1, &place));
        }
        top += row.panels.len().div_ceil(COLUMNS) * PANEL_HEIGHT;
    }
    json!({
        "uid": "gantry", "title": "Gantry", "tags": ["gantry"], "schemaVersion": 39, "version": 1,
        "editable": true, "refresh": "30s", "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [{
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        }] },
        "panels": panels,
    })
}

fn chart(panel: &Panel, id: usize, place: &Value) -> Value {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let names = ('A'..='Z').map(String::from);
    let targets: Vec<_> = names
        .zip(panel.series)
        .map(|(name, (expression, legend))| {
            json!({ "refId": name, "datasource": source, "expr": expression, "legendFormat": legend })
        })
        .collect();
    json!({
        "id": id, "type": "timeseries", "title": panel.title, "datasource": source, "gridPos": place,
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": {
            "legend": { "displayMode": "list", "placement": "bottom" },
            "tooltip": { "mode": "multi", "sort": "desc" },
        },
        "targets": targets,
    })
}
