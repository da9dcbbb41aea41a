//! Limits of memory, processes, processor time and disk space of a project's server.
//!
//! Control groups ([`ControlGroups`]) limit a server as a whole, if Gantry may create them. Limits
//! of the launched process, [`LaunchBounds`](crate::supervisor::LaunchBounds), always apply.
//! [`usage`] and [`disk`] measure usage for the watchdog, which enforces the limits that the kernel
//! does not enforce.

mod cgroup;
pub mod disk;
pub mod limits;
mod observe;
mod shared_memory;
pub mod usage;

pub use self::{
    cgroup::{ControlGroups, Counts},
    limits::{ResourceLimits, Resources},
    observe::Measurement,
};
