//! Edge Functions and their secrets: deployments, versions, bundles, downloads.

use bytes::Bytes;
use futures_util::future::join_all;
use gantry::control::services::functions::{
    eszip::{Bundle, MAGIC},
    sources::Sources,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{TestApp, client::Call};

const ESZIP: &str = "application/vnd.denoland.eszip";

/// Returns an application that runs the home project.
pub(crate) async fn app() -> TestApp {
    let app = TestApp::new().await;
    let sql = "update projects set node = $2 where ref = $1";
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&app.home.project.as_str(), &app.app.settings.node];
    app.app.db.query(sql, &values).await.unwrap();
    app
}

/// Returns a request with a form: its metadata and its files.
pub(crate) fn form(call: Call, metadata: &Value, files: &[(&str, &str)]) -> Call {
    let mut body =
        format!("--x\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n{metadata}\r\n");
    for (name, content) in files {
        body.extend([
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"",
            name,
            "\"\r\nContent-Type: application/octet-stream\r\n\r\n",
            content,
            "\r\n",
        ]);
    }
    call.header("content-type", "multipart/form-data; boundary=x")
        .body(body + "--x--\r\n")
}

/// A deployment of the function `slug` by the owner.
fn deploy(app: &TestApp, query: &str, metadata: &Value, files: &[(&str, &str)]) -> Call {
    let path = app.at(&format!("/functions/deploy?{query}"));
    form(app.post(&path).as_(&app.owner), metadata, files)
}

/// Formats a bundle as the command line tool sends it, without compression.
fn packed(files: &[(&str, &str)]) -> Vec<u8> {
    let mut sources = Sources::default();
    for (path, content) in files {
        let content = Bytes::copy_from_slice(content.as_bytes());
        sources.add(path, content).unwrap();
    }
    let archive = Bundle::write(&sources);
    // RFC 7932 §9.2: a window of 16 bits, one uncompressed meta-block, and an empty last one.
    let length = u32::try_from(archive.len() - 1).unwrap();
    assert!(length < 1 << 16);
    let head = (length << 3 | 1 << 19) << 1;
    [MAGIC, &head.to_le_bytes()[..3], &archive, &[3]].concat()
}

#[tokio::test]
async fn deployment_is_listed_counted_and_given_back() {
    let app = app().await;
    assert_eq!(
        app.get(&app.at("/functions"))
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json(),
        json!([])
    );
    let files = [
        (
            "supabase/functions/hello/index.ts",
            "Deno.serve(() => new Response('1'))",
        ),
        ("supabase/functions/hello/deno.json", "{\"imports\":{}}"),
        ("supabase/functions/_shared/a.ts", "export const a = 1"),
    ];
    let metadata = json!({
        "name": "hello", "entrypoint_path": files[0].0, "import_map_path": files[1].0,
        "static_patterns": [],
    });
    let made = deploy(&app, "slug=hello", &metadata, &files);
    let made = made.send().await.expect(201).json();
    assert_eq!(
        (
            &made["slug"],
            &made["version"],
            &made["status"],
            &made["verify_jwt"]
        ),
        (&json!("hello"), &json!(1), &json!("ACTIVE"), &json!(true))
    );
    let root = format!(
        "file:///tmp/user_fn_{}_{}_1/source/supabase/functions/hello",
        app.home.project,
        made["id"].as_str().unwrap()
    );
    assert_eq!(made["entrypoint_path"], format!("{root}/index.ts"));
    assert_eq!(made["import_map_path"], format!("{root}/deno.json"));
    assert!(made["created_at"].as_i64().unwrap() > 1_000_000_000_000);
    let again = json!({"name": "Hello", "entrypoint_path": "index.ts", "verify_jwt": false});
    let again = deploy(&app, "slug=hello", &again, &[("index.ts", "2")]);
    let again = again.send().await.expect(201).json();
    assert_eq!(
        (
            &again["id"],
            &again["version"],
            &again["name"],
            &again["verify_jwt"]
        ),
        (&made["id"], &json!(2), &json!("Hello"), &json!(false))
    );
    assert!(again.get("import_map_path").is_none(), "{again}");
    // Absent settings stay as they are.
    let third = deploy(
        &app,
        "slug=hello",
        &json!({"entrypoint_path": "index.ts"}),
        &[("index.ts", "3")],
    );
    let third = third.send().await.expect(201).json();
    assert_eq!(
        (&third["version"], &third["name"], &third["verify_jwt"]),
        (&json!(3), &json!("Hello"), &json!(false))
    );
    let listed = app
        .get(&app.at("/functions"))
        .as_(&app.read_only)
        .send()
        .await;
    assert_eq!(listed.expect(200).json(), json!([third]));
    let path = app.at("/functions/hello");
    assert_eq!(
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json(),
        third
    );
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.get(&path).as_(&app.owner).send().await.expect(404);
    app.delete(&path).as_(&app.owner).send().await.expect(404);
    // A new function of this name begins again.
    let fresh = deploy(
        &app,
        "slug=hello",
        &json!({"entrypoint_path": "index.ts"}),
        &[("index.ts", "3")],
    );
    let fresh = fresh.send().await.expect(201).json();
    assert_eq!(
        (&fresh["version"], &fresh["verify_jwt"]),
        (&json!(1), &json!(true))
    );
    assert_ne!(fresh["id"], made["id"]);
}

#[tokio::test]
async fn invalid_deployment_stores_nothing() {
    let app = app().await;
    let entry = json!({"entrypoint_path": "index.ts"});
    let fine = [("index.ts", "1")];
    for (query, metadata, files, expected) in [
        ("slug=2fa", &entry, &fine[..], "slug: "),
        ("slug=a/b", &entry, &fine, "slug: "),
        ("", &entry, &fine, "slug: "),
        ("slug=a&bundleOnly=x", &entry, &fine, "bundleOnly: "),
        ("slug=a", &json!({}), &fine, "entrypoint_path: Required"),
        (
            "slug=a",
            &json!({"entrypoint_path": "index.ts", "name": ""}),
            &fine,
            "name: ",
        ),
        ("slug=a", &entry, &[("../index.ts", "1")], "file: "),
        (
            "slug=a",
            &entry,
            &[("index.ts", "1"), ("index.ts/x", "1")],
            "file: ",
        ),
        (
            "slug=a",
            &entry,
            &[("other.ts", "1")],
            "Entrypoint path does not exist - /tmp/user_fn_",
        ),
        (
            "slug=a",
            &json!({"entrypoint_path": "../index.ts"}),
            &fine,
            "entrypoint_path: ",
        ),
    ] {
        let answer = deploy(&app, query, metadata, files)
            .send()
            .await
            .expect(400);
        assert!(
            answer.message().starts_with(expected),
            "{query}: {}",
            answer.message()
        );
    }
    let large = "x".repeat(21 << 20);
    let large = deploy(&app, "slug=a", &entry, &[("index.ts", &large)]);
    large.send().await.expect(413);
    let path = app.at("/functions/deploy?slug=a");
    let call = app.post(&path).as_(&app.owner).json(&entry);
    call.send().await.expect(415);
    let listed = app.get(&app.at("/functions")).as_(&app.owner).send().await;
    assert_eq!(listed.expect(200).json(), json!([]));
    let folder = app
        .machine
        .dir()
        .join("functions")
        .join(app.home.project.as_str());
    assert!(!folder.exists() || std::fs::read_dir(folder).unwrap().count() == 0);
}

/// Paths that are absolute, leave the folder of the function, or do so after decoding.
const OUTSIDE: &[&str] = &[
    "/etc/passwd",
    "../../../etc/passwd",
    "a/../../x.ts",
    "C:/x.ts",
    "%2e%2e/x.ts",
    "%252e%252e/x.ts",
    "a\\..\\x.ts",
    "%2fetc/passwd",
    "x%00.ts",
    "https://example.com/x.ts",
];

#[tokio::test]
async fn paths_outside_of_the_function_are_rejected_wherever_they_are_sent() {
    let app = app().await;
    let fine = [("index.ts", "1")];
    for path in OUTSIDE {
        for (field, metadata) in [
            ("entrypoint_path: ", json!({"entrypoint_path": path})),
            (
                "import_map_path: ",
                json!({"entrypoint_path": "index.ts", "import_map_path": path}),
            ),
            (
                "static_patterns.1: ",
                json!({"entrypoint_path": "index.ts", "static_patterns": ["a/*.html", path]}),
            ),
        ] {
            let answer = deploy(&app, "slug=a", &metadata, &fine).send().await;
            let message = answer.expect(400).message();
            assert!(message.starts_with(field), "{path}: {message}");
        }
        let name = path.replace('\\', "\\\\");
        let files = [fine[0], (name.as_str(), "2")];
        let metadata = json!({"entrypoint_path": "index.ts"});
        let answer = deploy(&app, "slug=a", &metadata, &files).send().await;
        let message = answer.expect(400).message();
        assert!(message.starts_with("file: "), "{path}: {message}");
    }
    let body = packed(&[("index.ts", "1")]);
    let made = format!("/functions?slug=b&name=b&entrypoint_path={SENT_ENTRY}");
    let upload = |call: Call| {
        let call = call.as_(&app.owner).header("content-type", ESZIP);
        call.body(body.clone())
    };
    upload(app.post(&app.at(&made))).send().await.expect(201);
    let urls = ["file:///src/%2e%2e/%2e%2e/etc/passwd", "file://host/x.ts"];
    for path in OUTSIDE.iter().chain(&urls) {
        let sent: String = url::form_urlencoded::byte_serialize(path.as_bytes()).collect();
        for (field, query) in [
            ("entrypoint_path: ", format!("entrypoint_path={sent}")),
            (
                "import_map_path: ",
                format!("entrypoint_path={SENT_ENTRY}&import_map_path={sent}"),
            ),
        ] {
            let create = app.post(&app.at(&format!("/functions?slug=a&name=a&{query}")));
            let update = app.patch(&app.at(&format!("/functions/b?{query}")));
            for call in [create, update] {
                let message = upload(call).send().await.expect(400).message();
                assert!(message.starts_with(field), "{path}: {message}");
            }
            // Although a text does not use them.
            let text = app.patch(&app.at(&format!("/functions/b?{query}")));
            let text = text.as_(&app.owner).json(&json!({"body": "3"}));
            text.send().await.expect(400);
        }
    }
    let listed = app.get(&app.at("/functions")).as_(&app.owner).send().await;
    let listed = listed.expect(200).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let kept = (&listed[0]["slug"], &listed[0]["version"]);
    assert_eq!(kept, (&json!("b"), &json!(1)));
}

/// URL of the first module in [`packed`].
const SENT_ENTRY: &str = "file:///src/index.ts";

#[tokio::test]
async fn paths_of_known_clients_are_accepted() {
    let app = app().await;
    let files = [
        ("supabase/functions/a/index.ts", "1"),
        ("supabase/functions/a/deno.json", "{}"),
        ("supabase/functions/a/page 100%.html", "x"),
    ];
    let metadata = json!({
        "name": "a", "entrypoint_path": "./supabase/functions/a/index.ts",
        "import_map_path": "supabase/functions/a/deno.json",
        "static_patterns": ["./supabase/functions/a/*.html", "supabase/functions/a/**/[x].txt"],
    });
    let made = deploy(&app, "slug=a", &metadata, &files).send().await;
    let made = made.expect(201).json();
    // The URLs of the response, sent again.
    let again = json!({
        "entrypoint_path": made["entrypoint_path"], "import_map_path": made["import_map_path"],
    });
    let again = deploy(&app, "slug=a", &again, &files).send().await;
    let again = again.expect(201).json();
    assert_eq!(again["version"], 2);
    let map = again["import_map_path"].as_str().unwrap();
    assert!(
        map.ends_with("_2/source/supabase/functions/a/deno.json"),
        "{map}"
    );
    // No map, and one of an earlier version.
    for map in ["", "supabase/functions/import_map.json"] {
        let metadata = json!({"entrypoint_path": files[0].0, "import_map_path": map});
        let made = deploy(&app, "slug=a", &metadata, &files).send().await;
        let made = made.expect(201).json();
        assert_eq!(made.get("import_map_path"), None, "{map}");
    }
}

#[tokio::test]
async fn concurrent_deployments_of_one_function_are_one_version() {
    let app = app().await;
    let entry = json!({"entrypoint_path": "index.ts"});
    let all = (0..8).map(|_| deploy(&app, "slug=a", &entry, &[("index.ts", "1")]).send());
    let statuses: Vec<u16> = join_all(all)
        .await
        .iter()
        .map(|one| one.status.as_u16())
        .collect();
    let made = statuses.iter().filter(|status| **status == 201).count();
    let late = statuses.iter().filter(|status| **status == 409).count();
    assert!(made >= 1 && made + late == 8, "{statuses:?}");
    let found = app
        .get(&app.at("/functions/a"))
        .as_(&app.owner)
        .send()
        .await;
    assert_eq!(found.expect(200).json()["version"], json!(made));
}

#[tokio::test]
async fn twenty_deployments_at_once_all_succeed() {
    let app = app().await;
    let entry = json!({"entrypoint_path": "index.ts"});
    let queries: Vec<String> = (0..20).map(|n| format!("slug=f{n}")).collect();
    let all = queries
        .iter()
        .map(|query| deploy(&app, query, &entry, &[("index.ts", "1")]).send());
    for answer in join_all(all).await {
        answer.expect(201);
    }
}

#[tokio::test]
async fn stored_version_becomes_live_by_the_switch() {
    let app = app().await;
    let entry = json!({"entrypoint_path": "index.ts"});
    let store = async |slug: &str, text: &str| {
        let query = format!("slug={slug}&bundleOnly=true");
        let call = deploy(&app, &query, &entry, &[("index.ts", text)]);
        call.send().await.expect(201).json()
    };
    let switch = async |body: &Value| {
        let call = app
            .request("PUT", &app.at("/functions"))
            .as_(&app.owner)
            .json(body);
        call.send().await
    };
    let first = store("a", "1").await;
    assert_eq!(
        (&first["version"], &first["status"]),
        (&json!(1), &json!("ACTIVE"))
    );
    app.get(&app.at("/functions/a"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    // A stranded version is replaced.
    let again = store("a", "2").await;
    assert_eq!((&again["version"], &again["id"]), (&json!(1), &first["id"]));
    let other = store("b", "1").await;
    // All or none.
    let mut absent = other.clone();
    absent["version"] = json!(7);
    switch(&json!([again, absent])).await.expect(400);
    app.get(&app.at("/functions/a"))
        .as_(&app.owner)
        .send()
        .await
        .expect(404);
    let switched = switch(&json!([again, other])).await.expect(200).json();
    assert_eq!(switched["functions"].as_array().unwrap().len(), 2);
    let body = app.get(&app.at("/functions/a/body")).as_(&app.owner);
    let body = body
        .header("accept", "multipart/form-data")
        .send()
        .await
        .expect(200);
    assert!(String::from_utf8_lossy(&body.body).contains("\r\n\r\n2\r\n"));
    let second = store("a", "3").await;
    assert_eq!(second["version"], 2);
    let live = app
        .get(&app.at("/functions/a"))
        .as_(&app.owner)
        .send()
        .await;
    assert_eq!(live.expect(200).json()["version"], 1);
    let mut changed = second.clone();
    changed["verify_jwt"] = json!(false);
    let switched = switch(&json!([changed])).await.expect(200).json();
    assert_eq!(switched["functions"][0]["version"], 2);
    assert_eq!(switched["functions"][0]["verify_jwt"], false);
}

#[tokio::test]
async fn bundle_is_stored_with_its_digest_and_downloaded() {
    let app = app().await;
    let body = packed(&[("hello/index.ts", "export {}"), ("deno.json", "{}")]);
    let query = "entrypoint_path=file:///src/hello/index.ts&import_map_path=file:///src/deno.json";
    let create = |query: &str, body: &[u8]| {
        let path = app.at(&format!("/functions?{query}"));
        let call = app
            .post(&path)
            .as_(&app.owner)
            .header("content-type", ESZIP);
        call.body(body.to_vec())
    };
    let create_hello = format!("slug=hello&name=Hello&verify_jwt=false&{query}");
    let made = create(&create_hello, &body).send().await.expect(201).json();
    assert_eq!(made["ezbr_sha256"], hex::encode(Sha256::digest(&body)));
    assert_eq!(
        (&made["verify_jwt"], &made["import_map"]),
        (&json!(false), &json!(true))
    );
    let again = create(&create_hello, &body).send().await.expect(400);
    assert_eq!(again.message(), "Duplicated function slug");
    let path = app.at("/functions/hello/body");
    let raw = app.get(&path).as_(&app.owner).send().await.expect(200);
    assert!(raw.body.starts_with(b"ESZIP_V2"));
    let form = app
        .get(&path)
        .as_(&app.owner)
        .header("accept", "multipart/form-data");
    let form = form.send().await.expect(200);
    let media = form.headers["content-type"].to_str().unwrap();
    assert!(
        media.starts_with("multipart/form-data; boundary="),
        "{media}"
    );
    let text = String::from_utf8_lossy(&form.body);
    for part in [
        r#"{"deno2_entrypoint_path":"source/hello/index.ts"}"#,
        r#"filename="source/hello/index.ts""#,
        r#"filename="source/deno.json""#,
        "\r\n\r\nexport {}\r\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let patch = |query: &str, body: &[u8]| {
        let path = app.at(&format!("/functions/hello?{query}"));
        let call = app
            .patch(&path)
            .as_(&app.owner)
            .header("content-type", ESZIP);
        call.body(body.to_vec())
    };
    assert_eq!(
        patch(query, &body).send().await.expect(200).json()["version"],
        2
    );
    for bad in [&b"EZBRx"[..], b"PK\x03\x04", &body[..body.len() - 20]] {
        patch(query, bad).send().await.expect(400);
    }
    let outside = patch("entrypoint_path=file:///etc/passwd", &body);
    let outside = outside.send().await.expect(400);
    assert!(
        outside.message().starts_with("Entrypoint path"),
        "{}",
        outside.message()
    );
    create("slug=x", &vec![0; 21 << 20])
        .send()
        .await
        .expect(413);
}

#[tokio::test]
async fn text_and_settings_are_changed_by_patch() {
    let app = app().await;
    let sent = json!({"slug": "a", "name": "A", "body": "1", "entrypoint_path": "x"});
    let made = app.post(&app.at("/functions")).as_(&app.owner).json(&sent);
    assert_eq!(made.send().await.expect(201).json()["version"], 1);
    let patch = async |slug: &str, body: &Value| {
        let path = app.at(&format!("/functions/{slug}"));
        app.patch(&path).as_(&app.developer).json(body).send().await
    };
    let changed = patch("a", &json!({"verify_jwt": false, "name": "B"})).await;
    let changed = changed.expect(200).json();
    assert_eq!(
        (
            &changed["version"],
            &changed["name"],
            &changed["verify_jwt"]
        ),
        (&json!(1), &json!("B"), &json!(false))
    );
    let changed = patch("a", &json!({"body": "2"})).await.expect(200).json();
    assert_eq!(
        (&changed["version"], &changed["name"]),
        (&json!(2), &json!("B"))
    );
    patch("absent", &json!({"body": "2"})).await.expect(404);
    patch("absent", &json!({"name": "x"})).await.expect(404);
}

#[tokio::test]
async fn secrets_are_listed_by_digest_and_bounded() {
    let app = app().await;
    let path = app.at("/secrets");
    let list = async || {
        app.get(&path)
            .as_(&app.owner)
            .send()
            .await
            .expect(200)
            .json()
    };
    let set = async |body: &Value| app.post(&path).as_(&app.owner).json(body).send().await;
    assert_eq!(list().await, json!([]));
    let first = json!([{"name": "A", "value": "one"}, {"name": "B", "value": "two\nlines"}]);
    let answer = set(&first).await.expect(201);
    assert!(answer.body.is_empty());
    set(&json!([{"name": "A", "value": "other"}]))
        .await
        .expect(201);
    let listed = list().await;
    assert_eq!(listed[0]["name"], "A");
    assert_eq!(listed[0]["value"], hex::encode(Sha256::digest("other")));
    assert_eq!(
        listed[1]["value"],
        hex::encode(Sha256::digest("two\nlines"))
    );
    assert!(!listed.to_string().contains("other"));
    let reserved = json!([{"name": "C", "value": "x"}, {"name": "SUPABASE_X", "value": ""}]);
    let refused = set(&reserved).await.expect(400);
    assert_eq!(
        refused.message(),
        "1.name: Secret name must not start with the SUPABASE_ prefix."
    );
    let many = |prefix: &str, count: usize| -> Value {
        let all = (0..count).map(|n| json!({"name": format!("{prefix}{n}"), "value": "x"}));
        all.collect()
    };
    set(&many("X", 101)).await.expect(400);
    let full = set(&many("X", 99)).await.expect(400);
    assert_eq!(
        full.message(),
        "You can only store 100 secrets per project at maximum."
    );
    assert_eq!(list().await.as_array().unwrap().len(), 2, "all or none");
    let delete = app.delete(&path).as_(&app.owner);
    let deleted = delete
        .json(&json!(["A", "absent"]))
        .send()
        .await
        .expect(200);
    assert!(deleted.body.is_empty());
    assert_eq!(list().await.as_array().unwrap().len(), 1);
    app.get(&path).as_(&app.stranger).send().await.expect(404);
}
