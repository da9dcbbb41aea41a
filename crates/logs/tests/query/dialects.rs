//! Equivalent statements in both dialects return equal rows.

use gantry_logs::{Dialect, engine::Bounds};

use super::TestLogs;

/// Description, `BigQuery` statement, `ClickHouse` statement.
const EQUIVALENT: &[(&str, &str, &str)] = &[
    (
        "recent requests through three records",
        "select id, identifier, timestamp, event_message, request.method, request.path, \
         response.status_code from edge_logs \
         cross join unnest(metadata) as m cross join unnest(m.request) as request cross join \
         unnest(m.response) as response \
         order by timestamp desc limit 100",
        "select id, log_attributes['identifier'] as identifier, toUnixTimestamp64Micro(timestamp) \
         as timestamp, event_message, \
         log_attributes['request.method'] as method, log_attributes['request.path'] as path, \
         toInt32OrZero(log_attributes['response.status_code']) as status_code \
         from logs where source='edge_logs' order by logs.timestamp desc limit 100",
    ),
    (
        "alias equal to a column name, and missing keys",
        "select id, auth_logs.timestamp, metadata.level, metadata.path, metadata.msg as msg, \
         metadata.error from auth_logs \
         cross join unnest(metadata) as metadata order by timestamp desc limit 100",
        "select id, toUnixTimestamp64Micro(logs.timestamp) as timestamp, log_attributes['level'] \
         as level, log_attributes['path'] as path, \
         log_attributes['msg'] as msg, nullIf(log_attributes['error'],'') as error from logs \
         where source='auth_logs' \
         order by logs.timestamp desc limit 100",
    ),
    (
        "groups and order by alias",
        "select r.path as path, count(t.timestamp) as c from edge_logs as t cross join \
         unnest(t.metadata) as m \
         cross join unnest(m.request) as r group by path order by c desc, path asc limit 15",
        "select log_attributes['request.path'] as path, count() as c from logs where \
         source='edge_logs' \
         group by path order by c desc, path asc limit 15",
    ),
    (
        "left joins on true",
        "select h.x_real_ip, count(*) as n from edge_logs left join unnest(metadata) as m on true \
         left join unnest(m.request) as r on true \
         left join unnest(r.headers) as h on true where h.x_real_ip is not null group by \
         h.x_real_ip order by n desc, h.x_real_ip asc limit 10",
        "select log_attributes['request.headers.x_real_ip'] as x_real_ip, count() as n from logs \
         where source='edge_logs' \
         group by x_real_ip order by n desc, x_real_ip asc limit 10",
    ),
    (
        "numbers are compared as numbers, dates are text",
        "select cast(timestamp as datetime) as timestamp, r.origin_time from edge_logs cross join \
         unnest(metadata) as m \
         cross join unnest(m.response) as r where r.origin_time > 1000 order by timestamp desc \
         limit 100",
        "select timestamp, toInt32OrZero(log_attributes['response.origin_time']) as origin_time \
         from logs \
         where source='edge_logs' and toInt32OrZero(log_attributes['response.origin_time']) > \
         1000 order by timestamp desc limit 100",
    ),
    (
        "a list of texts, and two groups",
        "select count(t.timestamp) as count, p.user_name, p.error_severity from postgres_logs as \
         t cross join unnest(metadata) as m \
         cross join unnest(m.parsed) as p where p.error_severity in ('ERROR', 'FATAL', 'PANIC') \
         group by p.user_name, p.error_severity \
         order by count desc, p.user_name, p.error_severity limit 100",
        "select count() as count, log_attributes['parsed.user_name'] as user_name, \
         log_attributes['parsed.error_severity'] as error_severity \
         from logs where source='postgres_logs' and log_attributes['parsed.error_severity'] in \
         ('ERROR','FATAL','PANIC') \
         group by user_name, error_severity order by count desc, user_name, error_severity limit \
         100",
    ),
    (
        "defaults for missing attributes",
        "select count(*) as n from auth_logs cross join unnest(metadata) as metadata where not \
         (ifnull(metadata.level, '') in ('error', 'fatal') \
         or ifnull(safe_cast(metadata.status as int64), 0) >= 500)",
        "select count() as n from logs where source='auth_logs' and not (log_attributes['level'] \
         in ('error','fatal') \
         or toInt32OrZero(log_attributes['status']) >= 500)",
    ),
    (
        "groups by position",
        "select r.path as path, (h.cf_cache_status = 'HIT') as cached, count(id) as n from \
         edge_logs f cross join unnest(f.metadata) as m \
         cross join unnest(m.request) as r cross join unnest(m.response) as res cross join \
         unnest(res.headers) as h \
         where starts_with(r.path, '/storage/v1/object') and r.method = 'GET' group by 1, 2 order \
         by n desc, path asc, cached limit 12",
        "select log_attributes['request.path'] as path, \
         (log_attributes['response.headers.cf_cache_status'] = 'HIT') as cached, count() as n \
         from logs where source='edge_logs' and startsWith(log_attributes['request.path'], \
         '/storage/v1/object') \
         and log_attributes['request.method'] = 'GET' group by path, cached order by n desc, path \
         asc, cached limit 12",
    ),
    (
        "minutes, conditions and quantiles",
        "select timestamp_trunc(t.timestamp, hour) as at, countif(response.status_code >= 500) as \
         bad, \
         approx_quantiles(response.origin_time, 100)[offset(100)] as p100 from edge_logs t, \
         unnest(metadata) as m, unnest(m.response) as response \
         group by at order by at",
        "select toUnixTimestamp64Micro(toStartOfHour(timestamp)) as at, \
         countIf(toInt32OrZero(log_attributes['response.status_code']) >= 500) as bad, \
         toInt64(quantile(1)(toInt32OrNull(log_attributes['response.origin_time']))) as p100 \
         from logs where source = 'edge_logs' group by at order by at",
    ),
    (
        "patterns",
        r#"select regexp_extract(event_message, "^([A-Z]+)") as verb, count(*) as n from `edge_logs` where regexp_contains(event_message, r"\| 5\d\d \|") group by verb order by n desc, verb"#,
        r"select extract(event_message, '^([A-Z]+)') as verb, count() as n from logs where source = 'edge_logs' and match(event_message, '\\| 5\\d\\d \\|') group by verb order by n desc, verb",
    ),
    (
        "pg_cron lines of the database log",
        "select count(*) as n from pg_cron_logs",
        "select count() as n from logs where source = 'postgres_logs' and \
         (log_attributes['parsed.application_name'] = 'pg_cron' \
         or event_message ilike '%cron job%')",
    ),
    (
        "fractions",
        "select m.responseTime as took from storage_logs cross join unnest(metadata) as m order \
         by took",
        "select toFloat64OrZero(log_attributes['responseTime']) as took from logs where source = \
         'storage_logs' order by took",
    ),
    (
        "common table expressions",
        "with e as (select r.path as path, s.status_code as st from edge_logs cross join \
         unnest(metadata) m cross join unnest(m.request) r \
         cross join unnest(m.response) s) select path, countif(st >= 400) as bad, count(*) as n, \
         round(countif(st >= 400) / count(*), 4) as ratio \
         from e group by path having n > 20 order by bad desc, path limit 20",
        "with e as (select log_attributes['request.path'] as path, \
         toInt32OrZero(log_attributes['response.status_code']) as st from logs \
         where source = 'edge_logs') select path, countIf(st >= 400) as bad, count() as n, \
         round(countIf(st >= 400) / count(), 4) as ratio \
         from e group by path having n > 20 order by bad desc, path limit 20",
    ),
    (
        "current time",
        "select count(*) as n from edge_logs where timestamp > timestamp_sub(current_timestamp(), \
         interval 1 hour) and timestamp <= current_timestamp()",
        "select count() as n from logs where source = 'edge_logs' and timestamp > now() - \
         interval 1 hour and timestamp <= now()",
    ),
];

#[tokio::test]
async fn equivalent_statements_return_equal_rows() {
    let logs = TestLogs::open(Bounds::default()).await;
    let mut wrong = Vec::new();
    for (what, bigquery, clickhouse) in EQUIVALENT {
        let one = logs.query(Dialect::BigQuery, bigquery).await;
        let other = logs.query(Dialect::ClickHouse, clickhouse).await;
        match (one, other) {
            (Ok(one), Ok(other))
                if !one.rows.is_empty()
                    && one.rows == other.rows
                    && one.columns == other.columns => {}
            (one, other) => wrong.push(format!("{what}\n  {}\n  {}", brief(&one), brief(&other))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn brief(answer: &impl std::fmt::Debug) -> String {
    format!("{answer:?}").chars().take(600).collect()
}
