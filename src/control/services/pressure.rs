//! Pressure on the machine's memory: the instances that have been idle for longest are stopped
//! before the kernel has to choose a process.

use std::sync::Arc;

use gantry_base::clock::Ticks;
use gantry_node::proc_files::MachineMemory;

use super::{instance::Instance, instance_id::InstanceId, sweep::spawn_stop};
use crate::control::context::ControlContext;

/// Share of the memory that is kept available, in percent.
const AVAILABLE_PERCENT_MIN: u64 = 10;
/// Instances that are stopped in one round. Memory is measured again before the next one.
const STOPS_MAX: usize = 4;
/// Time without requests after which an instance may be stopped, in milliseconds: one that is used
/// once a second would only be started again.
const IDLE_MIN: Ticks = 2000;

/// Stops the instances that have been idle for longest if little memory is available.
pub(super) fn relieve(context: &ControlContext) {
    let memory = MachineMemory::read();
    if memory.is_some_and(|memory| memory.available_percent() < AVAILABLE_PERCENT_MIN) {
        stop_longest_idle(context);
    }
}

/// Stops the instances that have been idle for longest, as under pressure. Returns how many.
pub fn stop_longest_idle(context: &ControlContext) -> usize {
    let now = context.clock.ticks();
    let mut idle: Vec<(Ticks, Arc<Instance>)> = Vec::new();
    for instance in context.services.instances() {
        if instance.running().is_some()
            && let Some(since) = instance.idle_since(now).filter(|since| *since >= IDLE_MIN)
        {
            idle.push((since, instance));
        }
    }
    idle.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
    idle.truncate(STOPS_MAX);
    for (_, instance) in &idle {
        let InstanceId {
            reference, service, ..
        } = &instance.id;
        tracing::info!(project = %reference, %service, "idle service stopped: little memory is available");
        spawn_stop(context, Arc::clone(instance));
    }
    idle.len()
}
