//! Processes of projects' services: their sandbox, ports, temporary files and lines of output.

pub mod database_port;
pub mod launch;
pub mod lines;
pub mod ports;
pub mod scratch;
