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

use common::{Dice, Outcome, now};
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

fn main() -> Outcome<()> {
    let arguments: Vec<_> = env::args().collect();
    let rows = match arguments.iter().position(|argument| argument == "--rows") {
        Some(place) => arguments.get(place + 1).ok_or("--rows N")?.parse()?,
        None => ROWS,
    };
    let mut json_bytes = 0;
    let mut events = Vec::new();
    let mut dice = Dice(1);
    for row in 0..rows {
        let body = request(&mut dice);
        let stamp = BEGIN + i64::try_from(row)? * 20_000;
        let message = message(&body);
        let sent = json!({ "id": dice.hex(32), "timestamp": stamp, "event_message": message, "metadata": [body] });
        json_bytes += sent.to_string().len() as u64;
        let attributes = Attributes::of_json(sent["metadata"][0].as_object().ok_or("an object")?);
        let id = sent["id"].as_str().unwrap_or_default().to_owned();
        events.push(Event::new(id, stamp, Source::Edge, message, attributes));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let (mut plain, mut durable, mut filed, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        plain.push(alone(&events)?);
        let (until_durable, until_filed, taken) = runtime.block_on(kept(&events))?;
        durable.push(until_durable);
        filed.push(until_filed);
        bytes = taken;
    }
    let each = |total: u64| total as f64 / rows as f64;
    let rate = |mut all: Vec<Duration>| {
        all.sort();
        rows as f64 / all[all.len() / 2].as_secs_f64()
    };
    let (plain, durable, filed) = (rate(plain), rate(durable), rate(filed));
    println!("{rows} rows, {ROUNDS} rounds in turns; rows a second");
    println!("Parquet writer alone   {plain:>10.0}");
    println!(
        "appended, durable      {durable:>10.0}  {:.2} x",
        durable / plain
    );
    println!(
        "appended, in files     {filed:>10.0}  {:.2} x",
        filed / plain
    );
    println!(
        "bytes a row: {:.0} in files, {:.0} as JSON: {:.3} x",
        each(bytes),
        each(json_bytes),
        each(bytes) / each(json_bytes)
    );
    Ok(())
}

/// Measures the Parquet writer alone.
fn alone(events: &[Event]) -> Outcome<Duration> {
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

/// Measures the store: the time until all lines are durable, the time until all are in files, and
/// the size of the files.
async fn kept(events: &[Event]) -> Outcome<(Duration, Duration, u64)> {
    let folder = tempfile::tempdir()?;
    let options = Options {
        seal_after: Duration::ZERO,
        ..Options::new(folder.path(), "bench")
    };
    let store = Arc::new(Store::open(options).await?);
    // Appenders take ownership of their batches, which are therefore cloned before the measurement.
    let mut shares: Vec<Vec<Batch>> = vec![Vec::new(); APPENDERS];
    for (at, chunk) in events.chunks(BATCH).enumerate() {
        shares[at % APPENDERS].push(Batch {
            project: "project".into(),
            events: chunk.to_vec(),
            mark: None,
        });
    }
    let begin = now();
    let appenders = shares.into_iter().map(|share| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for batch in share {
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
    let filed = begin.elapsed();
    let view = store.view("project", i64::MIN, i64::MAX).await?;
    Ok((
        durable,
        filed,
        view.files.iter().map(|file| file.size).sum(),
    ))
}

/// Generates the attributes of one gateway request.
fn request(dice: &mut Dice) -> Json {
    let path = dice.skewed(&[
        "/rest/v1/messages",
        "/auth/v1/token",
        "/rest/v1/profiles",
        "/storage/v1/object/avatars",
        "/rest/v1/rpc/search",
        "/auth/v1/user",
        "/realtime/v1/websocket",
    ]);
    let search = match dice.below(3) {
        0 => String::new(),
        _ => format!("?select=*&id=eq.{}", dice.below(50_000)),
    };
    let agent = dice.skewed(&[
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 26_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
        "Dart/3.9 (dart:io)",
        "node",
        "okhttp/5.1.0",
    ]);
    let (country, city, colo) = dice.skewed(&[
        ("DE", "Berlin", "TXL"),
        ("US", "Ashburn", "IAD"),
        ("IN", "Mumbai", "BOM"),
        ("BR", "São Paulo", "GRU"),
    ]);
    let client = dice.below(5_000);
    let address = format!("203.{}.{}.{}", client % 200, client / 200, client * 7 % 250);
    let (ray, host) = (
        format!("{}-{colo}", dice.hex(16)),
        "abcdefghijklmnopqrst.example.com",
    );
    json!({
        "request": [{
            "method": dice.skewed(&["GET", "POST", "PATCH", "DELETE"]),
            "path": path, "search": search, "url": format!("https://{host}{path}{search}"), "host": host, "protocol": "https:",
            "headers": [{
                "accept": "*/*", "cf_connecting_ip": address, "cf_ipcountry": country, "cf_ray": ray, "host": host,
                "user_agent": agent, "x_forwarded_proto": "https", "x_real_ip": address,
                "x_client_info": dice.skewed(&["client-js/2.80.0", "client-dart/3.1.0", "client-swift/2.40.0"]),
            }],
            "cf": [{
                "asn": 3320 + client % 40, "asOrganization": format!("Network {}", client % 40), "city": city, "colo": colo,
                "continent": "EU", "country": country, "httpProtocol": "HTTP/2", "clientTcpRtt": dice.below(120),
                "timezone": "Europe/Berlin", "tlsCipher": "AEAD-AES128-GCM-SHA256", "tlsVersion": "TLSv1.3",
            }],
        }],
        "response": [{
            "status_code": dice.skewed(&[200, 201, 204, 401, 404, 500]), "origin_time": 3 + dice.below(40) * dice.below(12),
            "headers": [{
                "cf_cache_status": "DYNAMIC", "cf_ray": ray, "content_type": "application/json; charset=utf-8",
                "content_length": dice.below(20_000).to_string(), "date": "Mon, 21 Sep 2026 12:00:00 GMT", "sb_gateway_version": "1",
            }],
        }],
    })
}

fn message(body: &Json) -> String {
    let (request, response) = (&body["request"][0], &body["response"][0]);
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
