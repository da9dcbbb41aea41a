//! Kits: the programs of projects' services, with their manifests. They are found in folders of the
//! operator, and installed from registries.
//!
//! - `kit` and `manifest`: a program and how it is started; `shelf` finds kits.
//! - `install`, `pooler` and `schema_diff` install and verify them; `c_library` tells whether the C
//!   library of the machine is new enough.

mod c_library;
pub mod install;
pub mod kit;
pub mod manifest;
pub mod pooler;
pub mod schema_diff;
pub mod schema_diff_packages;
mod service;
pub mod shelf;

pub use self::service::Service;
