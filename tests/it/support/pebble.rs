//! A certificate authority on this machine: pebble, with a certificate of its own.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, sync::Arc};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::machine::PATIENCE;

/// A port that nobody has at the moment.
pub(crate) fn free() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// The authority, until it is dropped.
pub(crate) struct Pebble {
    pub(crate) directory: String,
    pub(crate) management: String,
    pub(crate) port: u16,
    /// What it said.
    lines: Arc<Mutex<Vec<String>>>,
    _child: Child,
}

impl Pebble {
    /// It looks at these ports, and asks this name server. `dir` gets the certificate by which it is trusted: `pebble-ca.pem`.
    pub(crate) async fn start(dir: &Path, http: u16, tls: u16, names: SocketAddr) -> Self {
        certify(dir);
        let (port, management) = (free(), free());
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"), "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": dir.join("pebble.pem"), "privateKey": dir.join("pebble-key.pem"), "httpPort": http, "tlsPort": tls,
            "ocspResponderURL": "", "externalAccountBindingRequired": false,
        }});
        fs::write(dir.join("pebble.json"), config.to_string()).unwrap();
        let mut command = Command::new("pebble");
        command
            .arg("-config")
            .arg(dir.join("pebble.json"))
            .args(["-dnsserver", &names.to_string()]);
        // It takes what was proven once for proven again, whenever it can.
        command
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "100")
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("pebble is installed by bin/test");
        let mut coming = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = async {
            while let Some(line) = coming.next_line().await.unwrap() {
                if line.contains("ACME directory available") {
                    return;
                }
            }
            panic!("pebble ended");
        };
        timeout(PATIENCE, ready).await.unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = lines.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = coming.next_line().await {
                said.lock().push(line);
            }
        });
        let at = |port| format!("https://localhost:{port}");
        Self {
            directory: at(port) + "/dir",
            management: at(management),
            port,
            lines,
            _child: child,
        }
    }

    /// How often it said this.
    pub(crate) fn said(&self, text: &str) -> usize {
        self.lines
            .lock()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    }
}

fn certify(dir: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(
        dir.join("pebble-ca.pem"),
        ca.self_signed(&ca_key).unwrap().pem(),
    )
    .unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &Issuer::new(ca, ca_key))
        .unwrap();
    fs::write(dir.join("pebble.pem"), leaf.pem()).unwrap();
    fs::write(dir.join("pebble-key.pem"), key.serialize_pem()).unwrap();
}
