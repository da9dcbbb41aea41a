//! DNS queries, against a local name server that also acts as a caching resolver.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use gantry::control::domains::hostnames::{
    Host,
    dns::{Dns, DnsResolver},
    required_records::DnsRecords,
};
use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, CAA, CNAME, NS, TXT},
    },
};
use parking_lot::Mutex;
use tokio::{net::UdpSocket, task::JoinSet, time::timeout};

type Records = Arc<Mutex<HashMap<(String, RecordType), Vec<RData>>>>;

/// A name server for all names below `test`.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    /// Records of the zone.
    zone: Records,
    /// Records that the server returns for recursive queries.
    remembered: Records,
    _tasks: JoinSet<()>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = Records::default();
        let remembered = Records::default();
        let says = zone.clone();
        let remembers = remembered.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                let asked = Message::from_vec(&buffer[..length]).unwrap();
                let records = if asked.metadata.recursion_desired {
                    &remembers
                } else {
                    &says
                };
                // A response larger than a datagram is not sent.
                let _ = socket.send_to(&answer(&asked, records), client).await;
            }
        });
        let server = Self {
            address,
            zone,
            remembered,
            _tasks: tasks,
        };
        server.remember(
            "customer.test",
            RecordType::NS,
            RData::NS(NS(name("ns.customer.test"))),
        );
        server.remember(
            "ns.customer.test",
            RecordType::A,
            RData::A(A::new(127, 0, 0, 1)),
        );
        server
    }

    fn say(&self, at: &str, kind: RecordType, data: RData) {
        self.zone
            .lock()
            .entry((at.to_owned(), kind))
            .or_default()
            .push(data);
    }

    pub(crate) fn remember(&self, at: &str, kind: RecordType, data: RData) {
        self.remembered
            .lock()
            .entry((at.to_owned(), kind))
            .or_default()
            .push(data);
    }

    async fn look(&self, host: &str) -> Result<DnsRecords, String> {
        let host = Host::parse(host, "projects.test").unwrap();
        DnsResolver::with_port(&[self.address], self.address.port())
            .unwrap()
            .look(&host, &format!("_proof.{host}"))
            .await
    }
}

fn answer(asked: &Message, records: &Records) -> Vec<u8> {
    let query = &asked.queries[0];
    let at = query
        .name()
        .to_lowercase()
        .to_ascii()
        .trim_end_matches('.')
        .to_owned();
    let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
    answer.metadata.authoritative = true;
    answer.add_query(query.clone());
    let known = records.lock();
    if let Some(found) = known.get(&(at.clone(), query.query_type())) {
        answer.add_answers(
            found
                .iter()
                .map(|data| Record::from_rdata(query.name().clone(), 3600, data.clone())),
        );
    } else if let Some(found) = known.get(&(at.clone(), RecordType::CNAME)) {
        answer.add_answers(
            found
                .iter()
                .map(|data| Record::from_rdata(query.name().clone(), 3600, data.clone())),
        );
    } else if at.starts_with("broken") {
        answer.metadata.response_code = ResponseCode::ServFail;
    } else if !known.keys().any(|(name, _)| *name == at) {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    answer.to_vec().unwrap()
}

fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}

fn alias(to: &str) -> RData {
    RData::CNAME(CNAME(name(to)))
}

fn text(said: &str) -> RData {
    RData::TXT(TXT::new(vec![said.to_owned()]))
}

#[tokio::test]
async fn authoritative_servers_are_queried_without_cache() {
    let server = NameServer::start().await;
    server.remember("api.customer.test", RecordType::CNAME, alias("old.test"));
    server.remember("_proof.api.customer.test", RecordType::TXT, text("old"));
    server.say(
        "api.customer.test",
        RecordType::CNAME,
        alias("New.Projects.test"),
    );
    server.say("_proof.api.customer.test", RecordType::TXT, text("other"));
    server.say("_proof.api.customer.test", RecordType::TXT, text("new"));
    let seen = server.look("api.customer.test").await.unwrap();
    assert_eq!(
        seen.alias.as_deref().map(str::to_lowercase),
        Some("new.projects.test".to_owned())
    );
    assert_eq!(seen.texts, ["other", "new"]);
    assert_eq!(
        (seen.servers, seen.issuers),
        (vec!["ns.customer.test".to_owned()], vec![])
    );
}

#[tokio::test]
async fn missing_records_and_timeouts_are_distinguished() {
    let server = NameServer::start().await;
    let seen = server.look("api.customer.test").await.unwrap();
    assert_eq!((seen.alias, seen.texts.len()), (None, 0));
    let unknown = server.look("api.nobody.test").await.unwrap_err();
    assert!(
        unknown.starts_with("nobody answers for api.nobody.test"),
        "{unknown}"
    );
    let broken = server.look("broken.customer.test").await.unwrap_err();
    assert!(broken.contains("broken.customer.test"), "{broken}");
}

#[tokio::test]
async fn caa_records_are_found_at_the_name_or_its_ancestors() {
    let server = NameServer::start().await;
    server.say(
        "api.customer.test",
        RecordType::CNAME,
        alias("x.projects.test"),
    );
    let issue = |ca: &str| RData::CAA(CAA::new_issue(false, Some(name(ca)), Vec::new()));
    server.remember("customer.test", RecordType::CAA, issue("ca.test"));
    assert_eq!(
        server.look("api.customer.test").await.unwrap().issuers,
        ["ca.test"]
    );
    server.remember(
        "api.customer.test",
        RecordType::CAA,
        RData::CAA(CAA::new_issue(false, None, Vec::new())),
    );
    assert_eq!(
        server.look("api.customer.test").await.unwrap().issuers,
        ["nobody"]
    );
}

#[tokio::test]
async fn oversized_dns_responses_are_truncated() {
    let server = NameServer::start().await;
    for n in 0..40 {
        server.say(
            "_proof.many.customer.test",
            RecordType::TXT,
            text(&format!("text {n}")),
        );
    }
    let long = || RData::TXT(TXT::new(vec!["x".repeat(255); 3]));
    server.say("_proof.long.customer.test", RecordType::TXT, long());
    for _ in 0..80 {
        server.say("_proof.huge.customer.test", RecordType::TXT, long());
    }
    for n in 0..40 {
        server.remember(
            &format!("chain{n}.customer.test"),
            RecordType::CNAME,
            alias(&format!("chain{}.customer.test", n + 1)),
        );
    }
    for (from, to) in [
        ("_proof.loop.customer.test", "back.customer.test"),
        ("back.customer.test", "_proof.loop.customer.test"),
    ] {
        server.say(from, RecordType::CNAME, alias(to));
        server.remember(from, RecordType::CNAME, alias(to));
    }
    let patience = std::time::Duration::from_secs(30);
    let look = async |host| {
        timeout(patience, server.look(host))
            .await
            .expect("it took too long")
    };
    assert_eq!(look("many.customer.test").await.unwrap().texts.len(), 20);
    assert_eq!(
        look("long.customer.test").await.unwrap().texts,
        ["x".repeat(200)]
    );
    if let Ok(seen) = look("huge.customer.test").await {
        assert!(seen.texts.len() <= 20, "{}", seen.texts.len());
    }
    if let Ok(seen) = look("loop.customer.test").await {
        assert_eq!(seen.texts.len(), 0);
    }
    let resolver = DnsResolver::with_port(&[server.address], server.address.port()).unwrap();
    for name in ["back.customer.test", "chain0.customer.test"] {
        let found = timeout(patience, resolver.addresses(name))
            .await
            .expect("it took too long");
        assert!(found.is_err() || found.unwrap().is_empty(), "{name}");
    }
}
