//! Custom hostnames, from the request to the activation, with DNS records of the test.

use std::sync::Arc;

use gantry::{
    app::Settings,
    control::domains::hostnames::{hostname_reconciler, required_records::DnsRecords},
    platform::http::Transport,
};
use gantry_base::ids::ProjectRef;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Actor, Node, Said, TestApp, client::Answer, settings};

pub(super) const HOST: &str = "api.customer.test";

/// An application with DNS records of the test.
pub(super) struct Zone {
    pub(super) app: TestApp,
    pub(super) node: Node,
    said: Said,
}

impl Zone {
    pub(super) async fn new() -> Self {
        let app = TestApp::new().await;
        let said = Said::default();
        said.0.lock().insert(HOST.to_owned(), DnsRecords::default());
        let node = app.another_with(
            Settings {
                dns: Arc::new(said.clone()),
                ..settings(Transport::default(), Uuid::from_u128(7))
            },
            app.machine.clone(),
        );
        Self { app, node, said }
    }

    pub(super) fn say(&self, alias: &str, text: &str) {
        let seen = DnsRecords {
            alias: Some(alias.to_owned()),
            texts: vec![text.to_owned()],
            ..DnsRecords::default()
        };
        self.said.0.lock().insert(HOST.to_owned(), seen);
    }

    pub(super) async fn ask(&self, who: &Actor, project: &ProjectRef, what: &str) -> Answer {
        let path = format!("/v1/projects/{project}/custom-hostname{what}");
        match what {
            "" | "/checks" => self.node.get(&path).as_(who).send().await,
            "/initialize" => {
                self.node
                    .post(&path)
                    .as_(who)
                    .json(&json!({ "custom_hostname": HOST }))
                    .send()
                    .await
            }
            _ => self.node.post(&path).as_(who).send().await,
        }
    }

    pub(super) async fn mine(&self, what: &str) -> Answer {
        self.ask(&self.app.owner, &self.app.home.project, what)
            .await
    }

    pub(super) async fn delete(&self) -> Answer {
        self.node
            .delete(&self.app.at("/custom-hostname?remove_addon=true"))
            .as_(&self.app.owner)
            .send()
            .await
    }

    /// Requests the hostname and publishes the required records.
    pub(super) async fn proven(&self) {
        let wanted = self.mine("/initialize").await.expect(201).json();
        self.prove(&wanted);
        self.mine("/reverify").await.expect(201);
    }

    pub(super) fn prove(&self, told: &Value) {
        let result = &told["data"]["result"];
        self.say(
            result["custom_origin_server"].as_str().unwrap(),
            result["ownership_verification"]["value"].as_str().unwrap(),
        );
    }

    /// Replaces the certificate authority, which this application does not have.
    pub(super) async fn certify(&self) {
        let sql = "update custom_hostnames set state = 'certified', refusal = null where state = 'verified'";
        self.app.app.db.query(sql, &[]).await.unwrap();
    }
}

/// Removes the values that differ between tests.
fn stable(mut told: Value) -> Value {
    let result = &mut told["data"]["result"];
    for field in [
        &mut result["id"].take(),
        &mut result["ownership_verification"]["value"].take(),
    ] {
        assert!(field.is_string());
    }
    if let Some(record) = result["ssl"]["validation_records"].get_mut(0) {
        assert_eq!(record["txt_value"].take().as_str().unwrap().len(), 40);
    }
    told
}

#[tokio::test]
async fn hostname_stages_match_the_contract() {
    let zone = Zone::new().await;
    let server = format!("{}.example.test", zone.app.home.project);
    let refused = [
        ("", "No custom hostname configuration found."),
        (
            "/reverify",
            "Project is not pending custom hostname verification.",
        ),
        ("/activate", "Verification has not been completed."),
    ];
    for (what, message) in refused {
        assert_eq!(zone.mine(what).await.expect(400).message(), message);
    }
    assert_eq!(
        zone.delete().await.expect(400).message(),
        "Custom hostname not configured for project"
    );

    let initiated = zone.mine("/initialize").await.expect(201).json();
    let name = format!("_gantry-challenge.{HOST}");
    let mut expected = json!({
        "status": "2_initiated", "custom_hostname": HOST,
        "data": {"success": true, "errors": [], "messages": [], "result": {
            "id": null, "hostname": HOST, "custom_origin_server": server, "status": "pending",
            "ssl": {"status": "pending_validation", "validation_records": [{"txt_name": name, "txt_value": null}]},
            "ownership_verification": {"type": "txt", "name": name, "value": null},
        }},
    });
    assert_eq!(stable(initiated.clone()), expected);
    assert_eq!(zone.mine("").await.expect(200).json(), initiated);
    let spelled = zone
        .node
        .get(&zone.app.at("/config/custom-hostname"))
        .as_(&zone.app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (spelled.json(), spelled.quota.remaining),
        (initiated.clone(), 117),
        "both spellings have one counter"
    );
    let again = zone.mine("/initialize").await.expect(544).message();
    assert_eq!(
        again,
        "Delete the custom hostname associated with your project before attempting to create a new one."
    );
    assert_eq!(
        zone.mine("/activate").await.expect(400).message(),
        "Verification has not been completed."
    );

    let pending = zone.mine("/reverify").await.expect(201).json();
    let errors = &pending["data"]["result"]["verification_errors"];
    assert_eq!(
        errors[0],
        format!(
            "custom hostname does not CNAME to this project: found no CNAME record, expected {server}"
        )
    );
    assert!(errors[1].as_str().unwrap().contains("found no TXT record") && errors[2].is_null());

    zone.prove(&initiated);
    expected["status"] = "3_challenge_verified".into();
    expected["data"]["result"]["ssl"] = json!({"status": "initializing", "validation_records": []});
    assert_eq!(
        stable(zone.mine("/reverify").await.expect(201).json()),
        expected
    );
    assert_eq!(
        zone.mine("/activate").await.expect(400).message(),
        "Verification has not been completed."
    );

    zone.certify().await;
    assert_eq!(
        zone.mine("/reverify").await.expect(400).message(),
        "Verification has been completed, please proceed to activation."
    );
    expected["status"] = "4_origin_setup_completed".into();
    expected["data"]["result"]["status"] = "active".into();
    expected["data"]["result"]["ssl"]["status"] = "active".into();
    expected["data"]["result"]["ownership_verification"] =
        json!({"type": "", "name": "", "value": ""});
    expected["data"]["result"]["id"] = initiated["data"]["result"]["id"].clone();
    assert_eq!(zone.mine("").await.expect(200).json(), expected);
    expected["status"] = "5_services_reconfigured".into();
    assert_eq!(zone.mine("/activate").await.expect(201).json(), expected);
    assert_eq!(
        zone.mine("/activate").await.expect(400).message(),
        "Custom hostname has already been activated."
    );
    assert_eq!(
        zone.mine("/reverify").await.expect(400).message(),
        "Verification has been completed, please proceed to activation."
    );
    let gone = zone.delete().await.expect(200);
    assert!(gone.body.is_empty() && gone.header("content-type").is_none());
    zone.mine("").await.expect(400);
}

#[tokio::test]
async fn reserved_hostname_is_rejected() {
    let zone = Zone::new().await;
    let cases = [
        (
            "customer.test",
            "custom_hostname: expected a subdomain: a CNAME record cannot stand at the top of a domain",
        ),
        (
            "shop.example.test",
            "custom_hostname: names below this server's own domain are vanity subdomains",
        ),
        (
            "127.0.0.1",
            "custom_hostname: expected a hostname, not an address",
        ),
        (
            "https://api.customer.test",
            "custom_hostname: expected a hostname such as api.customer.com, without scheme, port or path",
        ),
    ];
    for (name, message) in cases {
        let call = zone
            .node
            .post(&zone.app.at("/custom-hostname/initialize"))
            .as_(&zone.app.owner);
        assert_eq!(
            call.json(&json!({ "custom_hostname": name }))
                .send()
                .await
                .expect(400)
                .message(),
            message,
            "{name}"
        );
    }
    let call = zone
        .node
        .post(&zone.app.at("/vanity-subdomain/activate"))
        .as_(&zone.app.owner);
    call.json(&json!({"vanity_subdomain": "shop"}))
        .send()
        .await
        .expect(201);
    assert!(
        zone.mine("/initialize")
            .await
            .expect(400)
            .message()
            .starts_with("The project uses the vanity subdomain shop.")
    );
}

#[tokio::test]
async fn first_verified_project_keeps_the_hostname() {
    let zone = Zone::new().await;
    let stranger = &zone.app.stranger;
    let foreign = &zone.app.foreign.project;
    // An unverified request does not exclude other projects.
    let theirs = zone
        .ask(stranger, foreign, "/initialize")
        .await
        .expect(201)
        .json();
    zone.proven().await;
    assert_eq!(
        zone.mine("").await.expect(200).json()["status"],
        "3_challenge_verified"
    );
    let proof = |told: &Value| told["data"]["result"]["ownership_verification"]["value"].clone();
    assert_ne!(
        proof(&theirs),
        proof(&zone.mine("").await.json()),
        "a proof is bound to its project"
    );
    let pending = zone
        .ask(stranger, foreign, "/reverify")
        .await
        .expect(201)
        .json();
    assert_eq!(
        pending["data"]["result"]["verification_errors"]
            .as_array()
            .unwrap()
            .len(),
        2,
        "what is left there proves nothing"
    );
    // With both records of another project, the name stays with its first project until that
    // releases it.
    zone.prove(&theirs);
    let taken = zone
        .ask(stranger, foreign, "/reverify")
        .await
        .expect(409)
        .message();
    assert_eq!(
        taken,
        "api.customer.test is the custom hostname of another project"
    );
    zone.delete().await.expect(200);
    let won = zone
        .ask(stranger, foreign, "/reverify")
        .await
        .expect(201)
        .json();
    assert_eq!(won["status"], "3_challenge_verified");
}

#[tokio::test]
async fn hostname_verified_by_another_project_is_rejected() {
    let zone = Zone::new().await;
    let stranger = &zone.app.stranger;
    let foreign = &zone.app.foreign.project;
    zone.proven().await;
    let refused = zone.ask(stranger, foreign, "/initialize").await.expect(409);
    assert_eq!(
        refused.message(),
        "api.customer.test is the custom hostname of another project"
    );
    zone.certify().await;
    zone.ask(stranger, foreign, "/initialize").await.expect(409);
    zone.mine("/activate").await.expect(201);
    zone.ask(stranger, foreign, "/initialize").await.expect(409);
    // After DNS routed the name elsewhere, the new owner can request it.
    zone.say("elsewhere.test", "x");
    zone.app.advance(24 * 3600);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    assert_eq!(
        zone.ask(stranger, foreign, "/initialize")
            .await
            .expect(201)
            .json()["status"],
        "2_initiated"
    );
    assert_eq!(
        zone.mine("").await.expect(200).json()["status"],
        "5_services_reconfigured",
        "it is served until it is removed"
    );
}

#[tokio::test]
async fn caa_problem_is_listed_as_certificate_error() {
    let zone = Zone::new().await;
    let wanted = zone.mine("/initialize").await.expect(201).json();
    zone.prove(&wanted);
    let problem = "caa_error: CAA records let only other.test certify the custom hostname, expected ca.test among them";
    let sql = "update custom_hostnames set problems = array['custom hostname is not proven', $1]";
    zone.app.app.db.query(sql, &[&problem]).await.unwrap();
    let result = zone.mine("").await.expect(200).json()["data"]["result"].clone();
    assert_eq!(
        result["ssl"]["validation_errors"],
        json!([{ "message": problem }])
    );
    assert_eq!(
        result["verification_errors"],
        json!(["custom hostname is not proven"])
    );
}

#[tokio::test]
async fn reconciler_verifies_hostname_or_deletes_it_in_the_end() {
    let zone = Zone::new().await;
    let wanted = zone.mine("/initialize").await.expect(201).json();
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    let errors = zone.mine("").await.json()["data"]["result"]["verification_errors"].clone();
    assert_eq!(errors.as_array().unwrap().len(), 2);
    zone.prove(&wanted);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    assert_eq!(
        zone.mine("").await.json()["status"],
        "2_initiated",
        "its time has not come"
    );
    zone.app.advance(2 * 60);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    assert_eq!(zone.mine("").await.json()["status"], "3_challenge_verified");

    zone.delete().await.expect(200);
    zone.say("elsewhere.test", "x");
    zone.mine("/initialize").await.expect(201);
    for (days, status) in [(6, "pending"), (2, "moved")] {
        zone.app.advance(days * 24 * 3600);
        hostname_reconciler::pass(&zone.node.app).await.unwrap();
        assert_eq!(
            zone.mine("").await.expect(200).json()["data"]["result"]["status"],
            status
        );
    }
    zone.app.advance(7 * 24 * 3600);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    zone.mine("").await.expect(400);
}

#[tokio::test]
async fn misrouted_hostname_is_reported_and_deleted() {
    let zone = Zone::new().await;
    zone.proven().await;
    zone.certify().await;
    zone.mine("/activate").await.expect(201);
    let status =
        async || zone.mine("").await.expect(200).json()["data"]["result"]["status"].clone();
    let day = async || {
        zone.app.advance(24 * 3600);
        hostname_reconciler::pass(&zone.node.app).await.unwrap();
    };
    day().await;
    assert_eq!(status().await, "active");
    // A failed query changes nothing.
    let said = zone.said.0.lock().clone();
    zone.said.0.lock().clear();
    for _ in 0..20 {
        day().await;
    }
    assert_eq!(status().await, "active");
    zone.say("elsewhere.test", "x");
    for _ in 0..7 {
        day().await;
        assert_eq!(status().await, "active");
    }
    day().await;
    assert_eq!(status().await, "moved");
    *zone.said.0.lock() = said;
    day().await;
    assert_eq!(status().await, "active", "it came back");
    zone.say("elsewhere.test", "x");
    for _ in 0..15 {
        day().await;
    }
    zone.mine("").await.expect(400);
}

#[tokio::test]
async fn checks_report_each_record_with_next_action() {
    let zone = Zone::new().await;
    assert_eq!(
        zone.mine("/checks").await.expect(400).message(),
        "No custom hostname configuration found."
    );
    let wanted = zone.mine("/initialize").await.expect(201).json();
    let server = format!("{}.example.test", zone.app.home.project);
    let checks = async || zone.mine("/checks").await.expect(200).json()["checks"].clone();
    let told = checks().await;
    let of = |checks: &Value, name: &str| {
        checks
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == name)
            .unwrap()
            .clone()
    };
    let cname = json!({
        "name": "cname", "status": "failed", "expected": format!("CNAME {server}"), "observed": "no CNAME record",
        "next_action": format!("Where the DNS of {HOST} is kept, make it a CNAME of {server} and remove its other records."),
    });
    assert_eq!(of(&told, "cname"), cname);
    assert!(
        of(&told, "txt")["next_action"]
            .as_str()
            .unwrap()
            .contains(&format!("_gantry-challenge.{HOST} with the text"))
    );
    let statuses = |checks: &Value| -> Vec<String> {
        checks
            .as_array()
            .unwrap()
            .iter()
            .map(|check| check["status"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        statuses(&told),
        [
            "failed", "failed", "passed", "skipped", "skipped", "waiting", "skipped"
        ]
    );

    zone.prove(&wanted);
    let told = checks().await;
    assert_eq!(
        statuses(&told),
        [
            "passed", "passed", "passed", "failed", "failed", "waiting", "skipped"
        ]
    );
    assert_eq!(
        of(&told, "http")["observed"],
        format!("{server} has no address")
    );

    zone.said.0.lock().clear();
    let told = checks().await;
    assert_eq!(
        statuses(&told),
        [
            "failed", "failed", "failed", "skipped", "skipped", "waiting", "skipped"
        ]
    );
    assert_eq!(
        of(&told, "caa")["observed"],
        "DNS could not be asked: no server answers"
    );

    // After the verification the ownership record is not needed; there is no authority to issue a
    // certificate.
    zone.prove(&wanted);
    zone.mine("/reverify").await.expect(201);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    zone.app.advance(2 * 60);
    hostname_reconciler::pass(&zone.node.app).await.unwrap();
    zone.say(&server, "other");
    let told = checks().await;
    assert_eq!(
        (
            of(&told, "txt")["status"].as_str(),
            of(&told, "certificate")["status"].as_str()
        ),
        (Some("skipped"), Some("failed"))
    );
    assert!(
        of(&told, "certificate")["observed"]
            .as_str()
            .unwrap()
            .contains("--acme-directory")
    );

    let spelled = zone
        .node
        .get(&zone.app.at("/config/custom-hostname/checks"))
        .as_(&zone.app.owner)
        .send()
        .await
        .expect(200);
    assert_eq!(
        (spelled.quota.limit, spelled.quota.remaining),
        (10, 8),
        "both spellings have one counter"
    );
    zone.ask(&zone.app.stranger, &zone.app.home.project, "/checks")
        .await
        .expect(404);
}
