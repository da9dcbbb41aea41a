//! `kill -9` during a certificate order. The next start finishes the order and orders nothing
//! twice.

use std::{net::Ipv4Addr, time::Duration};

use hickory_resolver::proto::rr::{RData, RecordType, rdata::A};
use rustix::process::Signal;
use serde_json::json;

use super::{
    crash::{let_pass, rows},
    machine::{Machine, until},
};
use crate::{
    domains::dns::NameServer,
    support::pebble::{Pebble, free},
};

/// The moment of the kill.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Milliseconds after the order was due.
    After(u64),
    /// A row with this condition, and milliseconds after it.
    Found(&'static str, u64),
}

const ORDER: &str = "select from acme_orders";
const ANSWER: &str = "select from acme_orders where token is not null";

const DUE: &str =
    "update custom_hostnames set state = 'verified', refusal = null, not_before = now()";

const RAISE_LIMITS: &str = "insert into limit_overrides (organization_id, requests, created_by, created_at) \
     select id, 1000, 'test', now() from organizations";

/// Moments during account creation, order creation, challenge, validation and download.
const STEPS: [Step; 8] = [
    Step::After(0),
    Step::After(30),
    Step::Found(ORDER, 0),
    Step::Found(ANSWER, 0),
    Step::Found(ANSWER, 20),
    Step::Found(ANSWER, 60),
    Step::Found(ANSWER, 150),
    Step::Found("select from hostname_certificates", 0),
];

#[test]
fn kill_during_certificate_order_is_resumed() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let machine = Machine::new();
    let names = runtime.block_on(NameServer::start());
    let (https, http) = (free(), free());
    let pebble = runtime.block_on(Pebble::start(machine.dir(), http, https, names.address));
    let (https, http, root) = (
        format!("127.0.0.1:{https}"),
        format!("127.0.0.1:{http}"),
        machine.dir().join("pebble-ca.pem"),
    );
    let resolver = names.address.to_string();
    let arguments = [
        ["--edge-https-listen", &https],
        ["--edge-http-listen", &http],
        ["--acme-directory", &pebble.directory],
        ["--acme-root", root.to_str().unwrap()],
        ["--dns-resolver", &resolver],
    ]
    .concat();
    let mut gantry = machine.dev(&arguments);
    let project = gantry.create("shop");
    // The eight steps send more requests a minute than a client may.
    rows(&machine, "control", "gantry", RAISE_LIMITS);
    let path = format!("/v1/projects/{project}/custom-hostname");
    let count = |sql: &str| rows(&machine, "control", "gantry", sql).len();
    for (n, step) in STEPS.into_iter().enumerate() {
        let host = format!("a{n}.customer.test");
        names.remember(&host, RecordType::A, RData::A(A::from(Ipv4Addr::LOCALHOST)));
        gantry
            .send(
                "POST",
                &format!("{path}/initialize"),
                Some(&json!({ "custom_hostname": host })),
            )
            .expect(201);
        let issued = pebble.said("Issued certificate");
        // Budgets are tested elsewhere.
        rows(&machine, "control", "gantry", "delete from acme_begun");
        // The zone's name servers would have to use port 53, so the check against them is skipped.
        rows(&machine, "control", "gantry", DUE);
        gantry
            .send("POST", &format!("{path}/reverify"), None)
            .expect(201);
        let more = match step {
            Step::After(millis) => millis,
            Step::Found(sql, millis) => {
                // The order may be complete before the row is seen; the process is then killed
                // afterwards.
                until(sql, || {
                    (count(sql) > 0 || count("select from hostname_certificates") > 0).then_some(())
                });
                millis
            }
        };
        let_pass(more);
        gantry.kill();
        let known = count(ORDER) + count("select from hostname_certificates") > 0;
        // The killed process claimed the order: other processes wait for two minutes.
        rows(
            &machine,
            "control",
            "gantry",
            "update custom_hostnames set not_before = now()",
        );
        gantry = machine.dev(&arguments);
        let mut refused = 0;
        until("a certificate", || {
            if count("select from custom_hostnames where state = 'initiated'") == 1 {
                // The authority validated while no process answered, and does not try again: the
                // name is verified and ordered again.
                refused += 1;
                rows(&machine, "control", "gantry", DUE);
                gantry
                    .send("POST", &format!("{path}/reverify"), None)
                    .expect(201);
            }
            (count("select from custom_hostnames where state = 'certified'") == 1).then_some(())
        });
        assert_eq!(
            gantry.get(&path).expect(200)["status"],
            "4_origin_setup_completed"
        );
        assert_eq!(
            pebble.said("Issued certificate") - issued,
            1,
            "{step:?}: {}",
            gantry.log()
        );
        assert_eq!(count("select from hostname_certificates"), 1, "{step:?}");
        let begun = count("select from acme_begun");
        // Only data that was sent to the authority but not persisted may be requested again.
        let lost = usize::from(begun == refused + 2 && !known);
        assert_eq!(begun, 1 + refused + lost, "{step:?}: {}", gantry.log());
        assert!(
            refused <= 1 && pebble.said("set INVALID") >= refused,
            "{step:?}: {refused} orders were refused"
        );
        assert_eq!(gantry.send("DELETE", &path, None).status, 200);
    }
    assert_eq!(gantry.stop(Signal::INT).code(), Some(0), "{}", gantry.log());
    runtime.shutdown_timeout(Duration::ZERO);
}
