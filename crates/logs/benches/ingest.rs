//! Ingestion throughput compared with the Parquet writer alone: `cargo bench -p gantry-logs --bench
//! ingest [-- --rows N]`.
//!
//! Each round measures both on the same generated request lines. The baseline converts all lines,
//! writes one Parquet file and flushes the disk once. The store receives batches of 500 lines from
//! four concurrent appenders until every append is durable, and then runs upkeep until all lines
//! are in files. Prints medians over all rounds and bytes per row.

#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured"
)]

mod common;

use std::{env, fs, io::Write, sync::Arc, time::Duration};

use common::{BenchResult, Random, now};
use datafusion::parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use gantry_logs::{
    event::{Attributes, Event, Source},
    layout,
    store::{Batch, Options, Store},
};
use serde_json::{Value as Json, json};

const ROUNDS: usize = 3;
const ROWS: u64 = 200_000;
const APPENDERS: usize = 4;
const BATCH: usize = 500;
/// The timestamp of the first row in microseconds since 1970, at noon.
const BEGIN: i64 = 1_790_078_400_000_000;

fn main() -> BenchResult<()> {
    let arguments: Vec<_> = env::args().collect();
    let rows = match arguments.iter().position(|argument| argument == "--rows") {
        Some(at) => arguments.get(at + 1).ok_or("--rows N")?.parse()?,
        None => ROWS,
    };
    let (events, json_bytes) = generate(rows)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut plain = Vec::new();
    let mut durable = Vec::new();
    let mut flushed = Vec::new();
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        plain.push(write_parquet(&events)?);
        let measured = runtime.block_on(fill_store(&events))?;
        durable.push(measured.durable);
        flushed.push(measured.flushed);
        bytes = measured.bytes;
    }
    let plain = rows_per_second(rows, plain);
    let durable = rows_per_second(rows, durable);
    let flushed = rows_per_second(rows, flushed);
    println!("{rows} rows, median of {ROUNDS} rounds; rows per second");
    println!("Parquet writer alone   {plain:>10.0}");
    println!(
        "appended, durable      {durable:>10.0}  {:.2} x",
        durable / plain
    );
    println!(
        "appended, in files     {flushed:>10.0}  {:.2} x",
        flushed / plain
    );
    println!(
        "bytes per row: {:.0} in files, {:.0} as JSON: {:.3} x",
        bytes as f64 / rows as f64,
        json_bytes as f64 / rows as f64,
        bytes as f64 / json_bytes as f64
    );
    Ok(())
}

/// Generates request lines. Returns them and their size as JSON.
fn generate(rows: u64) -> BenchResult<(Vec<Event>, u64)> {
    let mut random = Random(1);
    let mut json_bytes = 0;
    let mut events = Vec::new();
    for row in 0..rows {
        let body = request(&mut random);
        let timestamp = BEGIN + i64::try_from(row)? * 20_000;
        let message = message(&body);
        let id = random.hex(32);
        let line = json!({
            "id": id, "timestamp": timestamp, "event_message": message, "metadata": [body],
        });
        json_bytes += line.to_string().len() as u64;
        let body = line["metadata"][0].as_object().ok_or("an object")?;
        let attributes = Attributes::of_json(body);
        events.push(Event::new(id, timestamp, Source::Edge, message, attributes));
    }
    Ok((events, json_bytes))
}

/// Returns the median throughput.
fn rows_per_second(rows: u64, mut durations: Vec<Duration>) -> f64 {
    durations.sort();
    rows as f64 / durations[durations.len() / 2].as_secs_f64()
}

/// Measures the Parquet writer alone.
fn write_parquet(events: &[Event]) -> BenchResult<Duration> {
    let folder = tempfile::tempdir()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    let begin = now();
    let mut file = fs::File::create(folder.path().join("rows.parquet"))?;
    let mut writer = ArrowWriter::try_new(&mut file, layout::schema(), Some(properties))?;
    for chunk in events.chunks(8192) {
        writer.write(&layout::batch(chunk)?)?;
    }
    writer.close()?;
    file.flush()?;
    file.sync_all()?;
    Ok(begin.elapsed())
}

/// The measurements of one round with a store.
struct StoreRound {
    /// Time until all lines were durable.
    durable: Duration,
    /// Time until all lines were in files.
    flushed: Duration,
    /// Size of the files.
    bytes: u64,
}

async fn fill_store(events: &[Event]) -> BenchResult<StoreRound> {
    let folder = tempfile::tempdir()?;
    let options = Options {
        seal_after: Duration::ZERO,
        ..Options::new(folder.path(), "bench")
    };
    let store = Arc::new(Store::open(options).await?);
    // Appenders take ownership of their batches, which are therefore cloned before the measurement.
    let mut batches: Vec<Vec<Batch>> = vec![Vec::new(); APPENDERS];
    for (at, chunk) in events.chunks(BATCH).enumerate() {
        batches[at % APPENDERS].push(Batch {
            project: "project".into(),
            events: chunk.to_vec(),
            reader_offset: None,
        });
    }
    let begin = now();
    let appenders = batches.into_iter().map(|own| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for batch in own {
                store.append(batch).await?;
            }
            Ok::<_, gantry_logs::store::StoreError>(())
        })
    });
    for appender in appenders.collect::<Vec<_>>() {
        appender.await??;
    }
    let durable = begin.elapsed();
    while store.stats(BEGIN).pending_rows > 0 {
        store.upkeep(BEGIN).await;
    }
    let flushed = begin.elapsed();
    let view = store.view("project", i64::MIN, i64::MAX).await?;
    Ok(StoreRound {
        durable,
        flushed,
        bytes: view.files.iter().map(|file| file.size).sum(),
    })
}

/// Generates the attributes of one gateway request.
fn request(random: &mut Random) -> Json {
    const CLIENTS: [&str; 3] = [
        "client-js/2.80.0",
        "client-dart/3.1.0",
        "client-swift/2.40.0",
    ];
    let path = random.skewed(&[
        "/rest/v1/messages",
        "/auth/v1/token",
        "/rest/v1/profiles",
        "/storage/v1/object/avatars",
        "/rest/v1/rpc/search",
        "/auth/v1/user",
        "/realtime/v1/websocket",
    ]);
    let search = match random.below(3) {
        0 => String::new(),
        _ => format!("?select=*&id=eq.{}", random.below(50_000)),
    };
    let agent = random.skewed(&[
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 \
         Safari/537.36",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like \
         Gecko) Mobile/15E148",
        "Dart/3.9 (dart:io)",
        "node",
        "okhttp/5.1.0",
    ]);
    let (country, city, colo) = random.skewed(&[
        ("DE", "Berlin", "TXL"),
        ("US", "Ashburn", "IAD"),
        ("IN", "Mumbai", "BOM"),
        ("BR", "São Paulo", "GRU"),
    ]);
    let client = random.below(5_000);
    let address = format!("203.{}.{}.{}", client % 200, client / 200, client * 7 % 250);
    let ray = format!("{}-{colo}", random.hex(16));
    let host = "abcdefghijklmnopqrst.example.com";
    json!({
        "request": [{
            "method": random.skewed(&["GET", "POST", "PATCH", "DELETE"]),
            "path": path,
            "search": search,
            "url": format!("https://{host}{path}{search}"),
            "host": host,
            "protocol": "https:",
            "headers": [{
                "accept": "*/*",
                "cf_connecting_ip": address,
                "cf_ipcountry": country,
                "cf_ray": ray,
                "host": host,
                "user_agent": agent,
                "x_forwarded_proto": "https",
                "x_real_ip": address,
                "x_client_info": random.skewed(&CLIENTS),
            }],
            "cf": [{
                "asn": 3320 + client % 40,
                "asOrganization": format!("Network {}", client % 40),
                "city": city,
                "colo": colo,
                "continent": "EU",
                "country": country,
                "httpProtocol": "HTTP/2",
                "clientTcpRtt": random.below(120),
                "timezone": "Europe/Berlin",
                "tlsCipher": "AEAD-AES128-GCM-SHA256",
                "tlsVersion": "TLSv1.3",
            }],
        }],
        "response": [{
            "status_code": random.skewed(&[200, 201, 204, 401, 404, 500]),
            "origin_time": 3 + random.below(40) * random.below(12),
            "headers": [{
                "cf_cache_status": "DYNAMIC",
                "cf_ray": ray,
                "content_type": "application/json; charset=utf-8",
                "content_length": random.below(20_000).to_string(),
                "date": "Mon, 21 Sep 2026 12:00:00 GMT",
                "sb_gateway_version": "1",
            }],
        }],
    })
}

fn message(body: &Json) -> String {
    let request = &body["request"][0];
    let response = &body["response"][0];
    let text = |it: &Json| it.as_str().unwrap_or_default().to_owned();
    let headers = &request["headers"][0];
    let parts = [
        &request["method"],
        &headers["cf_connecting_ip"],
        &headers["cf_ray"],
        &request["url"],
        &headers["user_agent"],
    ]
    .map(text);
    let [method, address, ray, url, agent] = parts;
    format!(
        "{method} | {} | {address} | {ray} | {url} | {agent}",
        response["status_code"]
    )
}
