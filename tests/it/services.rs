//! Services of projects that Gantry runs itself.

mod archives;
mod auth;
mod faults;
mod function_faults;
mod function_runtime;
mod functions;
mod hostile;
mod install;
mod keys;
mod kits;
mod limits;
mod postgrest;
mod settings;
mod supervisor;
mod third_party;

pub(crate) use self::{
    auth::install as install_archive,
    postgrest::{kits, kits_named, kits_with},
};

use std::{
    fs,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use gantry::{
    app::Settings,
    control::{
        projects::lease,
        services::{self, ServiceUse, state::ServiceOptions},
    },
    platform::http::Transport,
    proxy::{
        accepted_keys::AcceptedKeys, service_caller::ServiceCaller,
        service_proxy::upstreams::UpstreamAddress, unavailable::Unavailable,
    },
};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::{Service, shelf::KitShelf};
use rustix::process::Pid;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use uuid::Uuid;

use crate::support::{
    Node, TestApp,
    machine::{Machine, PATIENCE, host, kill},
    settings,
};

/// A kit of `rest` with the program `fake.c`.
const FAKE: &str = r#"
kit = "rest"
program = "bin/fake"
arguments = ["{socket}", "MODE", "{kit}/go"]
ready = { path = "/", seconds = SECONDS }
stop = { seconds = 2 }
memory_mb = 256
[environment]
TZ = "UTC"
"#;

/// An application with a node that runs fake services.
struct Floor {
    app: TestApp,
    node: Node,
    kits: PathBuf,
}

impl Floor {
    /// Returns a node on a machine without clusters, with one version of the fake kit.
    async fn new(mode: &str) -> Self {
        let app = TestApp::new().await;
        let floor = Self::on(app, Arc::clone);
        floor.install("1.0", mode, "10", "");
        lease::claim(&floor.node.app).await.unwrap();
        floor
    }

    fn on(app: TestApp, machine: impl FnOnce(&Arc<Machine>) -> Arc<Machine>) -> Self {
        let machine = machine(&app.machine);
        let kits = machine.dir().join("kits");
        fs::create_dir(&kits).unwrap();
        fs::set_permissions(&kits, Permissions::from_mode(0o755)).unwrap();
        let node = node(&app, &machine, &kits);
        Self { app, node, kits }
    }

    /// Installs a version of the fake kit.
    fn install(&self, version: &str, mode: &str, seconds: &str, more: &str) -> PathBuf {
        let folder = self.kits.join("rest").join(version);
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let program = bin.join("fake");
        build_fake(&program);
        for path in [&self.kits.join("rest"), &folder, &bin, &program] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let text = FAKE.replace("MODE", mode).replace("SECONDS", seconds);
        fs::write(folder.join("kit.toml"), format!("{more}{text}")).unwrap();
        folder
    }

    /// Returns another node for the same data folder and node id, as after a restart.
    fn again(&self) -> Node {
        node(&self.app, &self.node.machine, &self.kits)
    }

    async fn id(&self, project: &ProjectRef) -> ProjectId {
        let sql = "select id from projects where ref = $1";
        let rows = self.app.app.db.query(sql, &[&project.as_str()]).await;
        ProjectId(rows.unwrap()[0].get(0))
    }

    /// Uses the service of the home project on this node.
    async fn acquire(&self) -> Result<ServiceUse, Unavailable> {
        self.acquire_on(&self.node).await
    }

    async fn acquire_on(&self, node: &Node) -> Result<ServiceUse, Unavailable> {
        let project = &self.app.home.project;
        acquire(node, self.id(project).await, project).await
    }

    /// Uses the service of the home project for a request of this client.
    async fn acquire_for(&self, client: [u8; 4]) -> Result<ServiceUse, Unavailable> {
        let project = &self.app.home.project;
        let at = (self.id(project).await, project);
        let caller = Some(ServiceCaller::of_address(client.into()));
        let keys = Arc::new(AcceptedKeys::default());
        services::acquire(&self.node.app, at, Service::Rest, &keys, caller).await
    }

    /// Kills the process of the home project's instance, and waits until this was noticed.
    async fn kill_instance(&self) {
        let pid = self.pid(&self.node).await.unwrap();
        kill(Pid::from_raw(pid).unwrap()).await;
        until(async || self.pid(&self.node).await != Some(pid)).await;
    }

    /// Returns the pid of the home project's instance.
    async fn pid(&self, node: &Node) -> Option<i32> {
        let id = self.id(&self.app.home.project).await;
        node.app.services.pid(id, Service::Rest)
    }

    /// Returns the reason for which the home project's instance does not run.
    async fn failure(&self) -> String {
        let id = self.id(&self.app.home.project).await;
        let state = self.node.app.services.state(id, Service::Rest);
        let services::state::ServiceState::Failed(why) = state else {
            panic!("{state:?}");
        };
        why
    }

    /// The folder of the home project's instance.
    fn folder(&self) -> PathBuf {
        let name = format!("{}.rest", self.app.home.project);
        self.node.machine.home.socket_dir(&name).join("i")
    }
}

/// Builds the fake program.
fn build_fake(program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/services/fake.c");
    let mut compiler = Command::new("cc");
    let built = compiler.arg("-o").arg(program).arg(source).status();
    assert!(built.unwrap().success());
}

fn node(app: &TestApp, machine: &Arc<Machine>, kits: &Path) -> Node {
    let settings = Settings {
        services: ServiceOptions {
            shelf: KitShelf::new(None, kits.to_owned()),
            launcher: host().launcher,
            ..ServiceOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(11))
    };
    app.another_with(settings, Arc::clone(machine))
}

async fn acquire(
    node: &Node,
    id: ProjectId,
    project: &ProjectRef,
) -> Result<ServiceUse, Unavailable> {
    let keys = Arc::new(AcceptedKeys::default());
    services::acquire(&node.app, (id, project), Service::Rest, &keys, None).await
}

/// Sends a GET request to an instance and returns the body.
async fn get(used: &ServiceUse, path: &str) -> String {
    match used.upstream().address() {
        UpstreamAddress::Unix(socket) => get_over(socket.connect().await.unwrap(), path).await,
        UpstreamAddress::Port(port) => get_over(port.connect().await.unwrap(), path).await,
        UpstreamAddress::Tcp(_) => panic!("not an instance"),
    }
}

async fn get_over(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = async {
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.split("Content-Length: ").nth(1).unwrap();
                if body.len() == length.lines().next().unwrap().parse::<usize>().unwrap() {
                    return body.to_owned();
                }
            }
            answer.push(stream.read_u8().await.unwrap());
        }
    };
    timeout(PATIENCE, read).await.unwrap()
}

/// Waits until a condition holds that has no event.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, holds)
        .await
        .expect("it does not become true");
}
