//! A local certificate authority: pebble, with its own certificate.

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

/// Returns a free port.
pub(crate) fn free() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A running authority, stopped on drop.
pub(crate) struct Pebble {
    pub(crate) directory: String,
    pub(crate) management: String,
    pub(crate) port: u16,
    /// Its log lines.
    lines: Arc<Mutex<Vec<String>>>,
    _child: Child,
}

impl Pebble {
    /// Starts an authority that validates on these ports, with this DNS server. Writes its CA
    /// certificate to `pebble-ca.pem` in `dir`.
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
        // Reuses valid authorizations whenever possible.
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

    /// Returns the number of log lines with this text.
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
