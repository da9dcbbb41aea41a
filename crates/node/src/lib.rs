//! Everything of Gantry that works with the files, processes and sockets of one machine.
//!
//! - [`cluster_driver`]: the trait through which clusters are reached
//! - [`clusters`]: its implementation on this machine
//! - [`engines`]: installations of PostgreSQL
//! - [`kits`]: programs of projects' services
//! - [`services`]: processes of those programs
//! - [`proc_files`]: the kernel's files about processes
//! - [`supervisor`]: starts and watches sandboxed processes
//! - `system_calls`: the system calls that they may make
//!
//! It knows neither the control database nor the API: what it needs comes as values.

mod background;
pub mod cluster_driver;
pub mod clusters;
pub mod engines;
pub mod error;
pub mod files;
pub mod kits;
pub mod proc_files;
pub mod services;
pub mod supervisor;
mod system_calls;
