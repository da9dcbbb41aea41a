//! Measures and limits running servers, for the watchdog.

use std::collections::HashMap;

use gantry_base::ids::ProjectRef;
use rustix::process::{Pid, Signal};

use super::{cgroup::Counts, limits::Resources};
use crate::{
    background::{blocking, idle},
    clusters::{
        local_driver::LocalDriver,
        resources::{
            disk::{self, DiskUsage},
            usage::{self, ProcessUsage},
        },
        running::{ProcessEnd, ServerProcess},
        server::process::Server,
        shutdown::ShutdownMode,
        superuser,
    },
    error::{At, ClusterError, Result},
    supervisor::ProcessHandle,
};

/// The memory and processes of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Measurement {
    /// Counted by its control group, which the kernel also limits.
    Group(Counts),
    /// Summed over its processes, which only the watchdog limits.
    Processes(ProcessUsage),
}

impl LocalDriver {
    /// Measures memory and processes of the servers of these projects. Omits projects without a
    /// cluster.
    pub async fn measure_processes(
        &self,
        projects: Vec<ProjectRef>,
    ) -> Result<HashMap<ProjectRef, Measurement>> {
        let Some(resources) = self.resources().cloned() else {
            return Ok(HashMap::new());
        };
        let servers: Vec<_> = projects
            .into_iter()
            .filter_map(|project| Some((self.existing(&project).ok()?, project)))
            .collect();
        blocking(move || {
            // Read once for all servers, because a machine has many processes.
            let all = if resources.groups().enforced() {
                HashMap::new()
            } else {
                usage::processes_by_uid().at("listing", "/proc".as_ref())?
            };
            let measure = |server: &Server, project: &ProjectRef| match resources
                .groups()
                .counts(project.as_str())
            {
                Some(counts) => Measurement::Group(counts),
                None => Measurement::Processes(server.measure(&all, &resources)),
            };
            let measured = servers
                .into_iter()
                .map(|(server, project)| (project.clone(), measure(&server, &project)))
                .collect();
            Ok(measured)
        })
        .await
    }

    /// Moves a running server to a control group if it has none.
    pub async fn apply_limits(&self, project: &ProjectRef) -> Result<()> {
        let (Some(resources), server) = (self.resources().cloned(), self.existing(project)?) else {
            return Ok(());
        };
        if !resources.groups().enforced() {
            return Ok(());
        }
        let family = server.family().await?;
        let processes = family.all();
        let project = project.clone();
        let place = server.data().to_owned();
        blocking(move || {
            resources
                .groups()
                .adopt(
                    project.as_str(),
                    &resources.limits_of(project.as_str()),
                    &processes,
                )
                .at("bounding the server in", &place)
        })
        .await
    }

    /// Measures disk space and inodes of a project: its data, its sockets' folder, and deleted
    /// files that are still open. Slow; runs at the lowest priority.
    pub async fn disk_usage(&self, project: &ProjectRef, inodes_max: u64) -> Result<DiskUsage> {
        let server = self.existing(project)?;
        let sockets = self.home().socket_dir(project.as_str());
        idle(move || {
            let place = server.data().parent().unwrap_or(server.data());
            let unnamed = disk::measure_unnamed(&server.processes()?, place);
            // Other folders of the project cannot be written by its server.
            let named = disk::measure(server.data(), inodes_max)
                .and_then(|data| Ok(data.and(disk::measure(&sockets, inodes_max)?)));
            named
                .and_then(|named| Ok(named.and(unnamed?)))
                .at("measuring", place)
        })
        .await
    }

    /// Measures the bytes of a project in blocks that other files share.
    pub async fn shared_bytes(&self, project: &ProjectRef, inodes_max: u64) -> Result<u64> {
        let server = self.existing(project)?;
        idle(move || {
            let place = server.data().parent().unwrap_or(server.data());
            disk::measure_shared(place, inodes_max).at("measuring", place)
        })
        .await
    }

    /// Sets the default of new transactions in a running server to read-only or read-write.
    pub async fn set_read_only(&self, project: &ProjectRef, read_only: bool) -> Result<()> {
        let admin = self.superuser_session(project).await?;
        let change = if read_only {
            &superuser::READ_ONLY
        } else {
            &superuser::READ_WRITE
        };
        for statement in [change, &superuser::RELOAD] {
            let done = admin.run(statement).await;
            done.map_err(|cause| ClusterError::Sql {
                doing: "making a project read-only or writable",
                cause,
            })?;
        }
        Ok(())
    }

    /// Ends a process if it still belongs to the project.
    pub async fn end_process(
        &self,
        project: &ProjectRef,
        process: ServerProcess,
        how: ProcessEnd,
    ) -> Result<()> {
        let server = self.existing(project)?;
        let Some(pid) = process.pid() else {
            return Ok(());
        };
        let Some(handle) = ProcessHandle::open(pid).at("watching", server.data())? else {
            return Ok(());
        };
        let signal = match how {
            ProcessEnd::Terminate => Signal::TERM,
            ProcessEnd::Kill => Signal::KILL,
        };
        let of_it = server.clone();
        if blocking(move || Ok(of_it.processes()?.contains(&pid))).await? {
            handle
                .signal(signal)
                .at("ending a process in", server.data())?;
        }
        Ok(())
    }

    /// Stops the server without a checkpoint, and ends all its processes.
    pub async fn stop_at_once(&self, project: &ProjectRef) -> Result<()> {
        self.existing(project)?
            .stop(ShutdownMode::Immediate, super::limits::STOP_PATIENCE)
            .await
    }
}

impl Server {
    /// Returns all live processes of the server.
    fn processes(&self) -> Result<Vec<Pid>> {
        let family = self.marked().at("listing", "/proc".as_ref())?;
        let mut processes = self.members()?;
        let others = family.all().into_iter();
        processes.extend(
            others
                .filter(|pid| !processes.contains(pid))
                .collect::<Vec<_>>(),
        );
        Ok(processes)
    }

    /// Measures memory and processes, given all processes of the machine by user id.
    fn measure(&self, all: &HashMap<u32, Vec<Pid>>, resources: &Resources) -> ProcessUsage {
        let run_as = self.run_as();
        let candidates = all
            .get(&run_as.uid())
            .map(Vec::as_slice)
            .unwrap_or_default();
        let place = self.data().parent().unwrap_or(self.data());
        let own_uid = run_as.own_uid();
        let own = |pid: &&Pid| match own_uid {
            Some(_) => !usage::is_elsewhere(**pid, &[place]),
            // Without own user ids, processes are assigned to projects by working directory.
            None => usage::works_in(**pid, place),
        };
        let own: Vec<Pid> = candidates.iter().filter(own).copied().collect();
        let careful_from = resources.limits().memory_bytes / 2;
        usage::measure(&own, self.hinted_postmaster(), own_uid, careful_from)
    }
}
