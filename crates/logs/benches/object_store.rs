//! A chart over 24 hours of a large store, in an object store and on the local disk:
//! `GANTRY_BENCH_ROWS=100000000 cargo bench -p gantry-logs --bench object_store`.
//!
//! One day of a million generated lines is written to files. The other days have the same files
//! under their own names, as hard links, so that a store of any size takes the disk space of one
//! day. A server in this process answers the requests of an object store (listings of 1,000 keys,
//! ranged reads) from the same files and counts them. The benchmark fails if the chart requests an
//! object of another day, or more listings than pages of its day. Prints medians of queries with
//! empty and with filled caches, and the requests of each.
//!
//! On two processors, with 100 million lines in 200 files: 19 ms from the local disk and 20 ms from
//! the server with empty caches (1 listing, 21 reads, 3.9 MiB), 16 and 18 ms with filled ones
//! (1 listing, 17 reads). The server adds no latency of a network.

#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured"
)]

#[path = "common/server.rs"]
mod server;

mod common;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use common::{BenchResult, Random, now};
use gantry_logs::{
    Dialect, Logs, Question,
    engine::Bounds,
    event::{Attributes, Event, Source},
    object_store::ObjectStore,
    store::{Batch, Options, Store},
};
use serde_json::json;
use server::{ObjectServer, ServedObjects};

const ROWS: i64 = 100_000_000;
const ROWS_OF_A_DAY: i64 = 1_000_000;
const ROUNDS: usize = 7;
const BATCH: i64 = 500;
const DAY: i64 = 1_790_035_200_000_000;
const DAY_MICROS: i64 = 86_400_000_000;
const PROJECT: &str = "project";
/// Number of keys in a page of a listing.
const PAGE: u64 = 1_000;

const CHART: &str = "select toStartOfMinute(timestamp) as t, \
                     countIf(toInt32OrZero(log_attributes['response.status_code']) < 400) as ok, \
                     countIf(toInt32OrZero(log_attributes['response.status_code']) >= 500) as bad \
                     from logs where source = 'edge_logs' group by t order by t limit 1000";

fn main() -> BenchResult<()> {
    let rows: i64 = match env::var("GANTRY_BENCH_ROWS") {
        Ok(rows) => rows.parse()?,
        Err(_) => ROWS,
    };
    let days = (rows / ROWS_OF_A_DAY).max(1);
    let of_a_day = rows / days;
    let folder = tempfile::tempdir()?;
    let files = folder.path().join("files");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(write_day(folder.path(), &files, of_a_day))?;
    let day_files = link_days(&files, days)?;
    println!(
        "{} rows in {} files of {days} days, {day_files} files a day",
        of_a_day * days,
        day_files * days.unsigned_abs()
    );

    let local = measure(&runtime, folder.path(), &files, None)?;
    let server = ObjectServer::start(files.clone())?;
    let objects: Arc<dyn ObjectStore> = Arc::new(ServedObjects::new(server.address()));
    let remote = measure(&runtime, folder.path(), &files, Some((objects, &server)))?;

    println!(
        "{:<22}{:>12}{:>14}{:>8}{:>10}{:>8}{:>10}",
        "milliseconds", "local disk", "object store", "ratio", "listings", "reads", "MiB"
    );
    for (name, local, remote) in [
        ("empty caches", &local.cold, &remote.cold),
        ("filled caches", &local.warm, &remote.warm),
    ] {
        println!(
            "{name:<22}{:>12.1}{:>14.1}{:>8.1}{:>10}{:>8}{:>10.1}",
            local.millis,
            remote.millis,
            remote.millis / local.millis,
            remote.listings,
            remote.reads,
            remote.bytes as f64 / f64::from(1 << 20)
        );
        if remote.listings > day_files.div_ceil(PAGE) || remote.objects > day_files {
            return Err("the chart requested objects of other days".into());
        }
    }
    Ok(())
}

/// The times and requests of a query.
#[derive(Default)]
struct Measured {
    cold: QueryCost,
    warm: QueryCost,
}

#[derive(Default)]
struct QueryCost {
    millis: f64,
    listings: u64,
    reads: u64,
    bytes: u64,
    /// Number of different objects that were read.
    objects: u64,
}

/// Runs the chart with empty caches, then with filled ones.
#[expect(
    clippy::needless_pass_by_value,
    reason = "each measurement has a store of its own"
)]
fn measure(
    runtime: &tokio::runtime::Runtime,
    folder: &Path,
    files: &Path,
    remote: Option<(Arc<dyn ObjectStore>, &ObjectServer)>,
) -> BenchResult<Measured> {
    let mut measured = Measured::default();
    let mut cold = Vec::new();
    let mut warm = Vec::new();
    for _ in 0..ROUNDS {
        let options = options(folder, files, remote.as_ref().map(|(it, _)| Arc::clone(it)));
        let store = Arc::new(runtime.block_on(Store::open(options))?);
        let logs = Logs::new(store, Bounds::default())?;
        for (durations, cost) in [
            (&mut cold, &mut measured.cold),
            (&mut warm, &mut measured.warm),
        ] {
            if let Some((_, server)) = &remote {
                server.take_requests();
            }
            let question = Question {
                project: PROJECT.into(),
                dialect: Dialect::ClickHouse,
                sql: CHART.into(),
                after: DAY,
                until: DAY + DAY_MICROS - 1,
                now: DAY,
            };
            let begin = now();
            let answer = runtime.block_on(logs.query(question))?;
            durations.push(begin.elapsed());
            if answer.rows.len() < 1_000 || answer.warning().is_some() {
                return Err(format!("a chart of {} minutes", answer.rows.len()).into());
            }
            if let Some((_, server)) = &remote {
                let requests = server.take_requests();
                let day = files.join(PROJECT).join(day_name(0)?);
                for key in &requests.keys {
                    if !files.join(key).starts_with(&day) {
                        return Err(format!("{key} was read for another day").into());
                    }
                }
                cost.listings = requests.listings;
                cost.reads = requests.reads;
                cost.bytes = requests.bytes;
                cost.objects = requests.keys.len() as u64;
            }
        }
    }
    measured.cold.millis = median(cold);
    measured.warm.millis = median(warm);
    Ok(measured)
}

fn median(mut durations: Vec<Duration>) -> f64 {
    durations.sort();
    durations[durations.len() / 2].as_secs_f64() * 1e3
}

fn options(folder: &Path, files: &Path, objects: Option<Arc<dyn ObjectStore>>) -> Options {
    Options {
        retention_days: u32::MAX,
        files: Some(files.to_owned()),
        objects,
        ..Options::new(folder.join("node"), "bench")
    }
}

/// Writes the files of one day.
async fn write_day(folder: &Path, files: &Path, rows: i64) -> BenchResult<()> {
    let store = Store::open(options(folder, files, None)).await?;
    let mut random = Random(1);
    for first in (0..rows).step_by(usize::try_from(BATCH)?) {
        let last = rows.min(first + BATCH);
        let mut events = Vec::new();
        for row in first..last {
            let timestamp = DAY + 1 + row * (DAY_MICROS - 2) / rows;
            events.push(line(&mut random, timestamp)?);
        }
        let batch = Batch {
            project: PROJECT.into(),
            events,
            reader_offset: None,
        };
        store.append(batch).await?;
        if first % (BATCH * 50) == 0 {
            store.upkeep(DAY).await;
        }
    }
    // Skips all retry delays and sweep intervals of upkeep, and the grace period of merged files.
    let mut at = DAY;
    for _ in 0..20 {
        at += DAY_MICROS;
        store.upkeep(at).await;
    }
    match store.stats(at).pending_rows {
        0 => Ok(()),
        rows => Err(format!("{rows} lines are in no file").into()),
    }
}

fn line(random: &mut Random, timestamp: i64) -> BenchResult<Event> {
    let path = format!("/rest/v1/t{}", random.below(300));
    let status = random.choose(&[200, 200, 200, 201, 304, 401, 404, 500]);
    let message = format!("GET | https://abc.example{path} | {status}");
    let body = json!({
        "request": { "method": "GET", "path": path, "headers": { "user_agent": "client/1.0" } },
        "response": { "status_code": status, "origin_time": random.below(900) },
    });
    let attributes = Attributes::of_json(body.as_object().ok_or("an object")?);
    let id = random.hex(32);
    Ok(Event::new(id, timestamp, Source::Edge, message, attributes))
}

fn day_name(day: i64) -> BenchResult<String> {
    let date = chrono::DateTime::from_timestamp_micros(DAY + day * DAY_MICROS);
    Ok(date.ok_or("a date")?.format("%Y-%m-%d").to_string())
}

/// Links the files of the first day into the folders of all others. Returns their number.
fn link_days(files: &Path, days: i64) -> BenchResult<u64> {
    let own = files.join(PROJECT);
    let mut parts: Vec<(PathBuf, Vec<String>)> = Vec::new();
    for entry in fs::read_dir(own.join(day_name(0)?))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .ok_or("a name")?;
        let fields = name.split('.').map(str::to_owned).collect();
        parts.push((path, fields));
    }
    for day in 1..days {
        let folder = own.join(day_name(day)?);
        fs::create_dir(&folder)?;
        for (path, fields) in &parts {
            let mut fields = fields.clone();
            // The earliest and the latest timestamp.
            for field in &mut fields[3..5] {
                *field = (field.parse::<i64>()? + day * DAY_MICROS).to_string();
            }
            fs::hard_link(path, folder.join(fields.join(".")))?;
        }
    }
    Ok(parts.len() as u64)
}
