//! Certificate selection and reloading.

use std::{fs, path::Path};

use gantry::proxy::service_proxy::WildcardCertificate;
use rcgen::{CertificateParams, KeyPair};

use super::{Client, Gate, connect, trusting};

/// Writes a certificate and key of another authority.
fn write(dir: &Path) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["*.example.test".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    // The key first: a mismatched pair is not used, and is reloaded when the other file changes.
    for (name, text) in [
        ("edge-key.pem", key.serialize_pem()),
        ("edge.pem", cert.pem()),
    ] {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    }
}

#[tokio::test]
async fn replaced_certificate_keeps_open_connections() {
    let files = |dir: &Path| {
        write(dir);
        Some(
            WildcardCertificate::from_files(&dir.join("edge.pem"), &dir.join("edge-key.pem"))
                .unwrap(),
        )
    };
    let gate = Gate::with(files, gantry::proxy::service_proxy::Options::default()).await;
    let host = gate.host();
    let dir = gate.app.machine.dir().to_owned();
    let request = format!("GET /rest/v1/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let before = trusting(&dir.join("edge.pem"));
    let mut first = Client(connect(gate.https, &host, before.clone()).await.unwrap());
    first.send(&request).await;
    assert_eq!(first.answer().await.status, 200);

    write(&dir);
    assert!(
        connect(gate.https, &host, trusting_only(&before))
            .await
            .is_err(),
        "the old one is not shown any more"
    );
    let mut second = Client(
        connect(gate.https, &host, trusting(&dir.join("edge.pem")))
            .await
            .unwrap(),
    );
    for client in [&mut first, &mut second] {
        client.send(&request).await;
        assert_eq!(client.answer().await.status, 200);
    }
    fs::write(dir.join("edge.pem"), "nonsense").unwrap();
    connect(gate.https, &host, gate.trusting())
        .await
        .expect_err("it is not the authority's");
    let mut third = second;
    third.send(&request).await;
    assert_eq!(
        third.answer().await.status,
        200,
        "what is of no use is not taken"
    );
}

/// Trusts the same authority, without session resumption.
fn trusting_only(config: &rustls::ClientConfig) -> rustls::ClientConfig {
    let mut config = config.clone();
    config.resumption = rustls::client::Resumption::disabled();
    config
}
