//! Starting, adopting and stopping the process of an instance.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use gantry_base::net::owned_port::OwnedPort;
use gantry_node::{
    clusters::ServerSocket,
    kits::{Service, kit::InstalledKit},
    supervisor::{ProcessHandle, ProcessOwner},
};
use parking_lot::Mutex;
use rustix::process::Pid;
use secrecy::SecretString;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    environment::{
        realtime,
        service_environment::{ServiceEnvironment, check_manifest},
    },
    folder::{InstanceFolder, StartedKit},
    functions::{
        database::listen_for_database, output::FunctionLog, preparation, process::PreparedFunction,
    },
    instance::{FunctionSockets, Instance, RunningInstance},
    instance_id::InstanceId,
    kit_choice::find_kit,
    limits,
    output::{OutputReader, OutputTarget},
    pooler::{
        config::{self, PoolerConfig},
        pause::end_pause,
        process as pooler,
        retired::free_folder,
    },
    probe, replace,
    requests::ProcessRequests,
    rest::{process as rest, stored_settings::StoredSettings},
    spawn::InstancePorts,
    start_settings::StartSettings,
    stop::end_processes,
};
use crate::{
    control::{
        api_keys,
        context::ControlContext,
        projects::{self, reconciler::plan},
        services::start_failure::{StartFailure, failed},
    },
    proxy::{
        service_proxy::upstreams::{Upstream, UpstreamAddress},
        unavailable::UnavailableReason,
    },
};

/// Distance between the user ids of a project and its services. A project's own ids are below.
pub(super) const UID_STEP: u32 = 1_000_000;
/// Interval of polling for readiness.
const POLL: Duration = Duration::from_millis(5);

/// Starts the instance, for a caller that marked it as starting, and sets its state.
pub(super) async fn run(context: ControlContext, instance: Arc<Instance>) {
    let stored = StartSettings::stored(&context, &instance.id).await;
    let outcome = match stored {
        Ok(settings) => start(&context, &instance, &settings).await,
        Err(failure) => Err(failure),
    };
    let InstanceId {
        project, service, ..
    } = &instance.id;
    let version = match &outcome {
        Ok(running) => Some(&running.kit.version),
        Err(failure) if failure.reason == UnavailableReason::Failed => failure.kit.as_ref(),
        Err(_) => None,
    };
    if let Some(version) = version {
        let (versions, now) = (&context.services.versions, context.clock.ticks());
        versions.record(*service, version, *project, outcome.is_ok(), now);
    }
    finish(&context, &instance, outcome);
}

/// Sets the state after a start.
fn finish(
    context: &ControlContext,
    instance: &Arc<Instance>,
    outcome: Result<RunningInstance, StartFailure>,
) {
    match outcome {
        Ok(running) => replace::publish(context, instance, running),
        Err(StartFailure { reason, why, .. }) => {
            if reason.is_fault() || reason == UnavailableReason::BrokenKit {
                let InstanceId {
                    reference, service, ..
                } = &instance.id;
                tracing::warn!(project = %reference, %service, why, "service did not start");
            }
            instance.failed(reason, Some(why), context.clock.ticks());
        }
    }
}

/// Starts a process with these settings, or adopts the one that runs with them.
pub(super) async fn start(
    context: &ControlContext,
    instance: &Arc<Instance>,
    settings: &StartSettings,
) -> Result<RunningInstance, StartFailure> {
    let id = &instance.id;
    let _permit = context
        .services
        .starts
        .acquire()
        .await
        .map_err(|error| StartFailure::new(UnavailableReason::Starting, error))?;
    if !context.lease.leads() {
        return Err(StartFailure::new(
            UnavailableReason::Elsewhere,
            "this process does not hold the lease of the data folder",
        ));
    }
    let kit = kit(context, id.service)?;
    let stored = settings.of_data_api();
    if kit.manifest.needs.postgrest && stored.settings.is_off() {
        return Err(StartFailure::new(
            UnavailableReason::Off,
            "db_schema is empty",
        ));
    }
    if kit.manifest.needs.database.is_some() {
        projects::wake(context, id.project, &id.reference)
            .await
            .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error.message()))?;
    }
    let owner = owner(context, id, &kit)?;
    let environment = match settings {
        StartSettings::Environment(settings) if kit.manifest.needs.settings => {
            let built = ServiceEnvironment::build(context, id, settings).await?;
            check_manifest(&kit.manifest, &built)?;
            Some(built)
        }
        _ => None,
    };
    let pooler = if kit.manifest.needs.pooler {
        let config = config::config(context, id.project).await;
        let away = |error| StartFailure::new(UnavailableReason::DatabaseAway, error);
        Some(config.map_err(away)?)
    } else {
        None
    };
    let folder = free_folder(&context.home, instance);
    let parts = InstanceParts {
        context,
        instance,
        kit,
        owner,
        folder,
        stored,
        environment,
        pooler,
    };
    if let Some(running) = parts.adopt().await? {
        return Ok(running);
    }
    parts.launch().await
}

fn kit(context: &ControlContext, service: Service) -> Result<InstalledKit, StartFailure> {
    match find_kit(context, service) {
        Ok(Some(kit)) => Ok(kit),
        Ok(None) => Err(StartFailure::new(
            UnavailableReason::NoKit,
            "no kit is installed",
        )),
        Err(error) => Err(StartFailure::new(UnavailableReason::BrokenKit, error)),
    }
}

/// Returns the account of an instance: a user id of its own, derived from the project's, and the
/// project's group, which may connect to the database's socket.
pub(super) fn owner(
    context: &ControlContext,
    id: &InstanceId,
    kit: &InstalledKit,
) -> Result<ProcessOwner, StartFailure> {
    let data = context.home.data_directory(&id.reference);
    let (uid, gid) = match fs::symlink_metadata(data) {
        Ok(found) => (found.uid(), found.gid()),
        Err(_) if kit.manifest.needs.database.is_some() => {
            return Err(StartFailure::new(
                UnavailableReason::Elsewhere,
                "the project's cluster is not on this machine",
            ));
        }
        Err(_) => {
            let uid = plan::uid(context, id.project.0)
                .map_err(|error| StartFailure::new(UnavailableReason::Failed, error))?;
            (uid, uid)
        }
    };
    let step = UID_STEP * (id.service as u32 + 1);
    let own = uid.checked_add(step);
    let own = own.ok_or_else(|| StartFailure::new(UnavailableReason::Failed, "no user id left"))?;
    let gid = if kit.manifest.needs.database.is_some() {
        gid
    } else {
        own
    };
    Ok(ProcessOwner::new(own, gid))
}

/// The parts of a start.
pub(super) struct InstanceParts<'a> {
    pub(super) context: &'a ControlContext,
    pub(super) instance: &'a Arc<Instance>,
    pub(super) kit: InstalledKit,
    pub(super) owner: ProcessOwner,
    pub(super) folder: InstanceFolder,
    stored: StoredSettings,
    pub(super) environment: Option<ServiceEnvironment>,
    /// The configuration, for a pooler.
    pooler: Option<PoolerConfig>,
}

impl InstanceParts<'_> {
    fn started(&self) -> StartedKit {
        let version = &self.kit.version;
        if let Some(config) = &self.pooler {
            return config.started(version);
        }
        match &self.environment {
            Some(environment) => environment.started(version),
            None => StartedKit {
                function: self.instance.id.function.clone(),
                ..self.stored.started(version)
            },
        }
    }

    /// Returns the running process of an earlier Gantry if it has the same kit and settings. Ends
    /// any other process of the folder.
    async fn adopt(&self) -> Result<Option<RunningInstance>, StartFailure> {
        let launched = self.folder.launched();
        let recorded = self.folder.recorded();
        let numbers = recorded.as_ref().map(|recorded| recorded.ports.clone());
        let numbers = numbers.unwrap_or_default();
        let expected = StartedKit {
            ports: numbers.clone(),
            ..self.started()
        };
        if let Some(pid) = launched
            && recorded == Some(expected)
            && let Some(ports) = self.known_ports(&numbers).await
        {
            let handle = ProcessHandle::open(pid).map_err(failed("watching a service"))?;
            // Checked again: the pid may have been reused before it was opened.
            if let Some(handle) = handle
                && self.folder.launched() == Some(pid)
            {
                let log = match &self.instance.id.function {
                    Some(function) => {
                        preparation::adopted_log(self.context, &self.instance.id, function).await
                    }
                    None => None,
                };
                let exceeded = log.as_ref().map(|log| log.exceeded.clone());
                let held = (self.output(log), self.function_sockets()?, ports);
                let running = self.running(pid, handle, held, exceeded);
                if self.is_ready(&running).await {
                    if self.pooler.is_some() {
                        end_pause(&running).await;
                    }
                    let InstanceId {
                        reference, service, ..
                    } = &self.instance.id;
                    tracing::info!(project = %reference, %service, "running service adopted");
                    return Ok(Some(running));
                }
            }
        }
        end_processes(&self.folder, self.owner)
            .await
            .map_err(failed("ending an earlier service"))?;
        Ok(None)
    }

    /// Starts a process and waits until it is ready.
    async fn launch(&self) -> Result<RunningInstance, StartFailure> {
        let id = &self.instance.id;
        self.folder
            .create(self.owner)
            .map_err(failed("creating the folder of a service"))?;
        let mut loaded = None;
        if self.kit.manifest.needs.postgrest {
            let keys = api_keys::accepted_keys(self.context, id.project, &id.reference)
                .await
                .map_err(|error| StartFailure::new(UnavailableReason::DatabaseAway, error))?;
            let settings = &self.stored.settings;
            let check =
                rest::prepare(self.context, id, &self.folder, self.owner, settings, &keys).await?;
            loaded = Some((keys, check));
        }
        if let Some(config) = &self.pooler {
            pooler::prepare(self.context, id, &self.folder, self.owner, config).await?;
        }
        let ports = self.reserve_ports().await?;
        let numbers = ports.numbers();
        let begun = self.context.clock.ticks();
        let prepared = self.prepare_function().await?;
        // Modules of a function may send requests before the program is ready.
        let sockets = self.function_sockets()?;
        let log = prepared.as_ref().map(|prepared| {
            FunctionLog::new(self.context, &self.instance.id, prepared.logged.clone())
        });
        // Opened before the program: a pipe without an open end loses its bytes.
        let output = self.output(log.clone());
        let spawned = self.spawn(prepared.as_ref(), &numbers).await;
        let (pid, handle, password) = match spawned {
            Ok(spawned) => spawned,
            Err(failure) => {
                let _ = end_processes(&self.folder, self.owner).await;
                let why = output.last_line().await.unwrap_or(failure.why);
                output.finish().await;
                return Err(StartFailure { why, ..failure });
            }
        };
        let exceeded = log.as_ref().map(|log| log.exceeded.clone());
        let running = self.running(pid, handle, (output, sockets, ports), exceeded);
        let outcome = self.await_ready(&running).await;
        let outcome = match (outcome, &loaded) {
            (Ok(()), Some((keys, check))) => check.confirm(&running, keys).await,
            (Ok(()), None) => self.register(&running, password.as_ref(), &numbers).await,
            (outcome, _) => outcome,
        };
        if let Err(failure) = outcome {
            let _ = end_processes(&self.folder, self.owner).await;
            let last = running.output.last_line().await;
            running.output.finish().await;
            let killed = limits::killed_by_kernel(self.context, &self.folder, &self.kit.manifest);
            let last = killed.or(last);
            if let Some(log) = &log {
                log.failed(last.as_deref().unwrap_or(&failure.why));
            }
            limits::release(self.context, &self.folder).await;
            return Err(StartFailure {
                why: last.unwrap_or(failure.why),
                kit: Some(self.kit.version.clone()),
                ..failure
            });
        }
        self.folder
            .record(&StartedKit {
                ports: numbers,
                ..self.started()
            })
            .map_err(failed("recording a service"))?;
        if let Some(log) = &log {
            log.booted(self.context.clock.ticks().saturating_sub(begun));
        }
        Ok(running)
    }

    /// Prepares the version of an instance of functions.
    async fn prepare_function(&self) -> Result<Option<PreparedFunction>, StartFailure> {
        let id = &self.instance.id;
        let Some(function) = &id.function else {
            return Ok(None);
        };
        let place = (&self.folder, self.owner, &self.kit);
        let prepared = preparation::prepare(self.context, id, function, place);
        Box::pin(prepared).await.map(Some)
    }

    /// Registers the project with a Realtime that is ready.
    async fn register(
        &self,
        running: &RunningInstance,
        password: Option<&SecretString>,
        ports: &[u16],
    ) -> Result<(), StartFailure> {
        match (&self.environment, password, ports) {
            (Some(environment), Some(password), [.., database])
                if running.id.service == Service::Realtime =>
            {
                let login = (password, *database);
                realtime::register(self.context, running, &environment.settings, login).await
            }
            _ => Ok(()),
        }
    }

    /// Starts reading the output, which is the log of a function.
    fn output(&self, log: Option<FunctionLog>) -> OutputReader {
        if let Some(log) = log {
            return log.start_reading(&self.folder.output());
        }
        let target = OutputTarget {
            id: self.instance.id.clone(),
            queue: Arc::clone(&self.context.services.output),
            clock: self.context.clock.clone(),
            entropy: self.context.entropy.clone(),
        };
        OutputReader::start(&self.folder.output(), target)
    }

    /// Listens for the connections of a function to the services and the database of its project.
    fn function_sockets(&self) -> Result<Option<FunctionSockets>, StartFailure> {
        let id = &self.instance.id;
        if id.function.is_none() {
            return Ok(None);
        }
        let (services, database) = (self.folder.gateway(), self.folder.database());
        let listen = || {
            let project = (id.project, &id.reference);
            Ok(FunctionSockets {
                _services: (self.context.open_gateway)(
                    self.context,
                    &id.reference,
                    &services,
                    self.owner,
                )?,
                _database: listen_for_database(self.context, project, &database, self.owner)?,
            })
        };
        listen()
            .map(Some)
            .map_err(failed("listening for a function"))
    }

    fn running(
        &self,
        pid: Pid,
        handle: ProcessHandle,
        (output, sockets, ports): (OutputReader, Option<FunctionSockets>, InstancePorts),
        exceeded: Option<Arc<AtomicBool>>,
    ) -> RunningInstance {
        let uid = self.owner.uid();
        let address = match ports.first() {
            Some(port) => UpstreamAddress::Port(OwnedPort { port, uid }),
            None => UpstreamAddress::Unix(ServerSocket::of_process(
                self.socket(),
                uid,
                pid.as_raw_nonzero().get(),
            )),
        };
        let keys = self.environment.as_ref().map_or(0, |built| built.keys);
        let id = &self.instance.id;
        let upstream = Upstream::of_process(address.clone(), id.service, &id.reference);
        RunningInstance {
            id: id.clone(),
            upstream: Arc::new(upstream),
            address,
            _ports: ports.reserved,
            _database: ports.database,
            handle,
            pid,
            kit: self.kit.clone(),
            settings: Mutex::new(self.stored.clone()),
            folder: self.folder.clone(),
            owner: self.owner,
            output,
            keys: AtomicU64::new(keys),
            since: self.context.clock.ticks(),
            exceeded: exceeded.unwrap_or_default(),
            _sockets: sockets,
            requests: ProcessRequests::default(),
            settled: watch::Sender::new(false),
            loading: tokio::sync::Mutex::default(),
            pausing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the path of the Unix socket.
    fn socket(&self) -> PathBuf {
        if self.pooler.is_some() {
            self.folder.pooler_socket()
        } else {
            self.folder.socket()
        }
    }

    async fn is_ready(&self, running: &RunningInstance) -> bool {
        if self.pooler.is_some() {
            return pooler::is_ready(running).await;
        }
        if running.id.function.is_some()
            && let UpstreamAddress::Unix(socket) = &running.address
        {
            // A request would run the function.
            return socket.connect().await.is_ok();
        }
        let ready = &running.kit.manifest.ready;
        matches!(probe::is_ready(&running.address, ready).await, Ok(true))
    }

    /// Waits until the program answers. Fails at once if it ends.
    async fn await_ready(&self, running: &RunningInstance) -> Result<(), StartFailure> {
        let patience = Duration::from_secs(running.kit.manifest.ready.seconds.into());
        let ready = async {
            while !self.is_ready(running).await {
                sleep(POLL).await;
            }
        };
        tokio::select! {
            ready = timeout(patience, ready) => ready.map_err(|_| {
                let secs = patience.as_secs();
                StartFailure::new(UnavailableReason::Failed, format!("not ready after {secs} s"))
            }),
            _ = running.handle.ended() => {
                Err(StartFailure::new(UnavailableReason::Failed, "the program ended during its start"))
            }
        }
    }
}
