//! DNS-01 challenges: hostnames delegated to the operator's zone, and the wildcard certificate.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use gantry::{
    control::domains::{
        hostnames::{dns::DnsResolver, hostname_reconciler},
        zone::{self, Zone, ZoneWriter, challenge_name},
    },
    platform::sealing::SealingKey,
};
use serde_json::json;

use super::{
    Client, connect,
    orders::{HOST, Town, checked},
    trusting,
};
use crate::support::{
    Node,
    knot::{KEY, Knot},
    pebble::free,
};

/// Zone of the challenge records and of the hostname.
const ZONE: &str = "customer.test";

/// Way to update the zone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Update,
    Hook,
}

/// Writes a hook that runs `knsupdate` and logs its arguments.
fn hook(dir: &Path, knot: &Knot) -> zone::ZoneHook {
    let program = dir.join("hook");
    let port = knot.address.port();
    let text = format!(
        "#!/bin/sh\necho \"$1 $2 $#\" >> {dir}/hooked\nenv >> {dir}/environment\n\
         [ \"$1\" = present ] && verb=add || verb=del\n\
         printf 'server 127.0.0.1 %s\\norigin {ZONE}.\\nzone {ZONE}.\\n%s %s. 10 TXT \"%s\"\\nsend\\n' {port} $verb \"$2\" \"$3\" | knsupdate -y {KEY}\n",
        dir = dir.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    zone::ZoneHook::new(&program).unwrap()
}

/// Starts an authority that queries Knot DNS and cannot reach the proxy.
async fn town(by: By, wildcard: bool, more: impl FnOnce(&str) -> String) -> (Town, Knot) {
    let mut knot = None;
    let town = Town::over(true, async |dir, project, settings| {
        // Sealing key and project are known, so the delegation record is known as well.
        let place = place(&settings.sealing, project);
        let name = if wildcard { "example.test" } else { ZONE };
        let server = Knot::start(dir, name, &more(&place)).await;
        let writer = match by {
            By::Update => {
                ZoneWriter::Update(server.address, zone::TsigKey::read(&server.key).unwrap())
            }
            By::Hook => ZoneWriter::Hook(hook(dir, &server)),
        };
        let authority = settings.authority.as_mut().unwrap();
        authority.zone = Some(Zone::new(name, writer).unwrap());
        authority.wildcard = wildcard;
        let address = server.address;
        knot = Some(server);
        address
    })
    .await;
    let knot = knot.unwrap();
    *town.said.zone.lock() = Some(Arc::new(
        DnsResolver::with_port(&[knot.address], knot.address.port()).unwrap(),
    ));
    (town, knot)
}

/// Returns the name of the hostname's challenge record.
fn place(sealing: &SealingKey, project: &str) -> String {
    let writer = ZoneWriter::Update(
        ([127, 0, 0, 1], 1).into(),
        zone::TsigKey::parse(KEY).unwrap(),
    );
    Zone::new(ZONE, writer)
        .unwrap()
        .place(sealing, HOST, project)
}

fn delegated(place: &str) -> String {
    format!("{}. CNAME {place}.\n", challenge_name(HOST))
}

/// Runs the reconciler until a condition holds. The clock stands still, because name servers reject
/// updates with another time.
async fn until(town: &Town, node: &Node, what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..10 {
        for sql in DUE {
            town.app
                .app
                .db
                .query(sql, &[&town.app.clock.now()])
                .await
                .unwrap();
        }
        hostname_reconciler::pass(&node.app).await.unwrap();
        town.node.app.set_subscribed(true);
        if holds().await {
            return;
        }
    }
    panic!("not {what}: {}", town.ask("").await);
}

const DUE: [&str; 3] = [
    "update custom_hostnames set not_before = $1",
    "update wildcards set not_before = $1",
    "update acme_answers set not_before = $1",
];

async fn certified(town: &Town, node: &Node) {
    until(town, node, "certified", async || {
        town.ask("").await["status"] == "4_origin_setup_completed"
    })
    .await;
}

async fn answers(town: &Town) -> i64 {
    town.app
        .app
        .db
        .query("select count(*) from acme_answers", &[])
        .await
        .unwrap()[0]
        .get(0)
}

#[tokio::test]
async fn delegated_challenge_needs_no_open_port() {
    for by in [By::Update, By::Hook] {
        let (town, knot) = town(by, false, delegated).await;
        town.prove().await;
        let (_, check) = checked(&town.ask("/checks").await, "delegation");
        assert_eq!(check["status"], "passed", "{check}");
        certified(&town, &town.node).await;
        assert_eq!(town.pebble.said("set VALID by completed challenge"), 1);
        connect(town.https, HOST, trusting(&town.roots))
            .await
            .unwrap();
        hostname_reconciler::pass(&town.node.app).await.unwrap();
        let place = place(&town.settings.sealing, town.app.home.project.as_str());
        assert_eq!(
            (answers(&town).await, knot.texts(&place).await.unwrap()),
            (0, vec![]),
            "nothing is left there"
        );
        if by == By::Hook {
            let said = |file| fs::read_to_string(town.app.machine.dir().join(file)).unwrap();
            assert_eq!(
                said("hooked"),
                format!("present {place} 3\ncleanup {place} 3\n")
            );
            let names = said("environment")
                .lines()
                .filter(|line| !line.starts_with("PATH=") && !line.starts_with("LANG="))
                .count();
            // Variables that the shell itself sets: PWD, OLDPWD, SHLVL, _.
            assert!(
                names <= 8 && !said("environment").contains("CARGO"),
                "{}",
                said("environment")
            );
        }
    }
}

#[tokio::test]
async fn deleted_hostname_has_its_challenge_records_removed() {
    let (town, knot) = town(By::Update, false, delegated).await;
    let place = place(&town.settings.sealing, town.app.home.project.as_str());
    town.prove().await;
    let sql = "insert into acme_answers (name, value, hostname_id, not_before, created_at) select $1, 'left', id, $2, $2 from custom_hostnames";
    town.app
        .app
        .db
        .query(sql, &[&place, &town.app.clock.now()])
        .await
        .unwrap();
    let zone = town
        .settings
        .authority
        .as_ref()
        .unwrap()
        .zone
        .clone()
        .unwrap();
    zone.write(
        zone::RecordChange::Present,
        &place,
        "left",
        (town.app.clock.now(), 7),
    )
    .await
    .unwrap();
    assert_eq!(knot.texts(&place).await.unwrap(), ["left"]);
    town.node
        .delete(&town.app.at("/custom-hostname"))
        .as_(&town.app.owner)
        .send()
        .await
        .expect(200);
    hostname_reconciler::pass(&town.node.app).await.unwrap();
    assert_eq!(
        (answers(&town).await, knot.texts(&place).await.unwrap()),
        (0, vec![])
    );
}

#[tokio::test]
async fn unusable_delegation_falls_back_to_http() {
    let (town, _knot) = town(By::Update, false, |_| {
        format!(
            "{}. CNAME {}.{ZONE}.\n",
            challenge_name(HOST),
            "f".repeat(40)
        )
    })
    .await;
    town.prove().await;
    let (_, check) = checked(&town.ask("/checks").await, "delegation");
    assert_eq!(check["status"], "optional");
    assert!(
        check["next_action"].as_str().unwrap().contains(&place(
            &town.settings.sealing,
            town.app.home.project.as_str()
        )),
        "{check}"
    );
    until(&town, &town.node, "refused", async || {
        town.ask("").await["status"] == "2_initiated"
    })
    .await;
    let told = town.ask("").await;
    assert!(
        told["data"]["result"]["ssl"]["validation_errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("/.well-known/acme-challenge/"),
        "by HTTP: {told}"
    );
    assert_eq!(answers(&town).await, 0);
}

#[tokio::test]
async fn unwritable_zone_postpones_the_order() {
    let (mut town, _knot) = town(By::Update, false, delegated).await;
    let writer = ZoneWriter::Update(
        ([127, 0, 0, 1], free()).into(),
        zone::TsigKey::parse(KEY).unwrap(),
    );
    let authority = town.settings.authority.as_mut().unwrap();
    let right = authority.zone.replace(Zone::new(ZONE, writer).unwrap());
    let broken = town
        .app
        .another_with(town.settings.clone(), town.app.machine.clone());
    town.prove().await;
    let told_why =
        async || town.ask("").await["data"]["result"]["ssl"]["validation_errors"].is_array();
    for _ in 0..3 {
        until(&town, &broken, "told", told_why).await;
    }
    let told = town.ask("").await;
    let ssl = &told["data"]["result"]["ssl"];
    assert_eq!(
        (&told["status"], &ssl["status"]),
        (&json!("3_challenge_verified"), &json!("initializing"))
    );
    let message = ssl["validation_errors"][0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("the answer to the authority could not be written into DNS"),
        "{message}"
    );
    assert_eq!(
        (
            town.count("acme_begun").await,
            town.pebble.said("set INVALID")
        ),
        (1, 0)
    );
    town.settings.authority.as_mut().unwrap().zone = right;
    let mended = town
        .app
        .another_with(town.settings.clone(), town.app.machine.clone());
    certified(&town, &mended).await;
}

#[tokio::test]
async fn unresponsive_name_server_is_ignored_after_a_timeout() {
    let (town, _knot) = town(By::Update, false, |place| {
        delegated(place) + "@ NS silent\nsilent A 127.0.0.2\n"
    })
    .await;
    town.prove().await;
    until(&town, &town.node, "written", async || {
        answers(&town).await == 1
    })
    .await;
    assert_eq!(town.pebble.said("set VALID by completed challenge"), 0);
    town.app.advance(5 * 60);
    certified(&town, &town.node).await;
    assert_eq!(
        (
            town.pebble.said("set VALID by completed challenge"),
            town.pebble.said("set INVALID")
        ),
        (1, 0)
    );
}

#[tokio::test]
async fn wildcard_certificate_is_issued_and_renewed() {
    let (town, knot) = town(By::Update, true, |_| String::new()).await;
    let host = format!("{}.example.test", town.app.home.project);
    assert!(
        connect(town.https, &host, trusting(&town.roots))
            .await
            .is_err(),
        "there is none yet"
    );
    let certificates = async || -> i64 {
        let sql = "select count(distinct chain) from hostname_certificates where renew_at > $1";
        town.app
            .app
            .db
            .query(sql, &[&town.app.clock.now()])
            .await
            .unwrap()[0]
            .get(0)
    };
    let there = async || certificates().await == 1;
    until(&town, &town.node, "certified", there).await;
    let mut client = Client(
        connect(town.https, &host, trusting(&town.roots))
            .await
            .unwrap(),
    );
    client
        .send(&format!("GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        .await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.saw("x-project-ref")),
        (200, Some(town.app.home.project.to_string()))
    );
    hostname_reconciler::pass(&town.node.app).await.unwrap();
    assert_eq!(
        (
            answers(&town).await,
            knot.texts("_acme-challenge.example.test").await.unwrap()
        ),
        (0, vec![])
    );
    let before = client.0.get_ref().1.peer_certificates().unwrap()[0].clone();

    // Another node does not order while the certificate is valid; later it is renewed.
    let other = town
        .app
        .another_with(town.settings.clone(), town.app.machine.clone());
    until(&town, &other, "certified", there).await;
    assert_eq!(town.pebble.said("Issued certificate"), 1);
    town.app
        .app
        .db
        .query(
            "update hostname_certificates set renew_at = $1",
            &[&town.app.clock.now()],
        )
        .await
        .unwrap();
    until(&town, &town.node, "certified again", there).await;
    assert_eq!(town.pebble.said("Issued certificate"), 2);
    let renewed = connect(town.https, &host, trusting(&town.roots))
        .await
        .unwrap();
    assert_ne!(renewed.get_ref().1.peer_certificates().unwrap()[0], before);
    let sealed = town
        .app
        .app
        .db
        .query("select sealed_key from hostname_certificates", &[])
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(sealed[0].get(0)).contains("PRIVATE KEY"));
}

#[tokio::test]
async fn hook_has_a_timeout_and_reports_its_error() {
    let (town, knot) = town(By::Update, false, |_| String::new()).await;
    let dir = town.app.machine.dir();
    let write = |text: &str, mode| {
        let program = dir.join("hook");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        zone::ZoneHook::new(&program)
    };
    let run = async |hook| {
        let zone = Zone::new(ZONE, ZoneWriter::Hook(hook)).unwrap();
        zone.write(
            zone::RecordChange::Present,
            "a.customer.test",
            "$(touch /tmp/x); `id`",
            (town.app.clock.now(), 1),
        )
        .await
    };
    for (mode, why) in [
        (0o644, "it is no program"),
        (0o777, "others than its owner may write to it"),
    ] {
        assert!(
            write("#!/bin/sh\n", mode)
                .unwrap_err()
                .to_string()
                .ends_with(why)
        );
    }
    let seen = dir.join("seen");
    let text = format!("#!/bin/sh\nprintf '%s' \"$3\" > {}\n", seen.display());
    run(write(&text, 0o700).unwrap()).await.unwrap();
    assert_eq!(
        fs::read_to_string(&seen).unwrap(),
        "$(touch /tmp/x); `id`",
        "no shell reads it"
    );
    // More output than a pipe holds, and a child process that keeps the pipe open.
    let text = "#!/bin/sh\nsleep 300 &\nyes complaint | head -c 300000 >&2\nexit 3\n";
    let said = run(write(text, 0o700).unwrap()).await.unwrap_err();
    assert!(
        said.starts_with("the hook failed: complaint") && said.len() < 1100,
        "{}",
        said.len()
    );
    drop(knot);
}
