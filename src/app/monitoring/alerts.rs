//! Alerts, as rules of Prometheus, and the runbook with an entry for each of them.

use std::fmt::Write;

use serde_json::Value;

/// Address of the runbook, for links in notifications.
const RUNBOOK: &str = "https://github.com/gantry-api/gantry/blob/main/docs/operating/runbook.md";

/// A rule that notifies the operator.
#[derive(Debug)]
pub struct Alert {
    /// Name in camel case. The anchor in the runbook is its lower case.
    pub name: &'static str,
    /// `PromQL` expression. It returns a series for each problem.
    pub expression: &'static str,
    /// Time for which the expression must return the series, as Prometheus writes it.
    pub wait: &'static str,
    /// Urgency.
    pub severity: Severity,
    /// The problem in a sentence. `{{ … }}` is replaced by Prometheus.
    pub summary: &'static str,
    /// Usual causes.
    pub cause: &'static str,
    /// Commands and places that show the cause.
    pub look: &'static str,
    /// The way to end the problem.
    pub remedy: &'static str,
}

/// Urgency of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Now: clients are affected, or data is at risk.
    Critical,
    /// Within a working day.
    Warning,
}

impl Severity {
    /// Returns the value of the label `severity`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
        }
    }
}

/// All alerts, in the order of the runbook.
pub const ALERTS: &[Alert] = &[
    Alert {
        name: "GantryDown",
        expression: "up{job=\"gantry\"} == 0",
        wait: "1m",
        severity: Severity::Critical,
        summary: "{{ $labels.instance }} does not answer on --admin-listen",
        cause: "The server is stopped, starts, or its machine is unreachable.",
        look: "`systemctl status gantry`, `journalctl -u gantry -n 100`, `gantry doctor`",
        remedy: "Start the server. Servers of projects run on meanwhile and are adopted; connections \
                 through the ports of Gantry end.",
    },
    Alert {
        name: "GantryApiErrors",
        expression: "sum(rate(gantry_requests_total{status=\"5xx\"}[5m])) / \
                     sum(rate(gantry_requests_total[5m])) > 0.02",
        wait: "5m",
        severity: Severity::Critical,
        summary: "{{ $value | humanizePercentage }} of the requests to the API fail",
        cause: "The control database does not answer, a disk is full, or a server of a project does not \
                start.",
        look: "`/readyz`, `gantry doctor`, and the log for lines with `level=ERROR`; each error has a \
               request id that the response also has",
        remedy: "Follow the first finding of `gantry doctor`.",
    },
    Alert {
        name: "GantryApiSlow",
        expression: "histogram_quantile(0.99, \
                     sum by (le) (rate(gantry_request_seconds_bucket[5m]))) > 5",
        wait: "10m",
        severity: Severity::Warning,
        summary: "One of 100 requests to the API takes more than {{ $value | humanizeDuration }}",
        cause: "The machine is short of processor time or disk throughput, or SQL of users runs long.",
        look: "`gantry top`, and the duration by operation on the dashboard",
        remedy: "If only `v1-run-a-query` is slow, its users wait for their own SQL. Otherwise move \
                 projects to another node or add one.",
    },
    Alert {
        name: "GantryNodeDown",
        expression: "min by (node) (gantry_node_up) == 0",
        wait: "2m",
        severity: Severity::Critical,
        summary: "No server runs the node {{ $labels.node }}",
        cause: "Its machine or its server is stopped, or it cannot reach the control database.",
        look: "`gantry node list`, then the log on that machine",
        remedy: "Start the server. If the machine is lost, rebuild its projects on other nodes: \
                 `gantry node rebuild`; see [fleet](fleet.md).",
    },
    Alert {
        name: "GantryNodeDiskLow",
        expression: "min by (node) (gantry_node_disk_free_bytes) < 10e9",
        wait: "5m",
        severity: Severity::Critical,
        summary: "The node {{ $labels.node }} has {{ $value | humanize1024 }}B of free space",
        cause: "Projects grew, or write-ahead logs wait because the store of backups does not answer.",
        look: "`gantry top --sort disk`, and the alerts about backups",
        remedy: "Move projects to another node with `gantry node move`, or enlarge the disk.",
    },
    Alert {
        name: "GantryProjectsFaulty",
        expression: "max by (status) (gantry_projects{status=~\
                     \"ACTIVE_UNHEALTHY|INIT_FAILED|RESTORE_FAILED|PAUSE_FAILED\"}) > 0",
        wait: "5m",
        severity: Severity::Critical,
        summary: "{{ $value }} projects are {{ $labels.status }}",
        cause: "A server does not start: its settings, an extension or its disk.",
        look: "`gantry status` lists the refs; `GET /v1/projects/{ref}/health` has the reason",
        remedy: "Mend the reason, then restart or restore the project. A restore in place can be undone: \
                 `POST /v1/projects/{ref}/database/backups/undo`.",
    },
    Alert {
        name: "GantryWorkStuck",
        expression: "max by (kind) (gantry_work_oldest_age_seconds) > 7200",
        wait: "5m",
        severity: Severity::Warning,
        summary: "The oldest of the open {{ $labels.kind }} began \
                  {{ $value | humanizeDuration }} ago",
        cause: "A large project, a slow store of backups, or an error that is tried again.",
        look: "`gantry status`, and the log for the ref of the project",
        remedy: "Wait if the log shows progress. Otherwise mend the error that it repeats.",
    },
    Alert {
        name: "GantryProjectMemoryHigh",
        expression: "max by (project) \
                     (gantry_project_memory_bytes / gantry_project_memory_limit_bytes) > 0.95",
        wait: "10m",
        severity: Severity::Warning,
        summary: "The project {{ $labels.project }} uses \
                  {{ $value | humanizePercentage }} of its memory",
        cause: "Many connections, or queries that sort and hash much.",
        look: "`gantry top --sort memory`, and the page *Connections* of the project",
        remedy: "Choose a larger compute size, or use the pooler at port 6543.",
    },
    Alert {
        name: "GantryProjectDiskHigh",
        expression: "max by (project) \
                     (gantry_project_disk_bytes / gantry_project_disk_limit_bytes) > 0.9",
        wait: "10m",
        severity: Severity::Warning,
        summary: "The project {{ $labels.project }} uses \
                  {{ $value | humanizePercentage }} of its disk",
        cause: "Its data grew, or a replication slot keeps write-ahead logs.",
        look: "`gantry top --sort disk`; `select * from pg_replication_slots` in the project",
        remedy: "Delete data, drop the slot, or raise the disk size. At 95 % the project is read-only.",
    },
    Alert {
        name: "GantryProjectLimitReached",
        expression: "sum by (bound) (increase(gantry_project_bounds_reached_total[15m])) > 0",
        wait: "0m",
        severity: Severity::Warning,
        summary: "Projects reached their limit: {{ $labels.bound }}",
        cause: "The load of a project is larger than its compute size.",
        look: "The event `gantry.limit.exceeded` of the organization names the project",
        remedy: "Choose a larger compute size. Other projects are not affected.",
    },
    Alert {
        name: "GantryDatabaseConnectionsRejected",
        expression: "sum by (outcome) (rate(gantry_router_connections_total\
                     {outcome=~\"full|unavailable\"}[5m])) > 0.1",
        wait: "5m",
        severity: Severity::Warning,
        summary: "Connections to PostgreSQL ports are rejected: {{ $labels.outcome }}",
        cause: "`full`: a project or the whole port has as many sessions as it may have. `unavailable`: \
                a server does not start.",
        look: "`gantry top --sort connections`, and the log at level debug",
        remedy: "Let clients use port 6543, which pools connections, or choose a larger compute size.",
    },
    Alert {
        name: "GantryServiceErrors",
        expression: "sum by (service) (rate(gantry_edge_requests_total{status=\"5xx\"}[5m])) / \
                     sum by (service) (rate(gantry_edge_requests_total[5m])) > 0.05",
        wait: "5m",
        severity: Severity::Critical,
        summary: "{{ $value | humanizePercentage }} of the requests to {{ $labels.service }} fail",
        cause: "A process of the service ends, an upstream is down, or a function throws.",
        look: "`gantry_project_request_errors_total` by project, then the logs `edge_logs` and \
               `function_logs` of that project",
        remedy: "For `functions`, tell the owner of the project. For others, read the log of the \
                 service and check `gantry service list`.",
    },
    Alert {
        name: "GantryServiceConnectionsRejected",
        expression: "sum(rate(gantry_edge_connections_total{outcome=\"full\"}[5m])) > 0.1",
        wait: "5m",
        severity: Severity::Critical,
        summary: "Connections to the HTTP ports of projects are rejected",
        cause: "One client opens very many connections, or all clients together.",
        look: "`ss -tn` grouped by address, and `gantry_edge_connections_total` by outcome",
        remedy: "Block the client in front of Gantry, or divide the load among more nodes.",
    },
    Alert {
        name: "GantryBackupsBehind",
        expression: "max(gantry_backup_behind_projects) > 0",
        wait: "10m",
        severity: Severity::Critical,
        summary: "{{ $value }} projects shipped no write-ahead log for 15 minutes",
        cause: "The store of backups does not answer or rejects the credentials, or the machine is \
                overloaded.",
        look: "`gantry_backup_store_errors_total`, `gantry check`, and the log for `store`",
        remedy: "Mend the store. Logs wait on the disk of the node and are shipped afterwards; until \
                 then a loss of the machine loses them.",
    },
    Alert {
        name: "GantryBackupsFailing",
        expression: "sum(increase(gantry_backup_failures_total[1h])) > 0",
        wait: "0m",
        severity: Severity::Warning,
        summary: "{{ $value }} base backups failed within an hour",
        cause: "The store of backups failed, or a server was restarted during its backup.",
        look: "`GET /v1/projects/{ref}/database/backups`, and the log for `base backup`",
        remedy: "Wait for the next attempt. If it fails too, follow `GantryBackupsBehind`.",
    },
    Alert {
        name: "GantryBackupVerificationFailed",
        expression: "max(gantry_backup_failed_verification_projects) > 0",
        wait: "0m",
        severity: Severity::Critical,
        summary: "A backup of {{ $value }} projects failed its verification",
        cause: "Objects in the store are missing or damaged.",
        look: "`gantry doctor` names the projects; the log has the error of the verification",
        remedy: "Find what changes the objects of the store. A new base backup follows by itself, and a \
                 restore to a time after it does not need the damaged objects.",
    },
    Alert {
        name: "GantryBackupsUnverified",
        expression: "max(gantry_backup_unverified_projects) > 0",
        wait: "1d",
        severity: Severity::Warning,
        summary: "{{ $value }} projects have no recently verified backup",
        cause: "Verifications take longer than `--backups-verify-days`, or are switched off.",
        look: "The log for `verif`, and the load of the machine: a verification restores a backup",
        remedy: "Give the machine more time between peaks, or raise the number of days.",
    },
    Alert {
        name: "GantryInstallationBackupOld",
        expression: "max(gantry_installation_backup_age_seconds) > 3600",
        wait: "5m",
        severity: Severity::Critical,
        summary: "The installation was backed up {{ $value | humanizeDuration }} ago",
        cause: "The store of backups does not answer, or another server took over the installation.",
        look: "`/readyz` names the problem",
        remedy: "Mend the store. Without this backup an empty machine cannot be recovered.",
    },
    Alert {
        name: "GantryCertificateEnding",
        expression: "max(gantry_certificates_ending) > 0",
        wait: "1h",
        severity: Severity::Warning,
        summary: "{{ $value }} certificates end within 14 days or were not renewed",
        cause: "The name does not lead to this server any more, or the certificate authority refuses.",
        look: "`gantry status` lists the names and the last error",
        remedy: "Mend the DNS records of the name, or remove the custom hostname.",
    },
    Alert {
        name: "GantryLogsDamaged",
        expression: "max(gantry_logs_damaged_files + gantry_logs_damaged_segments) > 0",
        wait: "0m",
        severity: Severity::Warning,
        summary: "{{ $value }} files of logs are damaged",
        cause: "The disk lost data, or another program wrote to the folder of logs.",
        look: "`gantry logs verify`",
        remedy: "`gantry logs repair` sets the files aside. Answers leave out their lines.",
    },
    Alert {
        name: "GantryLogsFailing",
        expression: "max by (instance) (delta(gantry_logs_failures[15m])) > 0",
        wait: "5m",
        severity: Severity::Warning,
        summary: "Lines of logs cannot be written on {{ $labels.instance }}",
        cause: "The disk or the object store of logs is full or does not answer.",
        look: "The log for `logs`, `df -h`, `gantry check`",
        remedy: "Free space, or mend the store. Lines wait in memory and on disk up to their limit.",
    },
    Alert {
        name: "GantryLogDrainsFailing",
        expression: "max by (instance) (gantry_log_drains_failing) > 0",
        wait: "15m",
        severity: Severity::Warning,
        summary: "{{ $value }} log drains cannot deliver",
        cause: "The target of the owner does not answer or rejects the lines.",
        look: "`GET /v1/projects/{ref}/analytics/log-drains/health` has the last error of each drain",
        remedy: "Tell the owner of the project. Lines wait up to the limit of the drain.",
    },
    Alert {
        name: "GantryWebhooksFailing",
        expression: "sum(rate(gantry_webhook_attempts_total{result!=\"success\"}[30m])) / \
                     sum(rate(gantry_webhook_attempts_total[30m])) > 0.5",
        wait: "30m",
        severity: Severity::Warning,
        summary: "{{ $value | humanizePercentage }} of the deliveries to webhooks fail",
        cause: "Receivers of one organization are down, or this server does not reach the internet.",
        look: "The page *Webhooks* of the organization; `gantry_outbound_requests_total` by use",
        remedy: "If all uses fail, mend the network of this server. Otherwise tell the organization.",
    },
    Alert {
        name: "GantryRateLimitStoreDown",
        expression: "max by (instance) (gantry_limits_store_away) > 0",
        wait: "5m",
        severity: Severity::Warning,
        summary: "{{ $labels.instance }} counts requests alone",
        cause: "The store of shared rate limits does not answer.",
        look: "`gantry check`, and the log for `rate limit`",
        remedy: "Mend the store. Until then each process grants its share of each limit.",
    },
    Alert {
        name: "GantryWarmPoolEmpty",
        expression: "sum(gantry_clusters_prepared) == 0",
        wait: "15m",
        severity: Severity::Warning,
        summary: "No prepared clusters: new projects take longer",
        cause: "Projects are created faster than clusters, `--warm-clusters` is 0, or the disk is \
                nearly full.",
        look: "`gantry_cluster_step_seconds` by step, and free space",
        remedy: "Wait while projects are created in bulk. Otherwise free space.",
    },
    Alert {
        name: "GantryRequestLogDropped",
        expression: "sum by (instance) (increase(gantry_management_log_dropped_total[15m])) + \
                     sum by (instance) (increase(gantry_edge_log_dropped_total[15m])) > 0",
        wait: "0m",
        severity: Severity::Warning,
        summary: "{{ $value }} requests have no line in the logs",
        cause: "More requests came than lines can be written.",
        look: "`gantry top`, and the duration of writes on the disk of logs",
        remedy: "Divide the load among more processes. Answers to clients are not affected.",
    },
];

/// Returns the rules for Prometheus, in YAML.
pub fn rules() -> String {
    let mut text = "# Generated by `gantry generate`. Do not edit.\n\
                    # Alerts about the metrics of /metrics. The job is called `gantry`.\n\
                    groups:\n  - name: gantry\n    rules:\n"
        .to_owned();
    for alert in ALERTS {
        let runbook = format!("{RUNBOOK}#{}", alert.name.to_lowercase());
        // A JSON string is a YAML string.
        let quoted = |text: &str| Value::from(text).to_string();
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          \
             severity: {}\n        annotations:\n          summary: {}\n          runbook_url: {}\n",
            alert.name,
            quoted(alert.expression),
            alert.wait,
            alert.severity.name(),
            quoted(alert.summary),
            quoted(&runbook),
        );
    }
    text
}

/// Returns the runbook in Markdown.
pub fn runbook() -> String {
    let mut text = "<!-- Generated by `gantry generate`. Do not edit. -->

# Runbook

An entry for each alert of [`dist/monitoring/alerts.yaml`](../../dist/monitoring/alerts.yaml).
`critical` asks for action now, because clients are affected or data is at risk; `warning` within a
working day. Begin with `gantry doctor`: it prints its findings first. Commands read the
installation of `--config FILE` or `--data-dir DIR`. The metrics are described in the
[reference](../reference/metrics.md).
"
    .to_owned();
    for alert in ALERTS {
        let _ = write!(
            text,
            "\n## {}\n\n`{}` for {}, {}.\n\n- **Cause**: {}\n- **Look**: {}.\n- **Remedy**: {}\n",
            alert.name,
            alert.expression,
            alert.wait,
            alert.severity.name(),
            alert.cause,
            alert.look,
            alert.remedy,
        );
    }
    text
}
