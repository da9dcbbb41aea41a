//! Edge Functions with the real runtime: deployment, calls, secrets, limits and logs.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
};

use gantry::{
    app::Settings,
    control::services::{self, functions::egress::EgressPorts, state::ServiceOptions},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use gantry_node::{
    kits::{Service, shelf::KitShelf},
    supervisor::namespaces_available,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::kits_with;
use crate::{
    edge::{Answer, Gate},
    functions::form,
    support::{
        Node, TestApp,
        machine::{Machine, host},
        settings,
    },
};

/// A node that runs functions of the home project.
pub(super) struct Functions {
    pub(super) gate: Gate,
    pub(super) project: ProjectRef,
    publishable: String,
    anon: String,
}

impl Functions {
    pub(super) async fn new() -> Self {
        Self::with(kits_with(Service::Functions)).await
    }

    /// Runs functions with the kits in this folder.
    pub(super) async fn with(kits: PathBuf) -> Self {
        Self::with_egress(kits, EgressPorts::default()).await
    }

    pub(super) async fn with_egress(kits: PathBuf, egress: EgressPorts) -> Self {
        Self::on(kits, egress, TestApp::another_in_real_time).await
    }

    /// Runs functions with the clock of the test.
    pub(super) async fn with_clock_of_test() -> Self {
        let kits = kits_with(Service::Functions);
        Self::on(kits, EgressPorts::default(), TestApp::another_with).await
    }

    async fn on(
        kits: PathBuf,
        egress: EgressPorts,
        another: fn(&TestApp, Settings, Arc<Machine>) -> Node,
    ) -> Self {
        let app = TestApp::new().await;
        let machine = Arc::new(Machine::new().await);
        let options = Settings {
            services: ServiceOptions {
                shelf: KitShelf::new(None, kits),
                launcher: host().launcher,
                egress,
            },
            ..settings(Transport::default(), Uuid::from_u128(12))
        };
        let mut node = another(&app, options, machine);
        node.start();
        let created = node.post("/v1/projects").as_(&app.owner);
        let created = created.json(&app.new_project("functions")).send().await;
        let project = created.expect(201).json()["ref"].clone();
        let project: ProjectRef = project.as_str().unwrap().parse().unwrap();
        let healthy = gantry::control::projects::Status::ActiveHealthy;
        node.until(&project, healthy).await;
        let path = format!("/v1/projects/{project}/api-keys?reveal=true");
        let keys = node
            .get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json();
        let key = |field: &str, value: &str| {
            let all = keys.as_array().unwrap();
            let found = all.iter().find(|key| key[field] == value).unwrap();
            found["api_key"].as_str().unwrap().to_owned()
        };
        Self {
            publishable: key("type", "publishable"),
            anon: key("id", "anon"),
            gate: Gate::of(app, node, project.clone()).await,
            project,
        }
    }

    pub(super) fn at(&self, rest: &str) -> String {
        format!("/v1/projects/{}{rest}", self.project)
    }

    /// Deploys a function that needs no token.
    pub(super) async fn deploy(&self, slug: &str, text: &str, status: u16) -> Value {
        self.deploy_files(slug, false, &[("index.ts", text)], status)
            .await
    }

    pub(super) async fn deploy_files(
        &self,
        slug: &str,
        verify_jwt: bool,
        files: &[(&str, &str)],
        status: u16,
    ) -> Value {
        let metadata = json!({"entrypoint_path": "index.ts", "verify_jwt": verify_jwt});
        self.deploy_with(slug, &metadata, files, status).await
    }

    pub(super) async fn deploy_with(
        &self,
        slug: &str,
        metadata: &Value,
        files: &[(&str, &str)],
        status: u16,
    ) -> Value {
        let path = self.at(&format!("/functions/deploy?slug={slug}"));
        let call = self.gate.node.post(&path).as_(&self.gate.app.owner);
        form(call, metadata, files)
            .send()
            .await
            .expect(status)
            .json()
    }

    pub(super) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut lines = String::new();
        for (name, value) in headers {
            lines.extend([name, ": ", value, "\r\n"]);
        }
        let mut client = self.gate.client().await;
        let host = self.gate.host();
        let text = format!("{method} /functions/v1{path} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n");
        client.send(&text).await;
        client.answer().await
    }

    /// Calls a function and returns status and body.
    pub(super) async fn call(&self, path: &str) -> (u16, String) {
        let answer = self.send("GET", path, &[]).await;
        (
            answer.status,
            String::from_utf8_lossy(&answer.body).into_owned(),
        )
    }

    async fn set_secret(&self, value: &str) {
        let call = self
            .gate
            .node
            .post(&self.at("/secrets"))
            .as_(&self.gate.app.owner);
        let body = json!([{"name": "GREETING", "value": value}]);
        call.json(&body).send().await.expect(201);
    }

    pub(super) async fn stop(mut self) {
        services::stop_all(&self.gate.node.app).await;
        self.gate.node.stop().await;
    }
}

const HELLO: &str = r#"
import { greet } from "./lib/greet.ts";
console.log("loaded");
Deno.serve({ port: 9999 }, async (request: Request): Promise<Response> => {
  const url = new URL(request.url);
  const data = url.pathname.endsWith("/file")
    ? await Deno.readTextFile(new URL("./data.txt", import.meta.url)) : "";
  console.error("called", url.pathname);
  return Response.json({
    path: url.pathname, host: url.host, greeting: greet(Deno.env.get("GREETING")), data,
    names: Object.keys(Deno.env.toObject()).sort(), body: await request.text(),
  });
});"#;

#[tokio::test]
async fn deployed_function_answers_with_its_environment_and_files() {
    let floor = Functions::new().await;
    let files = [
        ("index.ts", HELLO),
        (
            "lib/greet.ts",
            "export const greet = (name?: string) => `hello ${name}`;",
        ),
        ("data.txt", "static"),
    ];
    let deployed = floor.deploy_files("hello", true, &files, 201).await;
    assert_eq!(deployed["version"], 1);
    let key = ("apikey", floor.publishable.as_str());
    let answer = floor.send("GET", "/hello/file?x=1", &[key]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    assert_eq!(body["path"], "/hello/file");
    assert_eq!(
        (&body["greeting"], &body["data"]),
        (&json!("hello undefined"), &json!("static"))
    );
    let names: Vec<&str> = body["names"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for name in [
        "SUPABASE_URL",
        "SUPABASE_ANON_KEY",
        "SUPABASE_SERVICE_ROLE_KEY",
        "SUPABASE_PUBLISHABLE_KEYS",
        "SUPABASE_SECRET_KEYS",
        "SUPABASE_DB_URL",
        "SUPABASE_JWKS",
        "SB_EXECUTION_ID",
        "DENO_DEPLOYMENT_ID",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for name in ["PATH", "HOME", "DENO_DIR"] {
        assert!(!names.contains(&name), "{name}: {names:?}");
    }
    // A secret is in the environment of the next call.
    floor.set_secret("world").await;
    let answer = floor.send("GET", "/hello", &[key]).await.json();
    assert_eq!(answer["greeting"], "hello world");
    for (headers, code) in [
        (&[][..], "UNAUTHORIZED_NO_AUTH_HEADER"),
        (&[("apikey", "sb_secret_x")], "UNAUTHORIZED_INVALID_API_KEY"),
        (
            &[key, ("authorization", "Bearer x")],
            "UNAUTHORIZED_INVALID_JWT_FORMAT",
        ),
    ] {
        let answer = floor.send("GET", "/hello", headers).await;
        assert_eq!((answer.status, &answer.json()["code"]), (401, &json!(code)));
        assert!(
            answer
                .head
                .contains(&format!("sb-error-code: {}", code.to_lowercase()))
        );
    }
    let bearer = format!("Bearer {}", floor.anon);
    let answer = floor
        .send("GET", "/hello", &[("authorization", &bearer)])
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(floor.send("OPTIONS", "/hello", &[]).await.status, 200);
    let absent = floor.send("OPTIONS", "/absent", &[]).await;
    assert_eq!(
        (absent.status, &absent.json()["code"]),
        (404, &json!("NOT_FOUND"))
    );
    floor.stop().await;
}

#[tokio::test]
async fn new_version_answers_after_its_deployment() {
    let floor = Functions::new().await;
    for version in 1..=3 {
        let text = format!("Deno.serve(() => new Response('{version}'))");
        floor.deploy("swap", &text, 201).await;
        assert_eq!(floor.call("/swap").await, (200, version.to_string()));
    }
    // A text that is no module changes nothing.
    let refused = floor.deploy("swap", "import './absent.ts'", 400).await;
    assert!(
        refused["message"].as_str().unwrap().contains("absent.ts"),
        "{refused}"
    );
    assert_eq!(floor.call("/swap").await, (200, "3".to_owned()));
    let path = floor.at("/functions/swap");
    let call = floor.gate.node.delete(&path).as_(&floor.gate.app.owner);
    call.send().await.expect(200);
    assert_eq!(floor.call("/swap").await.0, 404);
    floor.stop().await;
}

/// The store of backups has the sources of functions, without their packages and owners.
#[tokio::test]
async fn function_in_a_recovered_folder_is_prepared_again() {
    let floor = Functions::new().await;
    let text = "Deno.serve(() => new Response('recovered'))";
    floor.deploy("kept", text, 201).await;
    assert_eq!(floor.call("/kept").await, (200, "recovered".to_owned()));
    services::stop_all(&floor.gate.node.app).await;
    let versions = floor.gate.node.machine.dir().join("functions");
    let versions = fs::read_dir(versions.join(floor.project.as_str())).unwrap();
    for version in versions {
        let version = version.unwrap().path();
        assert!(version.join("fetched").exists());
        fs::remove_dir_all(version.join("cache")).unwrap();
        fs::set_permissions(&version, Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(floor.call("/kept").await, (200, "recovered".to_owned()));
    floor.stop().await;
}

#[tokio::test]
async fn failures_have_the_published_codes_and_end_with_their_request() {
    let floor = Functions::new().await;
    let text = r#"
        export default { async fetch(request: Request) {
            const path = new URL(request.url).pathname;
            if (path.endsWith("/throw")) throw new Error("thrown");
            if (path.endsWith("/reject")) Promise.reject(new Error("stray"));
            if (path.endsWith("/exit")) Deno.exit(3);
            if (path.endsWith("/loop")) for (;;) {}
            if (path.endsWith("/heap")) { const all = []; for (;;) all.push("x".repeat(1000) + all.length); }
            if (path.endsWith("/page")) return new Response("<p>", { headers: { "content-type": "text/html" } });
            return new Response("fine");
        } };"#;
    floor.deploy("faults", text, 201).await;
    let code = async |path: &str| {
        let answer = floor.send("GET", path, &[]).await;
        (
            answer.status,
            answer.json()["code"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(
        code("/faults/throw").await,
        (500, "EDGE_FUNCTION_ERROR".to_owned())
    );
    assert_eq!(floor.call("/faults/reject").await, (200, "fine".to_owned()));
    let page = floor.send("GET", "/faults/page", &[]).await;
    assert!(page.head.contains("content-type: text/plain"), "{page:?}");
    // The next request waits for another process.
    assert_eq!(code("/faults/exit").await, (500, "WORKER_ERROR".to_owned()));
    assert_eq!(floor.call("/faults").await, (200, "fine".to_owned()));
    assert_eq!(
        code("/faults/loop").await,
        (546, "WORKER_RESOURCE_LIMIT".to_owned())
    );
    assert_eq!(floor.call("/faults").await, (200, "fine".to_owned()));
    assert_eq!(
        code("/faults/heap").await,
        (546, "WORKER_RESOURCE_LIMIT".to_owned())
    );
    // Three ended processes: this client is limited, others are not.
    assert_eq!(
        code("/faults").await,
        (429, "WORKER_ERROR_LIMIT".to_owned())
    );
    let mut other = floor.gate.client_from([127, 0, 0, 2].into()).await;
    let host = floor.gate.host();
    let text = format!("GET /functions/v1/faults HTTP/1.1\r\nHost: {host}\r\n\r\n");
    other.send(&text).await;
    assert_eq!(other.answer().await.status, 200);
    floor
        .deploy("broken", "throw new Error('at boot')", 201)
        .await;
    assert_eq!(code("/broken").await, (503, "BOOT_ERROR".to_owned()));
    floor.stop().await;
}

#[tokio::test]
async fn sandbox_denies_files_programs_and_private_networks() {
    let floor = Functions::new().await;
    let text = r#"
        const attempt = async (work: () => unknown) => {
            try { await work(); return "allowed"; } catch (error) { return (error as Error).name; }
        };
        Deno.serve(async () => Response.json({
            passwd: await attempt(() => Deno.readTextFile("/etc/passwd")),
            settings: await attempt(() => Deno.readTextFile("settings.json")),
            root: await attempt(() => [...Deno.readDirSync("/")]),
            source: await attempt(() => Deno.writeTextFile(new URL("./index.ts", import.meta.url), "x")),
            run: await attempt(() => new Deno.Command("/bin/true").output()),
            ffi: await attempt(() => Deno.dlopen("/lib/x86_64-linux-gnu/libc.so.6", {})),
            loopback: await attempt(() => Deno.connect({ hostname: "127.0.0.1", port: 443 })),
            mapped: await attempt(() => Deno.connect({ hostname: "::ffff:127.0.0.1", port: 443 })),
            metadata: await attempt(() => fetch("http://169.254.169.254/")),
            module: await attempt(() => import("https://deno.land/std/version.ts")),
        }));"#;
    floor.deploy("walls", text, 201).await;
    let (status, body) = floor.call("/walls").await;
    assert_eq!(status, 200, "{body}");
    let attempts: Value = serde_json::from_str(&body).unwrap();
    for (name, outcome) in attempts.as_object().unwrap() {
        assert_ne!(outcome, "allowed", "{name}: {attempts}");
    }
    floor.stop().await;
}

#[tokio::test]
async fn function_sees_the_name_of_its_project_instead_of_the_machine() {
    let floor = Functions::new().await;
    let text = r#"
        import os from "node:os";
        Deno.serve(() => Response.json([Deno.hostname(), os.hostname()]));"#;
    floor.deploy("names", text, 201).await;
    let (status, body) = floor.call("/names").await;
    assert_eq!(status, 200, "{body}");
    if namespaces_available() {
        let names: [String; 2] = serde_json::from_str(&body).unwrap();
        assert_eq!(names, [0, 1].map(|_| floor.project.to_string()));
    }
    floor.stop().await;
}

/// A client of the PostgreSQL protocol: asks for TLS first, as drivers do, then logs in and runs a
/// query. `open` returns a way to write and one to read.
const DATABASE_CLIENT: &str = r#"
    const url = new URL(Deno.env.get("SUPABASE_DB_URL")!);
    const text = new TextEncoder();
    const frame = (code: number, body: Uint8Array) => {
        const head = new DataView(new ArrayBuffer(8));
        head.setUint32(0, body.length + 8); head.setUint32(4, code);
        return new Uint8Array([...new Uint8Array(head.buffer), ...body]);
    };
    const ask = async (connection: any, sql: string) => {
        await connection.write(frame(80877103, new Uint8Array()));
        const declined = new TextDecoder().decode(await connection.read());
        const login = `user\0${url.username}\0database\0postgres\0\0`;
        await connection.write(frame(196608, text.encode(login)));
        const body = text.encode(`${sql}\0`);
        const head = new DataView(new ArrayBuffer(4)); head.setUint32(0, body.length + 4);
        await connection.write(new Uint8Array([81, ...new Uint8Array(head.buffer), ...body]));
        let seen = "";
        while (!seen.includes("SELECT 1")) seen += new TextDecoder("latin1").decode(await connection.read());
        return { declined, found: seen.match(/<(.*)>/)![1] };
    };
"#;

#[tokio::test]
async fn function_reaches_the_database_of_its_own_project_as_its_owner() {
    let floor = Functions::new().await;
    let by_runtime = format!(
        r#"{DATABASE_CLIENT}
        Deno.serve(async () => {{
            const plain = await Deno.connect({{ hostname: url.hostname, port: Number(url.port) }});
            const connection = {{
                write: (bytes: Uint8Array) => plain.write(bytes),
                read: async () => {{
                    const into = new Uint8Array(4096);
                    return into.subarray(0, (await plain.read(into))!);
                }},
            }};
            const sql = "select '<' || current_user || ' ' || current_database() || '>'";
            const answer = await ask(connection, sql);
            const elsewhere = url.hostname.replace(/^db\.[a-z]+/, "db.zzzzzzzzzzzzzzzzzzzz");
            const foreign = await Deno.connect({{ hostname: elsewhere, port: 5432 }})
                .then(() => "connected", () => "refused");
            return Response.json({{ ...answer, foreign, url: url.href }});
        }});"#
    );
    floor.deploy("runtime", &by_runtime, 201).await;
    let (status, body) = floor.call("/runtime").await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["found"], "postgres postgres", "{body}");
    assert_eq!(
        (&body["declined"], &body["foreign"]),
        (&json!("N"), &json!("refused"))
    );
    let host = format!("@db.{}.", floor.project);
    assert!(body["url"].as_str().unwrap().contains(&host), "{body}");

    let by_node = format!(
        r#"import net from "node:net";
        {DATABASE_CLIENT}
        const opened = (socket: any) => {{
            const pending: Uint8Array[] = [];
            let wake = () => {{}};
            socket.on("data", (bytes: Uint8Array) => {{ pending.push(bytes); wake(); }});
            return {{
                write: async (bytes: Uint8Array) => {{ socket.write(bytes); }},
                read: async () => {{
                    while (!pending.length) await new Promise<void>((done) => wake = done);
                    return pending.shift()!;
                }},
            }};
        }};
        Deno.serve(async () => {{
            const port = Number(url.port);
            const ways = [
                () => net.connect(port, url.hostname),
                () => net.connect({{ host: url.hostname, port }}),
                () => new net.Socket().connect(port, url.hostname),
            ];
            const found = [];
            for (const way of ways) {{
                const sql = "select '<' || current_user || '>'";
                found.push((await ask(opened(way()), sql)).found);
            }}
            return Response.json(found);
        }});"#
    );
    floor.deploy("node", &by_node, 201).await;
    let (status, body) = floor.call("/node").await;
    assert_eq!(
        (status, body.as_str()),
        (200, r#"["postgres","postgres","postgres"]"#)
    );

    // The variables of the platform are listed with the digests of their values.
    let path = format!("/v1/projects/{}/secrets", floor.project);
    let node = &floor.gate.node;
    let owner = &floor.gate.app.owner;
    let listed = node.get(&path).as_(owner).send().await.expect(200).json();
    let names: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "SUPABASE_ANON_KEY",
            "SUPABASE_DB_URL",
            "SUPABASE_JWKS",
            "SUPABASE_PUBLISHABLE_KEYS",
            "SUPABASE_SECRET_KEYS",
            "SUPABASE_SERVICE_ROLE_KEY",
            "SUPABASE_URL"
        ]
    );
    floor.stop().await;
}

#[tokio::test]
async fn function_reaches_the_services_of_its_own_project_only() {
    let floor = Functions::new().await;
    let other = "Deno.serve(async (request) => Response.json({ method: request.method, \
                 key: request.headers.get('apikey'), text: await request.text() }))";
    floor.deploy("other", other, 201).await;
    let text = r#"
        const base = Deno.env.get("SUPABASE_URL")!;
        const key = JSON.parse(Deno.env.get("SUPABASE_PUBLISHABLE_KEYS")!).default;
        const target = `${base}/functions/v1/other`;
        const init = { method: "POST", headers: { apikey: key }, body: "hello" };
        const early = await fetch(target, init).then((response) => response.json());
        Deno.serve(async () => {
            const status = async (sent: Promise<Response>) => (await sent).status;
            const byRequest = await (await fetch(new Request(target, init))).json();
            const absent = await status(fetch(`${base}/functions/v1/absent`));
            const wrong = { ...init, headers: { apikey: "sb_secret_wrong" } };
            const refused = await status(fetch(target, wrong));
            const path = Deno.cwd().replace(/\/i$/, "/g");
            const connection = await Deno.connect({ transport: "unix", path });
            const host = new URL(base).hostname.replace(/^[a-z]+/, "zzzzzzzzzzzzzzzzzzzz");
            const fields = `Host: ${host}\r\nConnection: close\r\n\r\n`;
            const head = `GET /functions/v1/other HTTP/1.1\r\n${fields}`;
            await connection.write(new TextEncoder().encode(head));
            const foreign = (await new Response(connection.readable).text()).split(" ")[1];
            return Response.json({ early, byRequest, absent, refused, foreign });
        });"#;
    floor.deploy("caller", text, 201).await;
    let (status, body) = floor.call("/caller").await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let answered = json!({"method": "POST", "key": floor.publishable, "text": "hello"});
    assert_eq!(
        (&body["early"], &body["byRequest"]),
        (&answered, &answered),
        "{body}"
    );
    assert_eq!(
        (&body["absent"], &body["refused"]),
        (&json!(404), &json!(401)),
        "{body}"
    );
    assert_eq!(body["foreign"], "421", "{body}");
    floor.stop().await;
}
