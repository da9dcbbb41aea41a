//! Edge Functions with the real runtime: hostile code, and deployments that fail.

use std::{
    fs,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use gantry::control::services;
use gantry_base::ids::ProjectId;
use gantry_node::kits::{Service, manifest::Manifest, shelf::KitShelf};
use serde_json::{Value, json};

use super::{functions::Functions, kits_with, until};
use crate::support::machine::host;

/// Makes a kit with a runtime that permits everything, so that only the walls of the kernel remain.
fn open_kit(place: &Path) -> PathBuf {
    let real = KitShelf::new(None, kits_with(Service::Functions));
    let real = real.find(Service::Functions).unwrap().unwrap();
    let folder = place.join("functions").join(&real.version);
    fs::create_dir_all(folder.join("bin")).unwrap();
    let program = folder.join("bin/deno");
    if fs::hard_link(real.program(), &program).is_err() {
        fs::copy(real.program(), &program).unwrap();
    }
    for path in [
        place,
        &place.join("functions"),
        &folder,
        &folder.join("bin"),
    ] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let manifest = Manifest::built_in(Service::Functions).unwrap();
    // Permissions for all paths take precedence over those for some, which Gantry adds.
    let all = [
        "env", "ffi", "import", "net", "read=/", "run", "sys", "write=/",
    ];
    let is_kept =
        |argument: &String| !argument.starts_with("--allow") && !argument.starts_with("--deny");
    let mut open: Vec<String> = manifest.arguments.into_iter().filter(is_kept).collect();
    let at = open.len() - 1;
    open.splice(
        at..at,
        all.map(|permission| format!("--allow-{permission}")),
    );
    let environment: Vec<String> = manifest
        .environment
        .iter()
        .map(|(name, value)| format!("{name} = {}", json!(value)))
        .collect();
    let text = format!(
        "kit = \"functions\"\nprogram = \"bin/deno\"\narguments = {}\nidle_minutes = 1\n\
         memory_mb = 768\nstop = {{ seconds = 6 }}\n[environment]\n{}\n",
        json!(open),
        environment.join("\n")
    );
    fs::write(folder.join("kit.toml"), text).unwrap();
    place.to_owned()
}

/// A function that makes every attempt, and answers with the name of each error.
const ATTEMPTS: &str = r#"
const attempt = async (work: () => unknown) => {
  try { await work(); return "allowed"; } catch (error) { return `denied: ${(error as Error).name}`; }
};
Deno.serve(async () => Response.json({
  shadow: await attempt(() => Deno.readTextFile("/etc/shadow")),
  list: await attempt(() => [...Deno.readDirSync("/proc")]),
  environ: await attempt(() => Deno.readTextFile("/proc/1/environ")),
  control: await attempt(() => [...Deno.readDirSync("CONTROL")]),
  source: await attempt(() => Deno.writeTextFile(new URL("./index.ts", import.meta.url), "x")),
  foreign: await attempt(() => Deno.writeTextFile("/var/tmp/gantry-function", "x")),
  signal: await attempt(() => Deno.kill(PID, "SIGCONT")),
  program: await attempt(() => new Deno.Command("/bin/true").output()),
  connect: await attempt(() => Deno.connect({ hostname: "127.0.0.1", port: PORT })),
  fetch: await attempt(() => fetch("http://127.0.0.1:PORT/")),
  listen: await attempt(() => (0, eval)("Deno").listen({ transport: "tcp", port: 24999 }).accept),
  node: await attempt(async () => {
    const net = await import("node:net");
    await new Promise((resolve, reject) => net.connect(PORT, "127.0.0.1", () => resolve(0)).on("error", reject));
  }),
  database: await attempt(() => Deno.connect({ transport: "unix", path: "DATABASE" })),
  module: await attempt(() => import(["https:", "//example.com/x.ts"].join(""))),
}));"#;

async fn attempts(floor: &Functions) -> Value {
    let machine = &floor.gate.node.machine;
    let database = machine.home.socket(floor.project.as_str());
    let text = ATTEMPTS
        .replace(
            "CONTROL",
            &machine.home.dir().join("projects").display().to_string(),
        )
        .replace("PORT", &floor.gate.https.port().to_string())
        .replace("DATABASE", &database.display().to_string())
        .replace("PID", &std::process::id().to_string());
    floor.deploy("walls", &text, 201).await;
    let (status, body) = floor.call("/walls").await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn walls_of_the_kernel_do_not_depend_on_the_runtime() {
    if !host().launcher.sandbox {
        return;
    }
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    for kits in [kits_with(Service::Functions), open_kit(place.path())] {
        let floor = Functions::with(kits.clone()).await;
        let outcomes = attempts(&floor).await;
        for (name, outcome) in outcomes.as_object().unwrap() {
            // `Deno.listen` of the preloaded module listens on the socket of the instance.
            let is_expected = name == "listen" || outcome.as_str().unwrap().starts_with("denied");
            assert!(is_expected, "{name}: {outcomes} with {}", kits.display());
        }
        floor.stop().await;
    }
}

#[tokio::test]
async fn function_without_egress_reaches_only_the_services_of_its_project() {
    let egress = "none".parse().unwrap();
    let floor = Functions::with_egress(kits_with(Service::Functions), egress).await;
    floor
        .deploy("own", "Deno.serve(() => new Response('reached'))", 201)
        .await;
    let text = r#"
        const attempt = async (work: () => Promise<unknown>) => {
            try { return await work(); } catch (error) { return (error as Error).name; }
        };
        const own = `${Deno.env.get("SUPABASE_URL")}/functions/v1/own`;
        Deno.serve(async () => Response.json([
            await attempt(() => fetch(own).then((response) => response.text())),
            await attempt(() => Deno.connect({ hostname: "192.0.2.1", port: 443 })),
            await attempt(() => Deno.resolveDns("example.com", "A")),
        ]));"#;
    floor.deploy("offline", text, 201).await;
    let (status, body) = floor.call("/offline").await;
    let outcomes: Vec<String> = serde_json::from_str(&body).unwrap();
    assert_eq!((status, outcomes[0].as_str()), (200, "reached"), "{body}");
    if host().launcher.sandbox {
        assert_eq!(outcomes[1], "PermissionDenied", "{body}");
    }
    floor.stop().await;
}

#[tokio::test]
async fn memory_of_typed_arrays_is_bounded_and_neighbours_answer() {
    let floor = Functions::new().await;
    let text = r"
        const all: Uint8Array[] = [];
        Deno.serve(() => { for (;;) all.push(new Uint8Array(64 << 20).fill(1)); });";
    floor.deploy("hungry", text, 201).await;
    floor
        .deploy("calm", "Deno.serve(() => new Response('fine'))", 201)
        .await;
    let hungry = floor.call("/hungry");
    let calm = join_all((0..20).map(|_| floor.call("/calm")));
    let ((status, body), calm) = tokio::join!(hungry, calm);
    assert_eq!(status, 546, "{body}");
    assert!(
        calm.iter()
            .all(|answer| *answer == (200, "fine".to_owned())),
        "{calm:?}"
    );
    floor.stop().await;
}

#[tokio::test]
async fn deployment_without_a_registry_names_the_module_and_changes_nothing() {
    let floor = Functions::new().await;
    floor
        .deploy("stays", "Deno.serve(() => new Response('old'))", 201)
        .await;
    for import in [
        "https://registry.invalid/x.ts",
        "npm:@gantry-absent/package@1.0.0",
    ] {
        let text = format!("import '{import}'; Deno.serve(() => new Response('new'))");
        let refused = floor.deploy("stays", &text, 400).await;
        let message = refused["message"].as_str().unwrap();
        let name = import.trim_start_matches("npm:").trim_end_matches("@1.0.0");
        let name = name.trim_start_matches("http://").trim_end_matches("/x.ts");
        assert!(message.contains(name), "{message}");
        assert_eq!(floor.call("/stays").await, (200, "old".to_owned()));
    }
    // The files of the refused versions are gone.
    let folder = floor.gate.node.machine.home.functions();
    let folder = folder.join(floor.project.as_str());
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    floor.stop().await;
}

#[tokio::test]
async fn deployment_on_a_full_disk_is_an_error_and_the_old_version_answers() {
    let floor = Functions::new().await;
    floor
        .deploy("stays", "Deno.serve(() => new Response('old'))", 201)
        .await;
    // A file in the place of the folder: nothing can be written there, as on a full disk.
    let folder = floor.gate.node.machine.home.functions();
    let folder = folder.join(floor.project.as_str());
    let aside = folder.with_extension("aside");
    fs::rename(&folder, &aside).unwrap();
    fs::write(&folder, "").unwrap();
    floor
        .deploy("stays", "Deno.serve(() => new Response('new'))", 500)
        .await;
    assert_eq!(floor.gate.app.log.take_errors().len(), 1);
    fs::remove_file(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    assert_eq!(floor.call("/stays").await, (200, "old".to_owned()));
    floor
        .deploy("stays", "Deno.serve(() => new Response('new'))", 201)
        .await;
    until(async || floor.call("/stays").await == (200, "new".to_owned())).await;
    floor.stop().await;
}

#[tokio::test]
async fn concurrent_deployments_that_start_processes_are_one_version() {
    let floor = Functions::new().await;
    let texts = (0..4).map(|n| format!("Deno.serve(() => new Response('{n}'))"));
    let texts: Vec<String> = texts.collect();
    let metadata = json!({"entrypoint_path": "index.ts", "verify_jwt": false});
    let path = floor.at("/functions/deploy?slug=race");
    let sent = join_all(texts.iter().map(|text| {
        let call = floor.gate.node.post(&path).as_(&floor.gate.app.owner);
        crate::functions::form(call, &metadata, &[("index.ts", text)]).send()
    }))
    .await;
    let statuses: Vec<u16> = sent.iter().map(|answer| answer.status.as_u16()).collect();
    let won = statuses.iter().position(|status| *status == 201).unwrap();
    let lost = statuses.iter().filter(|status| **status == 409).count();
    assert_eq!(lost, 3, "{statuses:?}");
    assert_eq!(floor.call("/race").await, (200, won.to_string()));
    floor.stop().await;
}

/// Requests a second of the hostile caller.
const HOSTILE_RATE: u64 = 10;

#[tokio::test]
async fn caller_whose_requests_end_the_process_leaves_others_their_answers() {
    let floor = Functions::new().await;
    let text = r#"
        Deno.serve((request) => {
            if (request.url.endsWith("/exit")) Deno.exit(3);
            return new Response("fine");
        });"#;
    floor.deploy("shared", text, 201).await;
    let host = floor.gate.host();
    let from = async |last: u8, path: &str| {
        let mut client = floor.gate.client_from([127, 0, 0, last].into()).await;
        let text = format!("GET /functions/v1{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.send(&text).await;
        client.answer().await
    };
    let mut pace = tokio::time::interval(Duration::from_millis(1000 / HOSTILE_RATE));
    let hostile = async {
        let mut statuses = Vec::new();
        for _ in 0..8 * HOSTILE_RATE {
            pace.tick().await;
            statuses.push(from(2, "/shared/exit").await);
        }
        statuses
    };
    let is_over = AtomicBool::new(false);
    let others = async {
        let mut statuses = Vec::new();
        while !is_over.load(Ordering::SeqCst) {
            statuses.extend(join_all((3..6).map(|last| from(last, "/shared"))).await);
        }
        statuses
    };
    let hostile = async {
        let statuses = hostile.await;
        is_over.store(true, Ordering::SeqCst);
        statuses
    };
    let (hostile, others) = tokio::join!(hostile, others);
    let ended = hostile.iter().filter(|one| one.status == 500).count();
    let limited = hostile.iter().find(|one| one.status == 429).unwrap();
    // Three units, each of which the requests in flight of up to four callers share. More, while
    // another caller has as many, but fewer than slow the version.
    assert!((3..20).contains(&ended), "{ended}");
    assert!(limited.head.contains("retry-after: "), "{limited:?}");
    assert_eq!(limited.json()["code"], "WORKER_ERROR_LIMIT");
    let succeeded = others.iter().filter(|one| one.status == 200).count();
    let percent = succeeded * 100 / others.len();
    let failed = others.iter().find(|one| one.status != 200);
    assert!(percent >= 95, "{succeeded} of {}, {failed:?}", others.len());
    // A request in flight fails alone, and the spare answers the next one.
    let answer = from(9, "/shared/exit").await;
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (500, &json!("WORKER_ERROR"))
    );
    assert_eq!(from(10, "/shared").await.status, 200);
    floor.stop().await;
}

#[tokio::test]
async fn health_names_a_function_that_ends_for_many_callers() {
    let floor = Functions::with_clock_of_test().await;
    let text = "Deno.serve(() => Deno.exit(3));";
    floor.deploy("frail", text, 201).await;
    let health = async || {
        let path = floor.at("/health?services=db");
        let call = floor.gate.node.get(&path).as_(&floor.gate.app.owner);
        call.send().await.expect(200).json()[0].clone()
    };
    let names_it = |health: &Value| health["error"].to_string().contains("function frail ended");
    assert!(!names_it(&health().await));
    let host = floor.gate.host();
    for last in 2..22 {
        let mut client = floor.gate.client_from([127, 0, 0, last].into()).await;
        let text = format!("GET /functions/v1/frail HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.send(&text).await;
        assert_eq!(client.answer().await.status, 500);
    }
    // The end of the last process is noticed after its answer.
    let sql = "select id from projects where ref = $1";
    let control = &floor.gate.node.app;
    let rows = control.db.query(sql, &[&floor.project.as_str()]).await;
    let id = ProjectId(rows.unwrap()[0].get(0));
    until(async || !services::function_notes(control, id).is_empty()).await;
    let slowed = health().await;
    assert!(names_it(&slowed), "{slowed}");
    assert_eq!(slowed["status"], "ACTIVE_HEALTHY");
    floor.gate.app.advance(60);
    assert!(!names_it(&health().await));
    floor.stop().await;
}
