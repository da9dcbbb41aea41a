//! Gantry: a self-hosted Management API for organizations and projects of a hosted backend platform.
//!
//! `ARCHITECTURE.md` has the map and the life of a request.

pub mod access;
pub mod clock;
pub mod clusters;
pub mod database;
pub mod error;
pub mod ids;
