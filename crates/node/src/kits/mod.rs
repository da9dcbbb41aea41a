//! Kits: the programs of projects' services, with their manifests. They are found in folders of the
//! operator, and installed from registries.
//!
//! - `kit` and `manifest`: a program and how it is started; `shelf` finds kits.
//! - `install`, `pooler` and `schema_diff` install and verify them: `staging` by a rename of the
//!   complete folder, `pinned_folder` by one digest of all files, `archive` from tar archives.
//! - `c_library` tells whether the C library of the machine is new enough.

mod archive;
mod c_library;
pub mod install;
pub mod kit;
pub mod manifest;
mod pinned_folder;
pub mod pooler;
pub mod schema_diff;
pub mod schema_diff_packages;
mod service;
pub mod shelf;
mod staging;

pub use self::service::Service;
