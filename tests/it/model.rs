//! Every fault in every state of a project: the project reaches its final state within a bounded
//! number of attempts.
//!
//! The clusters are a model, so that each step can fail, hang or be interrupted. The rows, the
//! lease and the reconciler are real. `binary/crash.rs` has the same faults with real processes.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use chrono::TimeDelta;
use gantry::control::projects::Status;
use gantry_base::ids::ProjectRef;
use gantry_node::{
    cluster_driver::{ClusterDriver, ServerSettings},
    clusters::{
        ClusterSpec, CopyPriority, LocalDriver, PlatformConflict, PrivilegeFinding, ProcessEnd,
        ResourceLimits, RunningServer, ServerProcess, ServerSocket, SuperuserSession,
        resources::{Measurement, disk::DiskUsage},
    },
    engines::{Engine, Engines},
    error::{ClusterError, Result},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch::{Sender, channel},
    time::timeout,
};
use tokio_postgres::Client;

use crate::{
    events,
    support::{Node, TestApp, machine::Machine},
};

/// Maximum number of attempts to reach the final state after the last fault. The clock advances by
/// a minute for each, the longest pause between two attempts.
const ROUNDS_MAX: u32 = 4;
/// Real time limit of one attempt in the model.
const ATTEMPT: Duration = Duration::from_millis(300);
/// The node of the tested projects.
const NODE: u128 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Create,
    Configure,
    Start,
    Ready,
    Reload,
    Password,
    Stop,
    Remove,
}

const STEPS: [At; 8] = [
    At::Create,
    At::Configure,
    At::Start,
    At::Ready,
    At::Reload,
    At::Password,
    At::Stop,
    At::Remove,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The step fails this many times in a row for each project.
    Fails(At, u32),
    /// Gantry is killed during the step, and another process starts.
    Killed(At),
    /// Gantry and all servers are killed during the step, and another process starts.
    AllKilled(At),
    /// Every server is killed repeatedly.
    ServersKilled,
    /// The wall clock is changed by this many hours.
    Clock(i64),
}

/// The state of a project's cluster in the model.
#[derive(Debug, Default)]
struct Place {
    data: bool,
    /// The pid of a server, and the channel that closes when the server ends.
    server: Option<(i32, Sender<()>)>,
    failures: HashMap<At, u32>,
}

#[derive(Debug)]
struct Model {
    local: LocalDriver,
    places: Mutex<HashMap<ProjectRef, Place>>,
    pids: AtomicI32,
    fails: Mutex<Option<(At, u32)>>,
    /// A task that reaches this step hangs, like one of a killed process.
    hangs: Mutex<Option<At>>,
    hanging: Mutex<Option<Sender<u32>>>,
}

impl Model {
    fn new(local: LocalDriver) -> Self {
        Self {
            local,
            places: Mutex::default(),
            pids: AtomicI32::default(),
            fails: Mutex::default(),
            hangs: Mutex::default(),
            hanging: Mutex::default(),
        }
    }

    async fn step(
        &self,
        at: At,
        project: &ProjectRef,
        work: impl FnOnce(&mut Place, i32),
    ) -> Result<()> {
        if *self.hangs.lock() == Some(at) {
            if let Some(bell) = &*self.hanging.lock() {
                bell.send_modify(|count| *count += 1);
            }
            std::future::pending::<()>().await;
        }
        let mut places = self.places.lock();
        let place = places.entry(project.clone()).or_default();
        let failures = place.failures.entry(at).or_default();
        if let Some((_, times)) = self
            .fails
            .lock()
            .filter(|(step, times)| *step == at && *failures < *times)
        {
            *failures += 1;
            debug_assert!(*failures <= times);
            return Err(ClusterError::NotStopped(format!("{project} at {at:?}")));
        }
        work(place, self.pids.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }

    fn kill_servers(&self) {
        for place in self.places.lock().values_mut() {
            place.server = None;
        }
    }

    fn is(&self, project: &ProjectRef) -> (bool, bool) {
        self.places
            .lock()
            .get(project)
            .map_or((false, false), |place| (place.data, place.server.is_some()))
    }
}

/// Operations without injected faults call the driver of the machine.
#[async_trait]
impl ClusterDriver for Model {
    fn engines(&self) -> &Engines {
        self.local.engines()
    }

    fn resource_limits(&self) -> Option<&ResourceLimits> {
        ClusterDriver::resource_limits(&self.local)
    }

    fn enforces_limits(&self) -> bool {
        ClusterDriver::enforces_limits(&self.local)
    }

    fn template_name(&self, engine: &Engine) -> Result<String> {
        self.local.template_name(engine)
    }

    fn platform_version(&self) -> String {
        self.local.platform_version()
    }

    async fn create(&self, cluster: &ClusterSpec, _: CopyPriority) -> Result<()> {
        self.step(At::Create, &cluster.project, |place, _| place.data = true)
            .await
    }

    async fn exists(&self, project: &ProjectRef) -> Result<bool> {
        Ok(self.local.exists(project))
    }

    async fn start(&self, project: &ProjectRef) -> Result<()> {
        if !self.is(project).0 {
            return Err(ClusterError::Missing(project.to_string()));
        }
        let start = |place: &mut Place, pid| {
            place.server.get_or_insert_with(|| (pid, channel(()).0));
        };
        self.step(At::Start, project, start).await
    }

    async fn wait_ready(&self, project: &ProjectRef, _: Duration) -> Result<()> {
        self.step(At::Ready, project, |_, _| ()).await?;
        if self.is(project).1 {
            Ok(())
        } else {
            Err(ClusterError::Missing(project.to_string()))
        }
    }

    async fn running(&self, project: &ProjectRef) -> Result<Option<RunningServer>> {
        let places = self.places.lock();
        let server = places.get(project).and_then(|place| place.server.as_ref());
        Ok(server.map(|(pid, end)| {
            let mut end = end.subscribe();
            RunningServer::new(ServerProcess::new(*pid), async move {
                // No value is ever sent: the channel closes when the server ends.
                let _ = end.changed().await;
                Ok(())
            })
        }))
    }

    async fn stop(&self, project: &ProjectRef) -> Result<()> {
        self.step(At::Stop, project, |place, _| place.server = None)
            .await
    }

    async fn stop_at_once(&self, project: &ProjectRef) -> Result<()> {
        self.local.stop_at_once(project).await
    }

    async fn stop_all(&self) -> Result<()> {
        self.local.stop_all().await
    }

    async fn remove(&self, project: &ProjectRef) -> Result<()> {
        self.step(At::Remove, project, |place, _| *place = Place::default())
            .await
    }

    async fn check_settings(&self, project: &ProjectRef, settings: &ServerSettings) -> Result<()> {
        self.local.check_settings(project, settings).await
    }

    async fn configure(&self, project: &ProjectRef, _: &ServerSettings) -> Result<()> {
        self.step(At::Configure, project, |_, _| ()).await
    }

    async fn reload(&self, project: &ProjectRef) -> Result<()> {
        self.step(At::Reload, project, |_, _| ()).await
    }

    async fn set_read_only(&self, project: &ProjectRef, read_only: bool) -> Result<()> {
        self.local.set_read_only(project, read_only).await
    }

    fn socket(&self, project: &ProjectRef) -> ServerSocket {
        self.local.socket(project)
    }

    async fn superuser_session(&self, _: &ProjectRef) -> Result<SuperuserSession> {
        Err(ClusterError::Unsupported("sessions"))
    }

    async fn superuser_session_in(&self, _: &ProjectRef, _: &str) -> Result<SuperuserSession> {
        Err(ClusterError::Unsupported("sessions"))
    }

    async fn session_as(&self, _: &ProjectRef, _: &str, _: &str) -> Result<Client> {
        Err(ClusterError::Unsupported("sessions"))
    }

    async fn refresh_access(&self, project: &ProjectRef) -> Result<()> {
        self.local.refresh_access(project).await
    }

    async fn find_privileges(&self, admin: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
        self.local.find_privileges(admin).await
    }

    async fn revoke_privileges(
        &self,
        project: &ProjectRef,
        admin: &SuperuserSession,
        found: &[PrivilegeFinding],
    ) -> Result<()> {
        self.local.revoke_privileges(project, admin, found).await
    }

    async fn has_sessions(&self, project: &ProjectRef) -> Result<bool> {
        self.local.has_sessions(project).await
    }

    async fn set_password(&self, project: &ProjectRef, _: &str, _: &str) -> Result<()> {
        self.step(At::Password, project, |_, _| ()).await
    }

    async fn repair_roles(&self, project: &ProjectRef) -> Result<()> {
        self.local.repair_roles(project).await
    }

    async fn repair_roles_over(&self, admin: &SuperuserSession) -> Result<()> {
        self.local.repair_roles_over(admin).await
    }

    async fn apply_platform(&self, admin: &SuperuserSession) -> Result<Vec<PlatformConflict>> {
        self.local.apply_platform(admin).await
    }

    async fn grant_on_new_tables(&self, admin: &SuperuserSession) -> Result<()> {
        self.local.grant_on_new_tables(admin).await
    }

    async fn measure_processes(
        &self,
        projects: Vec<ProjectRef>,
    ) -> Result<HashMap<ProjectRef, Measurement>> {
        self.local.measure_processes(projects).await
    }

    async fn apply_limits(&self, project: &ProjectRef) -> Result<()> {
        self.local.apply_limits(project).await
    }

    async fn end_process(
        &self,
        project: &ProjectRef,
        process: ServerProcess,
        how: ProcessEnd,
    ) -> Result<()> {
        self.local.end_process(project, process, how).await
    }

    async fn disk_usage(&self, project: &ProjectRef, inodes_max: u64) -> Result<DiskUsage> {
        self.local.disk_usage(project, inodes_max).await
    }

    fn free_space(&self) -> Option<(u64, u64)> {
        self.local.free_space()
    }

    async fn list(&self) -> Result<Vec<ProjectRef>> {
        self.local.list().await
    }

    async fn collect_garbage(&self, known: &HashSet<ProjectRef>) -> Result<()> {
        self.local.collect_garbage(known).await
    }

    async fn empty_trash(&self) -> Result<usize> {
        self.local.empty_trash().await
    }
}

/// Creates a project in each state, with a matching cluster.
async fn in_every_state(app: &TestApp, model: &Model) -> Vec<(ProjectRef, Status)> {
    let mut projects = Vec::new();
    for status in Status::ALL {
        let project = app.stub(app.home.id, status.name()).await;
        let desired = match status {
            Status::Pausing | Status::Inactive | Status::PauseFailed => "paused",
            Status::GoingDown | Status::Removed => "removed",
            _ => "active",
        };
        let sql = "update projects set node = $2, status = $3, desired = $4, settled_at = created_at, \
                   password_verifier = case when $4 = 'removed' then null else 'a verifier' end, \
                   settings = case when $3 in ('ACTIVE_HEALTHY', 'RESTARTING') then '{\"work_mem\": \"8MB\"}'::jsonb else '{}' end, \
                   settings_before = case when $3 in ('ACTIVE_HEALTHY', 'RESTARTING') then '{}'::jsonb end where ref = $1";
        let node = uuid::Uuid::from_u128(NODE);
        app.app
            .db
            .query(sql, &[&project.as_str(), &node, &status.name(), &desired])
            .await
            .unwrap();
        let place = Place {
            data: !matches!(
                status,
                Status::ComingUp | Status::InitFailed | Status::Removed
            ),
            server: matches!(
                status,
                Status::ActiveHealthy
                    | Status::Pausing
                    | Status::PauseFailed
                    | Status::Restarting
                    | Status::GoingDown
            )
            .then(|| (1, channel(()).0)),
            failures: HashMap::new(),
        };
        model.places.lock().insert(project.clone(), place);
        projects.push((project, status));
    }
    projects
}

fn goal(status: Status) -> &'static str {
    match status {
        Status::Pausing | Status::Inactive | Status::PauseFailed => "INACTIVE",
        Status::GoingDown | Status::Removed => "REMOVED",
        _ => "ACTIVE_HEALTHY",
    }
}

/// Returns why a project has not reached its final state, or `None` if it has.
async fn unrest(
    app: &TestApp,
    model: &Model,
    project: &ProjectRef,
    begun: Status,
) -> Option<String> {
    let sql = "select status, password_verifier is not null, settings_before is not null, coalesce(last_error, '') from projects where ref = $1";
    let row = &app.app.db.query(sql, &[&project.as_str()]).await.unwrap()[0];
    let (status, verifier, settings): (String, bool, bool) = (row.get(0), row.get(1), row.get(2));
    let wanted = match goal(begun) {
        "INACTIVE" => (true, false),
        "REMOVED" => (false, false),
        _ => (true, true),
    };
    let open = (verifier || settings) && goal(begun) == "ACTIVE_HEALTHY";
    let there = model.is(project);
    let why: String = row.get(3);
    (status != goal(begun) || there != wanted || open)
        .then(|| format!("begun in {begun:?}, is {status} with {there:?}, open: {open}, {why}"))
}

/// Runs due attempts until all projects have reached their final state.
async fn rest(
    app: &TestApp,
    node: &Node,
    model: &Model,
    projects: &[(ProjectRef, Status)],
    rounds_max: u32,
    fault: Fault,
) {
    let mut changes = node.app.reconciler.changes();
    for round in 0.. {
        // Waits for all due work. There is no event for its end, so a pause counts as the end.
        while timeout(ATTEMPT, changes.changed()).await.is_ok() {}
        let mut left = Vec::new();
        for (project, begun) in projects {
            left.extend(unrest(app, model, project, *begun).await);
        }
        if left.is_empty() {
            return;
        }
        assert!(
            round < rounds_max,
            "{fault:?}, after {round} rounds: {left:#?}"
        );
        app.advance(61);
        node.app.reconciler.wake();
    }
}

async fn explore(fault: Fault) {
    let app = TestApp::new().await;
    let machine = Arc::new(Machine::bare());
    let model = Arc::new(Model::new(machine.clusters.clone()));
    let projects = in_every_state(&app, &model).await;
    let mut node = app.another_with_driver(model.clone(), NODE, machine.clone());
    let mut rounds = ROUNDS_MAX;
    match fault {
        Fault::None => {}
        // A failed attempt sets the time of the next one before the clock jumps.
        Fault::Clock(_) => *model.fails.lock() = Some((At::Start, 1)),
        Fault::Fails(at, times) => {
            *model.fails.lock() = Some((at, times));
            rounds += times;
        }
        Fault::Killed(at) | Fault::AllKilled(at) => {
            let (bell, mut hanging) = channel(0);
            (*model.hangs.lock(), *model.hanging.lock()) = (Some(at), Some(bell));
            node.start();
            timeout(Duration::from_secs(30), hanging.changed())
                .await
                .expect("a task reaches the step")
                .unwrap();
            // The kernel releases the locks of a killed process. Its tasks hang, and its row is
            // unchanged.
            node.kill();
            *model.hangs.lock() = None;
            if matches!(fault, Fault::AllKilled(_)) {
                model.kill_servers();
            }
            node = app.another_with_driver(model.clone(), NODE, machine);
        }
        Fault::ServersKilled => {
            rounds += 3;
        }
    }
    node.start();
    match fault {
        Fault::Clock(hours) => {
            let mut changes = node.app.reconciler.changes();
            timeout(Duration::from_secs(30), changes.changed())
                .await
                .expect("something happens")
                .unwrap();
            app.clock.step_wall(TimeDelta::hours(hours));
            node.app.reconciler.wake();
        }
        Fault::ServersKilled => {
            let mut changes = node.app.reconciler.changes();
            for _ in 0..3 {
                timeout(Duration::from_secs(30), changes.changed())
                    .await
                    .expect("something happens")
                    .unwrap();
                model.kill_servers();
                app.advance(61);
                node.app.reconciler.wake();
            }
        }
        _ => {}
    }
    rest(&app, &node, &model, &projects, rounds, fault).await;
    events::assert_chains(&app.app.db).await;
    node.stop().await;
}

#[tokio::test]
async fn every_state_converges_without_faults() {
    explore(Fault::None).await;
}

#[tokio::test]
async fn every_state_converges_after_failed_steps() {
    for at in STEPS {
        for times in [1, 6] {
            explore(Fault::Fails(at, times)).await;
        }
    }
}

#[tokio::test]
async fn every_state_converges_after_killed_manager() {
    for at in STEPS {
        explore(Fault::Killed(at)).await;
    }
}

#[tokio::test]
async fn every_state_converges_after_killed_manager_and_servers() {
    for at in STEPS {
        explore(Fault::AllKilled(at)).await;
    }
}

#[tokio::test]
async fn every_state_converges_after_killed_servers() {
    explore(Fault::ServersKilled).await;
}

#[tokio::test]
async fn every_state_converges_after_clock_jumps() {
    for hours in [-30, -1, 1, 30] {
        explore(Fault::Clock(hours)).await;
    }
}
