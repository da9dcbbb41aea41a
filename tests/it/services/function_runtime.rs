//! Edge Functions with the real runtime: streams, WebSockets, work after the response, files and
//! packages.

use std::{fs, os::unix::net::UnixStream, path::Path};

use gantry::control::services::{self, sweep};
use serde_json::json;

use super::{functions::Functions, until};
use crate::support::machine::{is_root, kill, processes_under};

const STREAMS: &str = r#"
let cancelled = 0;
Deno.serve((request) => {
  const path = new URL(request.url).pathname;
  if (path.endsWith("/events")) {
    let timer: number;
    const body = new ReadableStream({
      start(controller) {
        let count = 0;
        const send = () => controller.enqueue(new TextEncoder().encode(`data: ${count++}\n\n`));
        send();
        timer = setInterval(send, 10);
      },
      cancel() { clearInterval(timer); cancelled += 1; },
    });
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  }
  if (path.endsWith("/socket")) {
    const { socket, response } = Deno.upgradeWebSocket(request);
    socket.onmessage = (event) => socket.send(`echo ${event.data}`);
    return response;
  }
  if (path.endsWith("/echo")) return new Response(request.body);
  return Response.json({ cancelled });
});"#;

#[tokio::test]
async fn events_arrive_while_the_function_runs_and_a_client_that_leaves_cancels_them() {
    let floor = Functions::new().await;
    floor.deploy("streams", STREAMS, 201).await;
    let host = floor.gate.host();
    let mut client = floor.gate.client().await;
    let request = format!("GET /functions/v1/streams/events HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(&request).await;
    let text = client.read_to("data: 3").await.to_lowercase();
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    drop(client);
    until(async || floor.call("/streams").await.1 == r#"{"cancelled":1}"#).await;
    floor.stop().await;
}

#[tokio::test]
async fn process_of_the_greatest_age_takes_no_more_requests_though_it_is_in_use() {
    let floor = Functions::with_clock_of_test().await;
    let text = STREAMS.replace("{ cancelled }", "{ id: Deno.env.get('SB_EXECUTION_ID') }");
    floor.deploy("streams", &text, 201).await;
    let host = floor.gate.host();
    let mut client = floor.gate.client().await;
    let request = format!("GET /functions/v1/streams/events HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.send(&request).await;
    client.read_to("data: 1").await;
    let first = floor.call("/streams").await;
    floor.gate.app.advance(399);
    sweep::stop_idle(&floor.gate.node.app);
    assert_eq!(floor.call("/streams").await, first, "not old enough");
    floor.gate.app.advance(1);
    sweep::stop_idle(&floor.gate.node.app);
    until(async || {
        let (status, body) = floor.call("/streams").await;
        status == 200 && body != first.1
    })
    .await;
    floor.stop().await;
}

/// Returns whether a socket of a function below a folder accepts connections.
fn accepts_connections(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return accepts_connections(&path);
        }
        path.ends_with("s") && UnixStream::connect(path).is_ok()
    })
}

/// A request for a WebSocket of the function of streams.
fn web_socket(host: &str) -> String {
    format!(
        "GET /functions/v1/streams/socket HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

#[tokio::test]
async fn web_socket_waits_for_the_process_that_replaces_a_killed_one() {
    let floor = Functions::new().await;
    floor.deploy("streams", STREAMS, 201).await;
    let host = floor.gate.host();
    let folders = floor.gate.node.machine.home.socket_dir("");
    // From addresses of their own, because a process that ends is charged to the open WebSocket.
    for address in 2..5 {
        for (pid, _) in processes_under(&folders) {
            kill(pid).await;
        }
        // The kernel closes a socket after the process has ended.
        until(async || !accepts_connections(&folders)).await;
        let mut client = floor.gate.client_from([127, 0, 0, address].into()).await;
        client.send(&web_socket(&host)).await;
        let head = client.read_to("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    }
    floor.stop().await;
}

#[tokio::test]
async fn functions_go_on_during_a_restart_of_their_project() {
    let floor = Functions::new().await;
    let text = r#"
        let release;
        const released = new Promise((resolve) => release = resolve);
        Deno.serve(async (request) => {
          if (request.url.endsWith("/wait")) await released;
          if (request.url.endsWith("/release")) release();
          return new Response("fine");
        });"#;
    floor.deploy("shared", text, 201).await;
    let restart = floor.at("/restart");
    let restarted = async {
        let call = floor.gate.node.post(&restart).as_(&floor.gate.app.owner);
        call.send().await.expect(200);
        let healthy = gantry::control::projects::Status::ActiveHealthy;
        floor.gate.node.until(&floor.project, healthy).await;
        let other = floor.call("/shared").await;
        // Only the same process can release the request that waits.
        assert_eq!(floor.call("/shared/release").await.0, 200);
        other
    };
    let (waiting, other) = tokio::join!(floor.call("/shared/wait"), restarted);
    assert_eq!((waiting.0, other.0), (200, 200));
    floor.stop().await;
}

#[tokio::test]
async fn web_socket_and_body_reach_the_function() {
    let floor = Functions::new().await;
    floor.deploy("streams", STREAMS, 201).await;
    let host = floor.gate.host();
    let mut client = floor.gate.client().await;
    let request = web_socket(&host);
    client.send(&request).await;
    let head = client.read_to("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    // A masked frame of text, with a mask of zeros.
    client.send_bytes(b"\x81\x82\0\0\0\0hi").await;
    client.read_to("echo hi").await;
    let mut client = floor.gate.client().await;
    let request = format!(
        "POST /functions/v1/streams/echo HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\nhello"
    );
    client.send(&request).await;
    assert_eq!(client.answer().await.body.as_ref(), b"hello");
    floor.stop().await;
}

#[tokio::test]
async fn work_after_the_response_ends_before_the_process() {
    let floor = Functions::new().await;
    let text = r#"
        Deno.serve(() => {
            EdgeRuntime.waitUntil(new Promise((resolve) => setTimeout(() => {
                console.log("work has ended");
                resolve(0);
            }, 500)));
            return new Response("now");
        });"#;
    floor.deploy("later", text, 201).await;
    assert_eq!(floor.call("/later").await, (200, "now".to_owned()));
    // Stopped at once, it ends its work first.
    services::stop_all(&floor.gate.node.app).await;
    let mut rows = Vec::new();
    floor.gate.node.app.services.function_log.take(&mut rows);
    let texts: Vec<_> = rows.iter().map(|row| row.text.as_str()).collect();
    let (work, end) = ("work has ended", "shutdown");
    let at = |text: &str| texts.iter().position(|found| *found == text);
    assert!(at(work).is_some() && at(work) < at(end), "{texts:?}");
    floor.stop().await;
}

#[tokio::test]
async fn import_map_node_servers_and_packages_work() {
    let floor = Functions::new().await;
    let metadata = json!({
        "entrypoint_path": "functions/hello/index.ts", "import_map_path": "functions/deno.json",
        "verify_jwt": false, "static_patterns": ["functions/hello/*.html"],
    });
    let index = r#"
        import ms from "ms";
        import { name } from "shared/name.ts";
        import http from "node:http";
        const page = await Deno.readTextFile(new URL("./page.html", import.meta.url));
        const later = await import("./later.ts");
        http.createServer((request, response) => {
            response.end([ms("1h"), name, page, later.value, request.url].join(" "));
        }).listen(3000);"#;
    let files = [
        ("functions/hello/index.ts", index),
        ("functions/hello/page.html", "<p>"),
        ("functions/hello/later.ts", "export const value = 7;"),
        ("functions/_shared/name.ts", "export const name = 'shared';"),
        (
            "functions/deno.json",
            r#"{"imports": {"ms": "npm:ms@2.1.3", "shared/": "./_shared/"}}"#,
        ),
    ];
    floor.deploy_with("hello", &metadata, &files, 201).await;
    let expected = (200, "3600000 shared <p> 7 /hello/x".to_owned());
    assert_eq!(floor.call("/hello/x").await, expected);
    // The packages are in the folder of the version: a new process needs no registry.
    let folder = floor.gate.node.machine.home.functions();
    let versions = || {
        let of_project = folder.join(floor.project.as_str());
        let found = std::fs::read_dir(of_project).unwrap().flatten();
        found.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let [version] = &versions()[..] else { panic!() };
    assert!(version.join("fetched").exists() && version.join("cache/npm").exists());
    services::stop_all(&floor.gate.node.app).await;
    assert_eq!(floor.call("/hello/x").await, expected);
    // A package that is only named at run time is not fetched.
    let text = r#"Deno.serve(async () => {
        const name = ["npm:", "is-odd@3.0.1"].join("");
        try { await import(name); return new Response("loaded"); } catch { return new Response("denied"); }
    });"#;
    floor.deploy("dynamic", text, 201).await;
    assert_eq!(floor.call("/dynamic").await, (200, "denied".to_owned()));
    floor.stop().await;
}

#[tokio::test]
async fn temporary_files_are_of_the_process_and_bounded() {
    let floor = Functions::new().await;
    let text = r#"
        import { tmpdir } from "node:os";
        import { mkdtempSync } from "node:fs";
        const chunk = new Uint8Array(16 << 20).fill(1);
        Deno.serve(async (request) => {
            if (request.url.endsWith("/exit")) Deno.exit(0);
            const made = await Deno.makeTempDir();
            await Deno.writeTextFile(`${made}/a.txt`, "kept");
            const node = mkdtempSync(`${tmpdir()}/x-`);
            const names = [...Deno.readDirSync("/tmp")].map((entry) => entry.name);
            let [written, refused] = [0, ""];
            if (request.url.endsWith("/fill")) {
                try {
                    const next = () => Deno.writeFile(`${made}/${written}`, chunk);
                    for (; written < 64; written++) await next();
                } catch (error) { refused = (error as Error).message; }
            }
            const read = await Deno.readTextFile(`${made}/a.txt`);
            return Response.json({ made, node, read, names, written, refused });
        });"#;
    floor.deploy("files", text, 201).await;
    let answered = async |path: &str| {
        let (status, body) = floor.call(path).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let first = answered("/files").await;
    assert_eq!(first["read"], "kept", "{first}");
    let made = first["made"].as_str().unwrap();
    assert!(
        made.starts_with("/tmp/") || made.contains("/tmp/"),
        "{made}"
    );
    if !is_root() {
        return floor.stop().await;
    }
    // They are not those of the machine, and do not take more than their share of memory.
    assert!(!std::path::Path::new(made).exists());
    let full = answered("/files/fill").await;
    let written = full["written"].as_u64().unwrap();
    assert!((8..=16).contains(&written), "{full}");
    assert!(
        full["refused"].as_str().unwrap().contains("os error 28"),
        "{full}"
    );
    // They end with the process.
    floor.call("/files/exit").await;
    let next = answered("/files").await;
    let names = next["names"].as_array().unwrap();
    assert!(
        !names.contains(&json!(made.trim_start_matches("/tmp/"))),
        "{next}"
    );
    floor.stop().await;
}

#[tokio::test]
async fn imports_of_types_only_are_not_fetched() {
    let floor = Functions::new().await;
    // As the command line tool creates functions: without a way to the registry, both fail.
    let index = r#"
        import "jsr:@supabase/functions-js-absent/edge-runtime.d.ts";
        import "@absent/types/edge-runtime.d.ts";
        import type { Missing } from "jsr:@absent/types@1";
        Deno.serve((_: Request) => new Response(typeof ({} as Missing)));"#;
    let config = r#"{ "imports": { "@absent/types": "jsr:@absent/types@^2" } // pinned
    }"#;
    let files = [("index.ts", index), ("deno.json", config)];
    floor.deploy_files("types", false, &files, 201).await;
    assert_eq!(floor.call("/types").await, (200, "object".to_owned()));
    // The files are returned as they were sent.
    let path = floor.at("/functions/types/body");
    let body = floor.gate.node.get(&path).as_(&floor.gate.app.owner);
    let body = body.send().await.expect(200);
    let text = String::from_utf8_lossy(&body.body).into_owned();
    assert!(
        text.contains("// pinned") && !text.contains(".gantry-"),
        "{text}"
    );
    floor.stop().await;
}
