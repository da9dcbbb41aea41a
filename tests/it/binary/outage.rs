//! The control cluster is killed or hangs under a running server: requests that need it fail
//! quickly and clearly, cached data is served, and everything recovers without a restart.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{
    dev::{reached, service},
    machine::{Gantry, Machine, PASSWORD, field, until},
    wire::{self, Answer},
};

/// The documented bound is two seconds; the rest is tolerance for a busy machine.
const SOON: Duration = Duration::from_secs(4);

/// A server with a project that was reached through every proxy.
struct Used {
    machine: Machine,
    gantry: Gantry,
    project: String,
    admin: SocketAddr,
}

impl Used {
    fn new() -> Self {
        let machine = Machine::new();
        // The port was free a moment ago.
        let admin = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let gantry = machine.dev(&[
            "--upstream",
            &format!("rest=http://{}", service()),
            "--admin-listen",
            &admin.to_string(),
        ]);
        machine.raise_limits(&gantry);
        let project = gantry.create("used");
        gantry.healthy(&project);
        let used = Self {
            machine,
            gantry,
            project,
            admin,
        };
        used.assert_reached();
        used
    }

    /// Connects to the project's database and requests its service through the proxies.
    #[track_caller]
    fn assert_reached(&self) {
        let line = field(&self.gantry.greeting, "Databases");
        let address: SocketAddr = line.split([',', ' ']).next().unwrap().parse().unwrap();
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(address.port())
            .user(format!("postgres.{}", self.project))
            .password(PASSWORD)
            .dbname("postgres");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let answer = runtime.block_on(async {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client
                .query_one("select 1", &[])
                .await
                .map(|row| row.get::<_, i32>(0))
        });
        assert_eq!(
            answer.unwrap_or_else(|error| panic!("{error:?}\n{}", self.gantry.log())),
            1
        );
        assert_eq!(
            reached(&self.gantry, &self.project, "/rest/v1/todos"),
            "GET /todos HTTP/1.1\r\n"
        );
    }

    /// Sends a request that needs the control database and checks the response time.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "the server watched here lives in real time"
    )]
    fn soon(&self, method: &str, path: &str) -> Answer {
        let begun = Instant::now();
        let body = (method == "POST").then(|| json!({ "name": "x", "organization_slug": self.gantry.organization, "db_pass": PASSWORD }));
        let answer = self.gantry.send(method, path, body.as_ref());
        assert!(
            begun.elapsed() < SOON,
            "{method} {path} took {:?}: {answer:?}\n{}",
            begun.elapsed(),
            self.gantry.log()
        );
        answer
    }

    fn path(&self) -> String {
        format!("/v1/projects/{}", self.project)
    }

    fn ready(&self) -> u16 {
        wire::send(self.admin, "GET", "/readyz", None, None)
            .unwrap()
            .status
    }

    /// Returns the processes of the control cluster, its postmaster first.
    fn control(&self) -> Vec<Pid> {
        let (data, master) = (
            self.machine.data().join("control/data"),
            self.machine.postmaster("control").unwrap(),
        );
        let there = |pid: &Pid| {
            fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero()))
                .is_ok_and(|cwd| cwd == data)
        };
        let others = self
            .machine
            .servers()
            .into_iter()
            .filter(|pid| *pid != master && there(pid));
        std::iter::once(master).chain(others).collect()
    }

    /// Waits until a request succeeds, and checks the bounds of every failed request before.
    #[track_caller]
    fn until_answered(&self) {
        until("an answer", || {
            let answer = self.soon("GET", &self.path());
            if answer.status == 200 {
                return Some(());
            }
            assert_refused(&answer);
            self.assert_reached();
            None
        });
    }
}

#[track_caller]
fn assert_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1");
    let text = answer.json()["message"].as_str().unwrap().to_owned();
    assert!(
        text.contains("database") && text.ends_with("; try again shortly"),
        "{text}"
    );
    answer.header("x-ratelimit-limit");
    answer.header("x-request-id");
}

#[test]
fn killed_control_cluster_is_restarted() {
    let mut used = Used::new();
    let killed = used.machine.postmaster("control").unwrap();
    kill_process(killed, Signal::KILL).unwrap();
    until("another server", || {
        used.machine
            .postmaster("control")
            .filter(|pid| *pid != killed)
    });
    used.until_answered();
    assert!(
        used.gantry
            .log()
            .contains("the server of the control cluster runs again"),
        "{}",
        used.gantry.log()
    );
    used.assert_reached();
    until("readiness", || (used.ready() == 200).then_some(()));
    let next = used.gantry.create("made afterwards");
    used.gantry.healthy(&next);
    assert_eq!(
        used.gantry.stop(Signal::INT).code(),
        Some(0),
        "{}",
        used.gantry.log()
    );
    assert_eq!(
        used.machine.servers(),
        [],
        "what is stopped is not started again"
    );
}

#[test]
fn hanging_control_cluster_fails_requests_quickly() {
    let mut used = Used::new();
    let processes = used.control();
    for pid in &processes {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    for _ in 0..3 {
        assert_refused(&used.soon("GET", &used.path()));
        assert_refused(&used.soon("POST", "/v1/projects"));
        assert_refused(&used.soon("GET", "/v1/projects"));
    }
    assert_eq!(used.ready(), 503);
    used.assert_reached();
    for pid in &processes {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    used.until_answered();
    used.assert_reached();
    let next = used.gantry.create("made afterwards");
    used.gantry.healthy(&next);
    assert_eq!(
        used.gantry.stop(Signal::INT).code(),
        Some(0),
        "{}",
        used.gantry.log()
    );
    assert_eq!(used.machine.servers(), []);
}
