//! Query latency compared with DuckDB and PostgreSQL: `cargo bench -p gantry-logs --bench query [--
//! --rows N] [--only NAME] [--postgres URL] [--duckdb]`.
//!
//! A million generated requests of one day are stored in files. Typical statements of the dashboard
//! run through the full query path; through DuckDB (its Python package) over the same files; and
//! through `psql` on a disposable PostgreSQL database with the same rows as `jsonb` and an index on
//! the timestamp. The engines take turns. Prints medians in milliseconds and the ratio to this
//! package.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod common;

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
};

use common::{Dice, Outcome, now};
use gantry_logs::{
    Dialect, Logs, Question,
    engine::Bounds,
    event::{Attributes, Event, Source},
    store::{Batch, Options, Store},
};
use serde_json::{Value as Json, json};

const ROUNDS: usize = 21;
const ROWS: i64 = 1_000_000;
const BATCH: i64 = 500;
const DAY: i64 = 1_790_035_200_000_000;
const DAY_MICROS: i64 = 86_400_000_000;

/// Name, ClickHouse statement, DuckDB statement, PostgreSQL statement. `$hour` is the start of the
/// last hour.
const QUESTIONS: &[[&str; 4]] = &[
    [
        "last 100 of an hour",
        "select id, timestamp, event_message from logs where source = 'edge_logs' and timestamp > '$hour' order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where timestamp > '$hour' order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where timestamp > '$hour' order by timestamp desc limit 100",
    ],
    [
        "statuses by minute",
        "select toStartOfMinute(timestamp) as t, countIf(toInt32OrZero(log_attributes['response.status_code']) < 400) as ok, countIf(toInt32OrZero(log_attributes['response.status_code']) >= 500) as bad from logs where source = 'edge_logs' group by t order by t limit 1000",
        "select date_trunc('minute', timestamp) t, count(*) filter (\"@response.status_code\" < 400), count(*) filter (\"@response.status_code\" >= 500) from lines group by t order by t limit 1000",
        "select date_trunc('minute', timestamp) t, count(*) filter (where (body #>> '{response,status_code}')::int < 400), count(*) filter (where (body #>> '{response,status_code}')::int >= 500) from lines group by t order by t limit 1000",
    ],
    [
        "top paths",
        "select log_attributes['request.path'] as path, count() as n from logs where source = 'edge_logs' group by path order by n desc limit 15",
        "select \"@request.path\" path, count(*) n from lines group by path order by n desc limit 15",
        "select body #>> '{request,path}' path, count(*) n from lines group by path order by n desc limit 15",
    ],
    [
        "p95 by hour",
        "select toStartOfHour(timestamp) as t, quantile(0.95)(toInt32OrNull(log_attributes['response.origin_time'])) as p from logs where source = 'edge_logs' group by t order by t",
        "select date_trunc('hour', timestamp) t, approx_quantile(\"@response.origin_time\", 0.95) from lines group by t order by t",
        "select date_trunc('hour', timestamp) t, percentile_cont(0.95) within group (order by (body #>> '{response,origin_time}')::int) from lines group by t order by t",
    ],
    [
        "text anywhere",
        "select count() as n from logs where source = 'edge_logs' and event_message ilike '%RPC/F77%'",
        "select count(*) from lines where event_message ilike '%RPC/F77%'",
        "select count(*) from lines where event_message ilike '%RPC/F77%'",
    ],
    [
        "pattern",
        r"select count() as n from logs where source = 'edge_logs' and match(event_message, 'rest/v1/t[0-9]+ .*5[0-9][0-9]$')",
        "select count(*) from lines where regexp_matches(event_message, 'rest/v1/t[0-9]+ .*5[0-9][0-9]$')",
        "select count(*) from lines where event_message ~ 'rest/v1/t[0-9]+ .*5[0-9][0-9]$'",
    ],
    [
        "last 100, whole",
        "select id, timestamp, event_message, log_attributes from logs where source = 'edge_logs' order by timestamp desc limit 100",
        "select * from lines order by timestamp desc limit 100",
        "select * from lines order by timestamp desc limit 100",
    ],
    [
        "last 100 errors",
        "select id, timestamp, event_message from logs where source = 'edge_logs' and toInt32OrZero(log_attributes['response.status_code']) >= 500 order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where \"@response.status_code\" >= 500 order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where (body #>> '{response,status_code}')::int >= 500 order by timestamp desc limit 100",
    ],
];

fn main() -> Outcome<()> {
    let arguments: Vec<_> = env::args().collect();
    let value = |flag: &str| {
        arguments
            .iter()
            .position(|it| it == flag)
            .and_then(|at| arguments.get(at + 1))
    };
    let rows = value("--rows").map_or(Ok(ROWS), |it| it.parse())?;
    let folder = tempfile::tempdir()?;
    let rows_file = folder.path().join("rows.tsv");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let store = Arc::new(runtime.block_on(kept(folder.path(), rows, &rows_file))?);
    let files = runtime.block_on(store.view("project", DAY, DAY + DAY_MICROS))?;
    println!(
        "{rows} rows in {} files, {} bytes",
        files.files.len(),
        files.files.iter().map(|file| file.size).sum::<u64>()
    );
    let logs = Logs::new(store, Bounds::default())?;

    let mut duckdb = if arguments.iter().any(|it| it == "--duckdb") {
        Some(Other::duckdb(folder.path())?)
    } else {
        None
    };
    let mut postgres = value("--postgres")
        .map(|url| Other::postgres(url, &rows_file))
        .transpose()?;
    let hour = "2026-09-22 23:00:00";
    println!(
        "{:<22}{:>10}{:>10}{:>8}{:>12}{:>8}",
        "", "here", "DuckDB", "times", "PostgreSQL", "times"
    );
    let only = value("--only");
    for [what, own, of_duckdb, of_postgres] in QUESTIONS
        .iter()
        .filter(|[what, ..]| only.is_none_or(|only| what == only))
    {
        let [own, of_duckdb, of_postgres] =
            [own, of_duckdb, of_postgres].map(|sql| sql.replace("$hour", hour));
        let mut took = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let question = Question {
                project: "project".into(),
                dialect: Dialect::ClickHouse,
                sql: own.clone(),
                after: DAY,
                until: DAY + DAY_MICROS,
                now: DAY,
            };
            let begin = now();
            runtime.block_on(logs.query(question))?;
            took[0].push(begin.elapsed().as_secs_f64() * 1e3);
            took[1].extend(duckdb.as_mut().map(|it| it.ask(&of_duckdb)).transpose()?);
            took[2].extend(
                postgres
                    .as_mut()
                    .map(|it| it.ask(&of_postgres))
                    .transpose()?,
            );
        }
        let [here, duckdb, postgres] = took.map(median);
        println!(
            "{what:<22}{here:>10.1}{duckdb:>10.1}{:>8.1}{postgres:>12.1}{:>8.1}",
            duckdb / here,
            postgres / here
        );
    }
    Ok(())
}

/// Returns NaN if nothing was measured.
fn median(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    took.get(took.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writes rows to the files of a store, and as text for `COPY`.
async fn kept(folder: &Path, rows: i64, text: &Path) -> Outcome<Store> {
    let store = Store::open(Options {
        retention_days: u32::MAX,
        ..Options::new(folder.join("store"), "bench")
    })
    .await?;
    let mut text = BufWriter::new(File::create(text)?);
    let mut dice = Dice(1);
    for first in (0..rows).step_by(usize::try_from(BATCH)?) {
        let mut events = Vec::new();
        for row in first..rows.min(first + BATCH) {
            let timestamp = DAY + 1 + row * (DAY_MICROS - 1) / rows;
            let (message, body) = request(&mut dice);
            let id = dice.hex(32);
            let shown = body.to_string().replace('\\', "\\\\");
            writeln!(text, "{id}\t{timestamp}\t{message}\t{shown}")?;
            let attributes = Attributes::of_json(body.as_object().ok_or("an object")?);
            events.push(Event::new(id, timestamp, Source::Edge, message, attributes));
        }
        store
            .append(Batch {
                project: "project".into(),
                events,
                mark: None,
            })
            .await?;
        if first % (BATCH * 50) == 0 {
            store.upkeep(DAY).await;
        }
    }
    text.flush()?;
    // Skips all retry delays and sweep intervals of upkeep.
    let mut at = DAY;
    while store.stats(at).pending_rows > 0 {
        at += DAY_MICROS;
        store.upkeep(at).await;
    }
    Ok(store)
}

fn request(dice: &mut Dice) -> (String, Json) {
    let path = match dice.below(10) {
        0..6 => format!("/rest/v1/t{}", dice.below(40)),
        6..8 => format!("/rest/v1/rpc/f{}", dice.below(200)),
        _ => format!("/storage/v1/object/{}", dice.below(500)),
    };
    let method = dice.of(&["GET", "GET", "POST", "PATCH"]);
    let status = dice.of(&[200, 200, 200, 200, 201, 304, 401, 404, 200, 500]);
    let address = format!("198.51.{}.{}", dice.below(256), dice.below(256));
    let message = format!("{method} | {address} | https://abc.example{path} | {status}");
    let body = json!({
        "identifier": "abcdefghijklmnopqrst",
        "request": {
            "method": method, "path": path, "host": "abc.example", "protocol": "https:", "url": format!("https://abc.example{path}"),
            "headers": { "accept": "*/*", "cf_connecting_ip": address, "user_agent": format!("client/{}.0", dice.below(30)), "x_client_info": "js/2.50" },
            "cf": { "country": dice.of(&["DE", "FR", "US", "JP"]), "asn": dice.below(60_000), "colo": "FRA" },
        },
        "response": { "status_code": status, "origin_time": dice.below(900), "headers": { "content_type": "application/json", "cf_cache_status": "DYNAMIC" } },
    });
    (message, body)
}

/// Another query engine as a child process that reads one statement per line.
struct Other {
    _process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn start(mut command: Command) -> Outcome<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (asked, answers) = (
            process.stdin.take().ok_or("stdin")?,
            process.stdout.take().ok_or("stdout")?,
        );
        Ok(Self {
            _process: process,
            asked,
            answers: BufReader::new(answers),
        })
    }

    fn duckdb(folder: &Path) -> Outcome<Self> {
        const SCRIPT: &str = "import duckdb, sys, time\n\
            db = duckdb.connect()\n\
            db.execute(f\"create view lines as select * from read_parquet('{sys.argv[1]}/**/*.parquet')\")\n\
            for sql in sys.stdin:\n    begin = time.perf_counter()\n    db.execute(sql).fetchall()\n    \
            print('Time:', (time.perf_counter() - begin) * 1e3, 'ms', flush=True)\n";
        let mut command = Command::new("python3");
        command.arg("-c").arg(SCRIPT).arg(folder.join("store"));
        Self::start(command)
    }

    fn postgres(url: &str, rows: &Path) -> Outcome<Self> {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url]);
        let mut other = Self::start(command)?;
        let load = format!(
            "create temporary table sent (id text, at bigint, message text, body jsonb);\n\\copy sent from '{}'\n\
             create temporary table lines as select id, timestamp 'epoch' + at * interval '1 microsecond' as timestamp, message as event_message, body from sent;\n\
             create index on lines (timestamp);\nanalyze lines;\n\\timing on\n",
            rows.display()
        );
        other.asked.write_all(load.as_bytes())?;
        Ok(other)
    }

    /// Runs a statement and returns its duration in milliseconds.
    fn ask(&mut self, sql: &str) -> Outcome<f64> {
        writeln!(
            self.asked,
            "{sql}{}",
            if sql.ends_with(';') { "" } else { ";" }
        )?;
        self.asked.flush()?;
        let mut line = String::new();
        while self.answers.read_line(&mut line)? > 0 {
            if let Some(time) = line.strip_prefix("Time: ") {
                return Ok(time.split_whitespace().next().ok_or("a time")?.parse()?);
            }
            line.clear();
        }
        Err("an answer ended".into())
    }
}
