//! Starting, observing, connecting to and stopping one PostgreSQL server.
//!
//! A [`Server`] caches no state: every call examines the machine, so a server that another Gantry
//! process started is treated alike. The caller runs one operation per cluster at a time.
//! PostgreSQL's lock file prevents two servers on one data directory in any case.

pub(in crate::clusters) mod process;
mod sessions;
mod start;

pub use self::{
    process::{Host, Server},
    sessions::NO_LIBRARIES,
};
