//! Metrics of a project's PostgreSQL server in Prometheus format. A stopped server is not started.

use std::fmt::Write;

use tokio_postgres::Row;

use crate::{
    api::context::ApiContext,
    base::{
        error::{Context, Error},
        ids::ProjectRef,
    },
    data_plane::clusters::superuser,
};

/// Name, kind and description of each metric, in the order of the columns of
/// [`superuser::SERVER_METRICS`].
const METRICS: [(&str, &str, &str); 10] = [
    ("pg_database_size_bytes", "gauge", "Size of all databases."),
    ("pg_stat_activity_count", "gauge", "Connections of clients."),
    (
        "pg_settings_max_connections",
        "gauge",
        "Connections of clients at most.",
    ),
    (
        "pg_stat_database_xact_commit_total",
        "counter",
        "Transactions that were committed.",
    ),
    (
        "pg_stat_database_xact_rollback_total",
        "counter",
        "Transactions that were rolled back.",
    ),
    (
        "pg_stat_database_blks_read_total",
        "counter",
        "Blocks that were read from disk.",
    ),
    (
        "pg_stat_database_blks_hit_total",
        "counter",
        "Blocks that were in memory.",
    ),
    ("pg_stat_database_deadlocks_total", "counter", "Deadlocks."),
    (
        "pg_stat_database_temp_bytes_total",
        "counter",
        "Bytes of temporary files.",
    ),
    ("pg_wal_size_bytes", "gauge", "Size of the write-ahead log."),
];

/// Returns the metrics in Prometheus text format.
pub(super) async fn page(context: &ApiContext, project: &ProjectRef) -> Result<String, Error> {
    let runs = context
        .driver
        .running(project)
        .await
        .context("looking for a project's server")?
        .is_some();
    let mut page = String::new();
    let labels = format!("{{supabase_project_ref=\"{project}\",service_type=\"db\"}}");
    let mut put = |(name, kind, help): (&str, &str, &str), value: f64| {
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}\n"
        );
    };
    put(
        ("pg_up", "gauge", "Whether the server runs."),
        if runs { 1.0 } else { 0.0 },
    );
    if runs {
        let admin = context
            .driver
            .superuser_session(project)
            .await
            .map_err(|_| Error::DatabaseUnreachable)?;
        let row: Row = admin
            .query_one(&superuser::SERVER_METRICS, &[])
            .await
            .context("reading the statistics of a project server")?;
        for (column, metric) in METRICS.into_iter().enumerate() {
            put(
                metric,
                row.get::<_, Option<f64>>(column).unwrap_or_default(),
            );
        }
    }
    Ok(page)
}
