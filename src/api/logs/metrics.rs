//! Metrics of a project's PostgreSQL server and its pooler in Prometheus format. A stopped server
//! or pooler is not started.

use std::fmt::Write;

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::clusters::superuser;
use tokio_postgres::Row;

use crate::{
    api::context::ApiContext,
    control::services::pooler::{self, PoolerFigures},
    platform::error::{Context, Error},
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
pub(super) async fn page(
    context: &ApiContext,
    id: ProjectId,
    project: &ProjectRef,
) -> Result<String, Error> {
    let runs = context
        .driver
        .running(project)
        .await
        .context("looking for a project's server")?
        .is_some();
    let mut page = String::new();
    let labels = format!("{{supabase_project_ref=\"{project}\",service_type=\"db\"}}");
    let mut put = |metric, value| put(&mut page, &labels, metric, value);
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
    if let Some(figures) = pooler::figures(context, id).await {
        put_pooler(&mut page, project, &figures);
    }
    Ok(page)
}

fn put(page: &mut String, labels: &str, (name, kind, help): (&str, &str, &str), value: f64) {
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}\n"
    );
}

fn put_pooler(page: &mut String, project: &ProjectRef, figures: &PoolerFigures) {
    let labels = format!("{{supabase_project_ref=\"{project}\",service_type=\"pooler\"}}");
    for (name, kind, help, value) in [
        (
            "pgbouncer_clients_active",
            "gauge",
            "Clients of the pooler that do not wait.",
            figures.clients_active,
        ),
        (
            "pgbouncer_clients_waiting",
            "gauge",
            "Clients that wait for a server connection.",
            figures.clients_waiting,
        ),
        (
            "pgbouncer_servers_active",
            "gauge",
            "Server connections that a client has.",
            figures.servers_active,
        ),
        (
            "pgbouncer_servers_idle",
            "gauge",
            "Server connections that no client has.",
            figures.servers_idle,
        ),
        (
            "pgbouncer_longest_wait_seconds",
            "gauge",
            "Time for which the first waiting client has waited.",
            figures.longest_wait,
        ),
        (
            "pgbouncer_transactions_total",
            "counter",
            "Transactions of clients.",
            figures.transactions,
        ),
        (
            "pgbouncer_queries_total",
            "counter",
            "Queries of clients.",
            figures.queries,
        ),
        (
            "pgbouncer_received_bytes_total",
            "counter",
            "Bytes that clients sent.",
            figures.bytes_received,
        ),
        (
            "pgbouncer_sent_bytes_total",
            "counter",
            "Bytes that clients received.",
            figures.bytes_sent,
        ),
        (
            "pgbouncer_wait_seconds_total",
            "counter",
            "Time for which clients waited for server connections.",
            figures.waited,
        ),
    ] {
        put(page, &labels, (name, kind, help), value);
    }
}
