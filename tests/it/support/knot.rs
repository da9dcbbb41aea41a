//! A local DNS server with one zone that accepts updates: knot.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    net::UdpSocket,
    process::{Child, Command},
    time::timeout,
};

use super::{machine::PATIENCE, pebble::free};

/// The TSIG key of updates.
pub(crate) const KEY: &str = "hmac-sha256:acme:c2l4dGVlbiBieXRlcyBhbmQgc2l4dGVlbiBtb3JlLi4=";

/// A running DNS server, stopped on drop.
pub(crate) struct Knot {
    pub(crate) address: SocketAddr,
    /// Path of the key.
    pub(crate) key: PathBuf,
    _child: Child,
}

impl Knot {
    /// Starts a server with these records besides SOA and NS.
    pub(crate) async fn start(dir: &Path, zone: &str, records: &str) -> Self {
        let dir = dir.join("knot");
        fs::create_dir(&dir).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free()));
        let records = format!(
            "$ORIGIN {zone}.\n$TTL 0\n@ SOA ns hostmaster 1 3600 600 86400 0\n@ NS ns\nns A 127.0.0.1\n{records}"
        );
        fs::write(dir.join("zone"), records).unwrap();
        let secret = KEY.rsplit(':').next().unwrap();
        let config = format!(
            "server:\n  listen: 127.0.0.1@{}\n  rundir: {dir}\n\
             database:\n  storage: {dir}\n\
             key:\n  - id: acme\n    algorithm: hmac-sha256\n    secret: {secret}\n\
             acl:\n  - id: update\n    key: acme\n    action: update\n\
             zone:\n  - domain: {zone}.\n    storage: {dir}\n    file: zone\n    acl: update\n    journal-content: none\n    zonefile-sync: -1\n    zonefile-load: whole\n",
            address.port(),
            dir = dir.display()
        );
        fs::write(dir.join("knot.conf"), config).unwrap();
        fs::write(dir.join("key"), format!("{KEY}\n")).unwrap();
        let mut command = Command::new("knotd");
        command
            .arg("-c")
            .arg(dir.join("knot.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let child = command.spawn().expect("knot is installed by bin/test");
        let knot = Self {
            address,
            key: dir.join("key"),
            _child: child,
        };
        timeout(PATIENCE, knot.answers(zone)).await.unwrap();
        knot
    }

    async fn answers(&self, zone: &str) {
        while self.texts(zone).await.is_none() {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the TXT records of a name, or `None` without a response.
    pub(crate) async fn texts(&self, name: &str) -> Option<Vec<String>> {
        use hickory_resolver::proto::{
            op::{Message, Query},
            rr::{Name, RData, RecordType},
        };
        let mut query = Message::query();
        query.add_query(Query::query(
            Name::from_ascii(format!("{name}.")).unwrap(),
            RecordType::TXT,
        ));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(&query.to_vec().unwrap()).await.ok()?;
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).await.ok()?;
        let response = Message::from_vec(&buffer[..length]).unwrap();
        let text = |data: &RData| {
            if let RData::TXT(text) = data {
                Some(String::from_utf8_lossy(&text.txt_data.concat()).into_owned())
            } else {
                None
            }
        };
        Some(
            response
                .answers
                .iter()
                .filter_map(|record| text(&record.data))
                .collect(),
        )
    }
}
