//! Foundations without knowledge of projects and machines: time, randomness, identifiers, repeated
//! work, connections, and operations on files.

pub mod clock;
pub mod files;
pub mod ids;
pub mod net;
pub mod repeat;
