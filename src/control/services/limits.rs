//! Limits of an instance: a control group where the kernel permits one, resource limits always.

use gantry_node::{
    clusters::{ControlGroups, ResourceLimits},
    kits::manifest::Manifest,
    supervisor::{LaunchBounds, ProcessOwner},
};
use sha2::{Digest, Sha256};

use super::instance_id::InstanceId;
use crate::control::{context::ControlContext, services::folder::InstanceFolder};

/// Processes and threads of an instance.
const PROCESSES_MAX: u64 = 64;
/// Size of one file that an instance writes, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Share of the processor, if it is scarce. A project's server has 100.
const CPU_WEIGHT: u32 = 50;

impl InstanceId {
    /// Name of the instance's folder, which its control group has, too.
    pub(super) fn name(&self) -> String {
        let Self {
            reference, service, ..
        } = self;
        let Some(function) = &self.function else {
            return format!("{reference}.{service}");
        };
        let digest = Sha256::new()
            .chain_update(function.deployment.as_bytes())
            .chain_update(function.environment.to_be_bytes())
            .chain_update(if function.spare { "spare" } else { "" })
            .finalize();
        format!("{reference}.{service}.{}", hex::encode(&digest[..8]))
    }
}

/// Returns the bounds of a new process, and creates its control group. Blocks.
///
/// A failure to create the group is only logged: the process starts within resource limits.
pub(super) fn prepare(
    groups: Option<&ControlGroups>,
    name: &str,
    manifest: &Manifest,
    owner: ProcessOwner,
) -> LaunchBounds {
    let limits = ResourceLimits {
        memory_bytes: manifest.memory_bytes,
        processes: PROCESSES_MAX,
        cpu_weight: CPU_WEIGHT,
        ..ResourceLimits::default()
    };
    // Without the group of an earlier process, counters begin at zero.
    let made = groups.map(|groups| {
        groups
            .remove(name)
            .and_then(|()| groups.make(name, &limits))
    });
    let folders = match made.transpose() {
        Ok(folders) => folders.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(name, %error, "failed to create the control group of a service");
            Vec::new()
        }
    };
    LaunchBounds {
        // The group counts the memory that is in use; the limit counts reserved addresses.
        memory_max: folders.is_empty().then_some(manifest.memory_bytes),
        groups: folders,
        // Without root, the limit would count the processes of Gantry's own account.
        processes_max: owner.own_uid().map(|_| PROCESSES_MAX),
        // Files of projects have a limit of their own.
        file_max: (!manifest.data).then_some(FILE_BYTES_MAX),
        locked_memory_max: Some(0),
        ..LaunchBounds::default()
    }
}

/// Returns the reason for the end of a process, if the kernel killed it for its use of memory.
pub(super) fn killed_by_kernel(
    context: &ControlContext,
    folder: &InstanceFolder,
    manifest: &Manifest,
) -> Option<String> {
    let counts = context.driver.control_groups()?.counts(&folder.name())?;
    let limit = manifest.memory_bytes >> 20;
    let text = format!("the program needed more memory than its limit of {limit} MB");
    (counts.oom_kills > 0).then_some(text)
}

/// Removes the control group of an instance without processes.
pub(super) async fn release(context: &ControlContext, folder: &InstanceFolder) {
    let (context, name) = (context.clone(), folder.name());
    let removed = tokio::task::spawn_blocking(move || {
        let groups = context.driver.control_groups();
        if let Some(Err(error)) = groups.map(|groups| groups.remove(&name)) {
            tracing::warn!(name, %error, "failed to remove the control group of a service");
        }
    });
    let _ = removed.await;
}

/// Removes the groups of instances without a folder, and kills the processes in them.
pub(super) async fn remove_stale(context: &ControlContext) {
    let context = context.clone();
    let removed = tokio::task::spawn_blocking(move || {
        let Some(groups) = context.driver.control_groups() else {
            return Ok(());
        };
        let known = |name: &str| !name.contains('.') || context.home.socket_dir(name).exists();
        groups.remove_stale(&known)
    });
    if let Ok(Err(error)) = removed.await {
        tracing::warn!(%error, "failed to remove control groups of services");
    }
}
