//! Foundations without knowledge of projects and machines: time, randomness, identifiers, and
//! connections.

pub mod clock;
pub mod ids;
pub mod net;
