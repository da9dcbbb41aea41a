//! Pressure on the machine's memory: the instances that have been idle for longest are stopped
//! before the kernel has to choose a process.

use std::{fs, sync::Arc};

use gantry_base::clock::Ticks;

use super::{
    instance::{Instance, InstanceId},
    sweep::spawn_stop,
};
use crate::data_plane::context::DataPlaneContext;

/// The kernel's figures about memory (proc(5)).
const TABLE: &str = "/proc/meminfo";
/// Share of the memory that is kept available, in percent.
const AVAILABLE_PERCENT_MIN: u64 = 10;
/// Instances that are stopped in one round. Memory is measured again before the next one.
const STOPS_MAX: usize = 4;
/// Time without requests after which an instance may be stopped, in milliseconds: one that is used
/// once a second would only be started again.
const IDLE_MIN: Ticks = 2000;

/// Stops the instances that have been idle for longest if little memory is available.
pub(super) fn relieve(context: &DataPlaneContext) {
    let table = fs::read_to_string(TABLE).unwrap_or_default();
    if available_percent(&table).is_some_and(|percent| percent < AVAILABLE_PERCENT_MIN) {
        stop_longest_idle(context);
    }
}

/// Stops the instances that have been idle for longest, as under pressure. Returns how many.
pub fn stop_longest_idle(context: &DataPlaneContext) -> usize {
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

/// Returns the share of the memory that is available, in percent.
fn available_percent(table: &str) -> Option<u64> {
    let value = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let total = value("MemTotal:").filter(|total| *total > 0)?;
    Some(value("MemAvailable:")? * 100 / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_a_share_of_all() {
        let table = "MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:    190 kB\n";
        assert_eq!(available_percent(table), Some(9));
        assert_eq!(
            available_percent("MemTotal: 0 kB\nMemAvailable: 0 kB"),
            None
        );
        assert_eq!(available_percent("MemTotal: 10 kB"), None);
        let own = fs::read_to_string(TABLE).unwrap();
        assert!(available_percent(&own).unwrap() <= 100);
    }
}
