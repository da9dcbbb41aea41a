//! A Valkey server and nodes of a test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use axum::{body::Body, http::Request};
use gantry::{
    app::{App, Background, Settings},
    platform::{
        db::Db,
        http::{Api, Response, Transport},
        rate_limits::{Memory, Options},
    },
};
use gantry_base::clock::{Clock, Entropy};
use gantry_node::clusters::LocalDriver;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_postgres::Config;
use tower::ServiceExt;
use uuid::Uuid;

use crate::support::{
    machine::{Machine, host},
    settings,
};

/// A deadline long enough for a busy machine.
pub(super) const LONG_DEADLINE: Duration = Duration::from_secs(10);

/// A Valkey or Redis server of a test, on a Unix socket.
pub(super) struct Valkey {
    process: Child,
    program: PathBuf,
    dir: TempDir,
}

impl Valkey {
    pub(super) async fn start() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut candidates = ["valkey-server", "redis-server"]
            .iter()
            .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
        let program = candidates
            .find(|file| file.is_file())
            .expect("a Valkey or Redis server: apt-get install redis-server");
        let dir = tempfile::tempdir().unwrap();
        let process = Self::spawn(&program, dir.path()).await;
        Self {
            process,
            program,
            dir,
        }
    }

    pub(super) async fn spawn(program: &Path, dir: &Path) -> Child {
        let socket = dir.join("valkey.sock");
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(dir)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        while UnixStream::connect(&socket).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        process
    }

    pub(super) fn url(&self) -> String {
        format!(
            "redis+unix://{}",
            self.dir.path().join("valkey.sock").display()
        )
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("valkey.sock")
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(super) async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    pub(super) async fn start_again(&mut self) {
        self.process = Self::spawn(&self.program, self.dir.path()).await;
    }

    /// Sends one command and returns the raw response.
    pub(super) async fn say(&self, line: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("valkey.sock"))
            .await
            .unwrap();
        stream
            .write_all(format!("{line}\r\nQUIT\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

pub(super) fn options(url: &str, deadline: Duration) -> Options {
    Options {
        url: Some(url.into()),
        deadline,
    }
}

/// A whole application with the real clock, one of several nodes.
pub(super) struct Node {
    pub(super) app: App,
    api: Api,
    pub(super) background: Option<Background>,
    _machine: Machine,
}

impl Node {
    pub(super) fn new(config: &Config, counting: &Options) -> Self {
        let machine = Machine::bare();
        let settings = Settings {
            counting: counting.clone(),
            ..settings(Transport::default(), Uuid::nil())
        };
        let clusters = LocalDriver::open(machine.home.clone(), host(), Entropy::system());
        let db = Db::new(config.clone()).unwrap();
        let (app, background) = App::new(
            settings,
            Clock::system(),
            Entropy::system(),
            db,
            std::sync::Arc::new(clusters),
            machine.home.clone(),
            Memory::default(),
        )
        .unwrap();
        Self {
            api: app.api(),
            app,
            background: Some(background),
            _machine: machine,
        }
    }

    pub(super) async fn get(&self, path: &str, token: Option<&str>) -> Response {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.api
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
    }

    /// Sends a request that is counted by address and reads no database.
    pub(super) async fn ask(&self) -> Response {
        self.get("/v1/compatibility", None).await
    }

    pub(super) fn decided_by(&self, by: &str) -> u64 {
        let line = format!("gantry_limits_shared_total{{by=\"{by}\"}} ");
        let page = self.app.metrics.render();
        page.lines()
            .find_map(|l| l.strip_prefix(&line))
            .map_or(0, |count| count.parse().unwrap())
    }

    pub(super) async fn until_shared(&self) {
        let before = self.decided_by("this process alone");
        let asked = async {
            loop {
                let alone = self.decided_by("this process alone");
                self.get("/nothing-here", None).await;
                if self.decided_by("this process alone") == alone {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG_DEADLINE, asked)
            .await
            .unwrap_or_else(|_| panic!("never shared; {before} before"));
    }
}

pub(super) fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}
