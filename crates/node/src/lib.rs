//! Everything of Gantry that works with the files, processes and sockets of one machine.
//!
//! - [`cluster_driver`]: the trait through which clusters are reached
//! - [`clusters`]: its implementation on this machine
//! - [`supervisor`]: starts and watches sandboxed processes
//!
//! It knows neither the control database nor the API: what it needs comes as values.

pub mod cluster_driver;
pub mod clusters;
pub mod supervisor;
