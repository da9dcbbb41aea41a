//! Query latency compared with `DuckDB` and PostgreSQL: `cargo bench -p gantry-logs --bench query
//! [-- --rows N] [--only NAME] [--postgres URL] [--duckdb]`.
//!
//! A million generated requests of one day are stored in files. Typical statements of the dashboard
//! run through the full query path; through `DuckDB` (its Python package) over the same files; and
//! through `psql` on a disposable PostgreSQL database with the same rows as `jsonb` and an index on
//! the timestamp. The engines take turns. Prints medians in milliseconds and the ratio to this
//! package.
//!
//! On two processors, shared with a build, the ratios to PostgreSQL 15 and `DuckDB` 2.0 were: 49
//! and 1.0 for statuses by minute, 24 and 0.7 for top paths, 41 and 0.8 for p95 by hour (with exact
//! quantiles on both sides), 25 and 1.0 for the exact one. The geometric mean of all statements was
//! 1.7 to `DuckDB`, that of the first three charts 36 to PostgreSQL and 0.8 to `DuckDB`.

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

use common::{BenchResult, Random, now};
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

/// Name, `ClickHouse` statement, `DuckDB` statement, PostgreSQL statement. `$hour` is the start of
/// the last hour.
const STATEMENTS: &[[&str; 4]] = &[
    [
        "last 100 of an hour",
        "select id, timestamp, event_message from logs where source = 'edge_logs' and timestamp > \
         '$hour' order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where timestamp > '$hour' order by \
         timestamp desc limit 100",
        "select id, timestamp, event_message from lines where timestamp > '$hour' order by \
         timestamp desc limit 100",
    ],
    [
        "statuses by minute",
        "select toStartOfMinute(timestamp) as t, \
         countIf(toInt32OrZero(log_attributes['response.status_code']) < 400) as ok, \
         countIf(toInt32OrZero(log_attributes['response.status_code']) >= 500) as bad from logs \
         where source = 'edge_logs' group by t order by t limit 1000",
        "select date_trunc('minute', timestamp) t, count(*) filter (\"@response.status_code\" < \
         400), count(*) filter (\"@response.status_code\" >= 500) from lines group by t order by \
         t limit 1000",
        "select date_trunc('minute', timestamp) t, count(*) filter (where (body #>> \
         '{response,status_code}')::int < 400), count(*) filter (where (body #>> \
         '{response,status_code}')::int >= 500) from lines group by t order by t limit 1000",
    ],
    [
        "top paths",
        "select log_attributes['request.path'] as path, count() as n from logs where source = \
         'edge_logs' group by path order by n desc limit 15",
        "select \"@request.path\" path, count(*) n from lines group by path order by n desc limit \
         15",
        "select body #>> '{request,path}' path, count(*) n from lines group by path order by n \
         desc limit 15",
    ],
    [
        "p95 by hour",
        "select toStartOfHour(timestamp) as t, \
         quantile(0.95)(toInt32OrNull(log_attributes['response.origin_time'])) as p from logs \
         where source = 'edge_logs' group by t order by t",
        "select date_trunc('hour', timestamp) t, quantile_cont(\"@response.origin_time\", 0.95) \
         from lines group by t order by t",
        "select date_trunc('hour', timestamp) t, percentile_cont(0.95) within group (order by \
         (body #>> '{response,origin_time}')::int) from lines group by t order by t",
    ],
    [
        "exact p95 by hour",
        "select toStartOfHour(timestamp) as t, \
         quantileExact(0.95)(toInt32OrNull(log_attributes['response.origin_time'])) as p from logs \
         where source = 'edge_logs' group by t order by t",
        "select date_trunc('hour', timestamp) t, quantile_disc(\"@response.origin_time\", 0.95) \
         from lines group by t order by t",
        "select date_trunc('hour', timestamp) t, percentile_disc(0.95) within group (order by \
         (body #>> '{response,origin_time}')::int) from lines group by t order by t",
    ],
    [
        "text anywhere",
        "select count() as n from logs where source = 'edge_logs' and event_message ilike \
         '%RPC/F77%'",
        "select count(*) from lines where event_message ilike '%RPC/F77%'",
        "select count(*) from lines where event_message ilike '%RPC/F77%'",
    ],
    [
        "pattern",
        r"select count() as n from logs where source = 'edge_logs' and match(event_message, 'rest/v1/t[0-9]+ .*5[0-9][0-9]$')",
        "select count(*) from lines where regexp_matches(event_message, 'rest/v1/t[0-9]+ \
         .*5[0-9][0-9]$')",
        "select count(*) from lines where event_message ~ 'rest/v1/t[0-9]+ .*5[0-9][0-9]$'",
    ],
    [
        "last 100, whole",
        "select id, timestamp, event_message, log_attributes from logs where source = 'edge_logs' \
         order by timestamp desc limit 100",
        "select * from lines order by timestamp desc limit 100",
        "select * from lines order by timestamp desc limit 100",
    ],
    [
        "last 100 errors",
        "select id, timestamp, event_message from logs where source = 'edge_logs' and \
         toInt32OrZero(log_attributes['response.status_code']) >= 500 order by timestamp desc \
         limit 100",
        "select id, timestamp, event_message from lines where \"@response.status_code\" >= 500 \
         order by timestamp desc limit 100",
        "select id, timestamp, event_message from lines where (body #>> \
         '{response,status_code}')::int >= 500 order by timestamp desc limit 100",
    ],
];

fn main() -> BenchResult<()> {
    let arguments: Vec<_> = env::args().collect();
    let rows = match value_of(&arguments, "--rows") {
        Some(rows) => rows.parse()?,
        None => ROWS,
    };
    let folder = tempfile::tempdir()?;
    let rows_file = folder.path().join("rows.tsv");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let store = Arc::new(runtime.block_on(fill_store(folder.path(), rows, &rows_file))?);
    let view = runtime.block_on(store.view("project", DAY, DAY + DAY_MICROS))?;
    let bytes: u64 = view.files.iter().map(|file| file.size).sum();
    println!("{rows} rows in {} files, {bytes} bytes", view.files.len());

    let mut engines = Engines {
        runtime,
        logs: Logs::new(store, Bounds::default())?,
        duckdb: None,
        postgres: None,
    };
    if arguments.iter().any(|argument| argument == "--duckdb") {
        engines.duckdb = Some(ExternalEngine::duckdb(folder.path())?);
    }
    if let Some(url) = value_of(&arguments, "--postgres") {
        engines.postgres = Some(ExternalEngine::postgres(url, &rows_file)?);
    }
    println!(
        "{:<22}{:>10}{:>10}{:>8}{:>12}{:>8}",
        "milliseconds", "Gantry", "DuckDB", "ratio", "PostgreSQL", "ratio"
    );
    let only = value_of(&arguments, "--only");
    let mut duckdb_ratios = Vec::new();
    let mut postgres_ratios = Vec::new();
    for statement in STATEMENTS {
        let [name, ..] = statement;
        if only.is_some_and(|only| only != *name) {
            continue;
        }
        let [own, duckdb, postgres] = engines.measure(statement)?;
        println!(
            "{name:<22}{own:>10.1}{duckdb:>10.1}{:>8.1}{postgres:>12.1}{:>8.1}",
            duckdb / own,
            postgres / own
        );
        duckdb_ratios.push(duckdb / own);
        postgres_ratios.push(postgres / own);
    }
    println!(
        "{:<42}{:>8.1}{:>12}{:>8.1}",
        "geometric mean",
        geometric_mean(&duckdb_ratios),
        "",
        geometric_mean(&postgres_ratios)
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a number of statements")]
fn geometric_mean(ratios: &[f64]) -> f64 {
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (logarithms / ratios.len() as f64).exp()
}

/// Returns the argument that follows a flag.
fn value_of<'a>(arguments: &'a [String], flag: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == flag)?;
    arguments.get(at + 1).map(String::as_str)
}

struct Engines {
    runtime: tokio::runtime::Runtime,
    logs: Logs,
    duckdb: Option<ExternalEngine>,
    postgres: Option<ExternalEngine>,
}

impl Engines {
    /// Runs a statement on all engines in turns and returns the medians in milliseconds.
    fn measure(&mut self, [_, own, duckdb, postgres]: &[&str; 4]) -> BenchResult<[f64; 3]> {
        let [own, duckdb, postgres] =
            [own, duckdb, postgres].map(|sql| sql.replace("$hour", "2026-09-22 23:00:00"));
        let mut durations = [Vec::new(), Vec::new(), Vec::new()];
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
            self.runtime.block_on(self.logs.query(question))?;
            durations[0].push(begin.elapsed().as_secs_f64() * 1e3);
            if let Some(engine) = &mut self.duckdb {
                durations[1].push(engine.run(&duckdb)?);
            }
            if let Some(engine) = &mut self.postgres {
                durations[2].push(engine.run(&postgres)?);
            }
        }
        Ok(durations.map(median))
    }
}

/// Returns NaN if nothing was measured.
fn median(mut durations: Vec<f64>) -> f64 {
    durations.sort_by(f64::total_cmp);
    durations
        .get(durations.len() / 2)
        .copied()
        .unwrap_or(f64::NAN)
}

/// Writes rows to the files of a store, and as text for `COPY`.
async fn fill_store(folder: &Path, rows: i64, text: &Path) -> BenchResult<Store> {
    let store = Store::open(Options {
        retention_days: u32::MAX,
        ..Options::new(folder.join("store"), "bench")
    })
    .await?;
    let mut text = BufWriter::new(File::create(text)?);
    let mut random = Random(1);
    for first in (0..rows).step_by(usize::try_from(BATCH)?) {
        let mut events = Vec::new();
        for row in first..rows.min(first + BATCH) {
            let timestamp = DAY + 1 + row * (DAY_MICROS - 1) / rows;
            let (message, body) = request(&mut random);
            let id = random.hex(32);
            let shown = body.to_string().replace('\\', "\\\\");
            writeln!(text, "{id}\t{timestamp}\t{message}\t{shown}")?;
            let attributes = Attributes::of_json(body.as_object().ok_or("an object")?);
            events.push(Event::new(id, timestamp, Source::Edge, message, attributes));
        }
        store
            .append(Batch {
                project: "project".into(),
                events,
                reader_offset: None,
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

fn request(random: &mut Random) -> (String, Json) {
    let path = match random.below(10) {
        0..6 => format!("/rest/v1/t{}", random.below(40)),
        6..8 => format!("/rest/v1/rpc/f{}", random.below(200)),
        _ => format!("/storage/v1/object/{}", random.below(500)),
    };
    let method = random.choose(&["GET", "GET", "POST", "PATCH"]);
    let status = random.choose(&[200, 200, 200, 200, 201, 304, 401, 404, 200, 500]);
    let address = format!("198.51.{}.{}", random.below(256), random.below(256));
    let message = format!("{method} | {address} | https://abc.example{path} | {status}");
    let body = json!({
        "identifier": "abcdefghijklmnopqrst",
        "request": {
            "method": method,
            "path": path,
            "host": "abc.example",
            "protocol": "https:",
            "url": format!("https://abc.example{path}"),
            "headers": {
                "accept": "*/*",
                "cf_connecting_ip": address,
                "user_agent": format!("client/{}.0", random.below(30)),
                "x_client_info": "js/2.50",
            },
            "cf": {
                "country": random.choose(&["DE", "FR", "US", "JP"]),
                "asn": random.below(60_000),
                "colo": "FRA",
            },
        },
        "response": {
            "status_code": status,
            "origin_time": random.below(900),
            "headers": { "content_type": "application/json", "cf_cache_status": "DYNAMIC" },
        },
    });
    (message, body)
}

/// Another query engine as a child process that reads one statement per line.
struct ExternalEngine {
    _process: Child,
    statements: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ExternalEngine {
    fn start(mut command: Command) -> BenchResult<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let statements = process.stdin.take().ok_or("stdin")?;
        let output = process.stdout.take().ok_or("stdout")?;
        Ok(Self {
            _process: process,
            statements,
            output: BufReader::new(output),
        })
    }

    fn duckdb(folder: &Path) -> BenchResult<Self> {
        const SCRIPT: &str = "import duckdb, sys, time\n\
            db = duckdb.connect()\n\
            db.execute(f\"create view lines as select * from \
            read_parquet('{sys.argv[1]}/**/*.parquet')\")\n\
            for sql in sys.stdin:\n    begin = \
            time.perf_counter()\n    db.execute(sql).fetchall()\n    \
            print('Time:', (time.perf_counter() - begin) * 1e3, 'ms', flush=True)\n";
        let mut command = Command::new("python3");
        command.arg("-c").arg(SCRIPT).arg(folder.join("store"));
        Self::start(command)
    }

    fn postgres(url: &str, rows: &Path) -> BenchResult<Self> {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", url]);
        let mut other = Self::start(command)?;
        let load = format!(
            "create temporary table sent (id text, at bigint, message text, body jsonb);\n\\copy \
             sent from '{}'\n\
             create temporary table lines as select id, timestamp 'epoch' + at * interval '1 \
             microsecond' as timestamp, message as event_message, body from sent;\n\
             create index on lines (timestamp);\nanalyze lines;\n\\timing on\n",
            rows.display()
        );
        other.statements.write_all(load.as_bytes())?;
        Ok(other)
    }

    /// Runs a statement and returns its duration in milliseconds.
    fn run(&mut self, sql: &str) -> BenchResult<f64> {
        writeln!(
            self.statements,
            "{sql}{}",
            if sql.ends_with(';') { "" } else { ";" }
        )?;
        self.statements.flush()?;
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some(time) = line.strip_prefix("Time: ") {
                return Ok(time.split_whitespace().next().ok_or("a time")?.parse()?);
            }
            line.clear();
        }
        Err("the engine ended without an answer".into())
    }
}
