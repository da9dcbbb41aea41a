//! Launching the processes of an instance: ports, files, environment, then the launcher.

use std::{
    io,
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};

use gantry_node::{
    kits::manifest::{ListenAddress, fill_loader},
    services::{database_port::DatabasePort, launch::ServiceLaunchPlan, ports::ReservedPort},
    supervisor::{Confinement, LaunchBounds, LauncherError, ProcessHandle, reap},
};
use rustix::process::Pid;
use secrecy::SecretString;
use tokio::time::timeout;

use super::{
    data,
    functions::process::{KilledOnDrop, PreparedFunction},
    limits, output,
    start::InstanceParts,
    start_failure::{StartFailure, failed},
};
use crate::proxy::unavailable::UnavailableReason;

/// Longest time of the program that runs before a start.
const PREPARATION_MAX: Duration = Duration::from_mins(1);

/// The ports of an instance. Released on drop.
#[derive(Default)]
pub(super) struct InstancePorts {
    /// Those that the program listens on, then the one that leads to its database.
    pub(super) reserved: Vec<ReservedPort>,
    pub(super) database: Option<DatabasePort>,
}

impl InstancePorts {
    pub(super) fn numbers(&self) -> Vec<u16> {
        self.reserved.iter().map(|reserved| reserved.port).collect()
    }

    /// The port that requests go to.
    pub(super) fn first(&self) -> Option<u16> {
        self.reserved.first().map(|reserved| reserved.port)
    }
}

impl InstanceParts<'_> {
    /// Returns how many ports the program listens on.
    fn listening(&self) -> u8 {
        let manifest = &self.kit.manifest;
        match manifest.listen {
            ListenAddress::Tcp => manifest.ports,
            ListenAddress::Unix => 0,
        }
    }

    fn port_count(&self) -> u8 {
        self.listening() + u8::from(self.kit.manifest.needs.database_port)
    }

    /// Reserves the ports of a new process.
    pub(super) async fn reserve_ports(&self) -> Result<InstancePorts, StartFailure> {
        let services = &self.context.services;
        let reserved = services
            .ports
            .reserve_all(&self.context.entropy, self.port_count());
        let reserved = reserved
            .ok_or_else(|| StartFailure::new(UnavailableReason::Full, "no port is free"))?;
        self.open(reserved)
            .await
            .map_err(failed("listening for a service's database"))
    }

    /// Reserves the ports of a process that runs. `None`: it must be replaced.
    pub(super) async fn known_ports(&self, numbers: &[u16]) -> Option<InstancePorts> {
        if numbers.len() != usize::from(self.port_count()) {
            return None;
        }
        let reserved = self.context.services.ports.reserve_all_known(numbers)?;
        self.open(reserved).await.ok()
    }

    async fn open(&self, reserved: Vec<ReservedPort>) -> io::Result<InstancePorts> {
        let mut ports = InstancePorts {
            reserved,
            database: None,
        };
        if self.kit.manifest.needs.database_port
            && let Some(last) = ports.reserved.last()
        {
            let database = self.context.driver.socket(&self.instance.id.reference);
            let listening = DatabasePort::listen(last.port, self.owner.uid(), database);
            ports.database = Some(listening.await?);
        }
        Ok(ports)
    }

    /// Runs the program that prepares a start, if there is one, then the program itself. Returns
    /// when the launcher has become it, with the password in its environment.
    pub(super) async fn spawn(
        &self,
        function: Option<&PreparedFunction>,
        ports: &[u16],
    ) -> Result<(Pid, ProcessHandle, Option<SecretString>), StartFailure> {
        self.create_data().await?;
        if let Some(program) = self.kit.preparation() {
            self.write_environment(ports).await?;
            let plan = ServiceLaunchPlan {
                program,
                program_arguments: Vec::new(),
                record: false,
                ..self.plan(self.bounds().await?, ports)
            };
            self.run_to_end(&plan).await?;
        }
        let mut plan = self.plan(self.bounds().await?, ports);
        if let Some(function) = function {
            function.apply(&mut plan);
        }
        let password = self.write_environment(ports).await?;
        let child = self.execute(&plan).await?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let handle = pid.and_then(|pid| ProcessHandle::open(pid).ok().flatten());
        reap(child);
        let (pid, handle) = pid.zip(handle).ok_or_else(|| {
            StartFailure::new(UnavailableReason::Failed, "the program ended at once")
        })?;
        Ok((pid, handle, password))
    }

    /// Creates the folder of a program that keeps files.
    async fn create_data(&self) -> Result<(), StartFailure> {
        if !self.kit.manifest.data {
            return Ok(());
        }
        let home = Arc::clone(&self.context.home);
        let (project, owner) = (self.instance.id.reference.clone(), self.owner);
        let made = tokio::task::spawn_blocking(move || data::create(&home, &project, owner)).await;
        made.unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(failed("creating the folder of files"))
    }

    /// Writes the environment of the process that is launched next. Returns the password in it.
    async fn write_environment(&self, ports: &[u16]) -> Result<Option<SecretString>, StartFailure> {
        let Some(environment) = &self.environment else {
            return Ok(None);
        };
        let (context, reference) = (self.context, &self.instance.id.reference);
        let data = data::folder(&context.home, reference);
        let place = (ports, data.as_path());
        let written = environment.write(context, reference, &self.folder, place);
        written.await.map(Some)
    }

    /// Runs a program to its end.
    async fn run_to_end(&self, plan: &ServiceLaunchPlan) -> Result<(), StartFailure> {
        let mut child = KilledOnDrop(self.execute(plan).await?);
        let ended = timeout(PREPARATION_MAX, child.ended()).await;
        if matches!(ended, Ok(Ok(status)) if status.success()) {
            return Ok(());
        }
        let name = plan.program.file_name().unwrap_or_default();
        let why = format!("{} failed before the start", name.to_string_lossy());
        Err(StartFailure::new(UnavailableReason::Failed, why))
    }

    /// Runs the launcher. Returns when it has become the program.
    async fn execute(&self, plan: &ServiceLaunchPlan) -> Result<Child, StartFailure> {
        let output = output::open(&self.folder.output()).map_err(failed("opening the output"))?;
        let twin = output.try_clone().map_err(failed("opening the output"))?;
        let launcher = &self.context.control_settings.services.launcher;
        let mut command = launcher.command(plan.arguments());
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(twin);
        match launcher.run(command).await {
            Ok(child) => Ok(child),
            Err(LauncherError::Run(error) | LauncherError::Kill(error)) => {
                Err(failed("running the launcher")(error))
            }
            Err(LauncherError::ShuttingDown) => Err(StartFailure::new(
                UnavailableReason::Starting,
                "shutting down",
            )),
        }
    }

    /// Creates the control group of the process.
    async fn bounds(&self) -> Result<LaunchBounds, StartFailure> {
        let (context, name) = (self.context.clone(), self.folder.name());
        let (manifest, owner) = (self.kit.manifest.clone(), self.owner);
        let prepared = tokio::task::spawn_blocking(move || {
            limits::prepare(context.driver.control_groups(), &name, &manifest, owner)
        });
        prepared
            .await
            .map_err(|error| StartFailure::new(UnavailableReason::Starting, error))
    }

    /// Returns the folder of the server's socket, if the program connects again after the server
    /// was started anew.
    fn server_folder(&self) -> Option<PathBuf> {
        let socket = self.context.driver.socket(&self.instance.id.reference);
        let folder = socket.path().parent()?;
        (self.kit.manifest.needs.pooler).then(|| folder.to_owned())
    }

    fn plan(&self, bounds: LaunchBounds, ports: &[u16]) -> ServiceLaunchPlan {
        let manifest = &self.kit.manifest;
        let kit = &self.kit.folder;
        let inner = self.folder.inner();
        let data = data::folder(&self.context.home, &self.instance.id.reference);
        let number = |index: usize| ports.get(index).map(u16::to_string).unwrap_or_default();
        let fill = |text: &String| {
            fill_loader(text)
                .replace("{folder}", &inner.to_string_lossy())
                .replace("{kit}", &kit.to_string_lossy())
                .replace("{data}", &data.to_string_lossy())
                .replace("{socket}", &self.folder.socket().to_string_lossy())
                .replace("{port}", &number(0))
                .replace("{port2}", &number(1))
        };
        let (listening, reached) = ports.split_at(ports.len().min(self.listening().into()));
        let sandbox = self.context.control_settings.services.launcher.sandbox;
        let mut plan = ServiceLaunchPlan {
            program: self.kit.program(),
            kit: kit.clone(),
            directory: manifest.directory.as_ref().map(|path| kit.join(path)),
            execute: manifest.execute.iter().map(|path| kit.join(path)).collect(),
            host_name: Some(self.instance.id.reference.to_string()),
            confinement: Confinement::new(self.owner, bounds, sandbox),
            variables: manifest
                .environment
                .iter()
                .map(|(name, value)| format!("{name}={}", fill(value)))
                .collect(),
            program_arguments: manifest.arguments.iter().map(fill).collect(),
            record: true,
            ports: [manifest.egress.as_slice(), reached].concat(),
            listen_ports: listening.to_vec(),
            network: !ports.is_empty() || !manifest.egress.is_empty(),
            attributes: manifest.data,
            write: [
                manifest.data.then(|| data.clone()),
                (!manifest.execute.is_empty()).then(|| inner.clone()),
            ]
            .into_iter()
            .flatten()
            .collect(),
            connect: self.server_folder().into_iter().collect(),
            folder: inner.clone(),
            ..ServiceLaunchPlan::default()
        };
        if self.environment.is_some() {
            plan.environment = Some(self.folder.environment());
            // Runtimes reserve more addresses than memory.
            let bounds = &mut plan.confinement.bounds;
            bounds.data_max = bounds.memory_max.take();
        }
        plan
    }
}
