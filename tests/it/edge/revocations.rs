//! Revocation of certificates of deleted hostnames.

use chrono::TimeDelta;
use gantry::control::domains::hostnames::hostname_reconciler;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{
    connect,
    orders::{HOST, Town},
    trusting,
};

/// Returns the authority's status of the certificate with this serial number.
async fn status(town: &Town, serial: &str) -> Value {
    let url = format!("{}/cert-status-by-serial/{serial}", town.pebble.management);
    let said = Command::new("curl")
        .args(["-ksSf", &url])
        .output()
        .await
        .unwrap();
    serde_json::from_slice::<Value>(&said.stdout).unwrap()["Status"].clone()
}

#[tokio::test]
async fn deleted_hostname_has_its_certificate_revoked() {
    let town = Town::new(false).await;
    town.prove().await;
    town.until(&town.node, "4_origin_setup_completed").await;
    let shown = connect(town.https, HOST, trusting(&town.roots))
        .await
        .unwrap();
    let certificate = shown.get_ref().1.peer_certificates().unwrap()[0].clone();
    let certificate =
        <x509_cert::Certificate as x509_cert::der::Decode>::from_der(&certificate).unwrap();
    let serial = hex::encode(certificate.tbs_certificate.serial_number.as_bytes());
    assert_eq!(status(&town, &serial).await, "Valid");
    town.node
        .delete(&town.app.at("/custom-hostname"))
        .as_(&town.app.owner)
        .send()
        .await
        .expect(200);
    // A client that does not trust the authority cannot connect.
    let mut settings = town.settings.clone();
    settings.authority.as_mut().unwrap().root = None;
    let strange = town.app.another_with(settings, town.app.machine.clone());
    let left = async || -> i64 {
        town.app
            .app
            .db
            .query("select count(*) from acme_revocations", &[])
            .await
            .unwrap()[0]
            .get(0)
    };
    hostname_reconciler::pass(&strange.app).await.unwrap();
    assert_eq!(
        (left().await, status(&town, &serial).await),
        (1, json!("Valid"))
    );
    for _ in 0..5 {
        town.app.advance(3601);
        hostname_reconciler::pass(&town.node.app).await.unwrap();
    }
    assert_eq!(
        (left().await, status(&town, &serial).await),
        (0, json!("Revoked"))
    );
}

#[tokio::test]
async fn revocation_of_expired_certificate_is_dropped() {
    let town = Town::new(false).await;
    let now = town.app.clock.now();
    let sql = "insert into acme_revocations (directory, chain, not_after, attempts) values ($1, 'x', $2, 48), ($1, 'x', $3, 0), ('other', 'x', $2, 0)";
    let later = now + TimeDelta::days(9);
    let directory = town.settings.authority.as_ref().unwrap().directory.clone();
    town.app
        .app
        .db
        .query(sql, &[&directory, &later, &now])
        .await
        .unwrap();
    hostname_reconciler::pass(&town.node.app).await.unwrap();
    let left = town
        .app
        .app
        .db
        .query("select directory, attempts from acme_revocations", &[])
        .await
        .unwrap();
    assert_eq!(
        (
            left.len(),
            left[0].get::<_, &str>(0),
            left[0].get::<_, i32>(1)
        ),
        (1, "other", 0),
        "another authority's wait for it"
    );
}
