//! Edge Functions: rows, source files and secrets.
//!
//! A function has versions. A version is referred to by its number, its files by the id of its
//! deployment. Files are written before the row, so no row names incomplete files; files without a
//! row are removed later.
//!
//! - `live` caches the live versions, `run` starts their processes as `process` prepares them, and
//!   `limits` ends those that use too much.
//! - `output` makes log events of their lines.
//! - `deploy` stores an uploaded version. `egress` has the ports that functions may connect to.
//! - `relative_path` parses names of files, `sources` has their folders, `eszip` reads bundles,
//!   `type_imports` finds imports that are not fetched, `node_network` uses of `node:net`.
//! - `versions` stores functions and versions, `secrets` the project's variables; `environment` has
//!   those of the platform, and `database` the socket behind the address of the database.

pub(in crate::control) mod clean;
pub(in crate::control) mod copies;
pub(in crate::control) mod database;
pub(in crate::control) mod deploy;
pub mod egress;
pub(in crate::control) mod environment;
pub mod eszip;
pub(in crate::control::services) mod function_cache;
pub(in crate::control) mod limits;
pub(in crate::control) mod live;
pub mod log_queue;
pub(in crate::control) mod node_network;
pub(in crate::control) mod output;
pub(in crate::control) mod preparation;
pub(in crate::control) mod process;
mod relative_path;
pub(in crate::control) mod run;
pub mod secrets;
pub mod sources;
mod type_imports;
pub(in crate::control) mod versions;

pub use self::{
    copies::{CopyScope, copy},
    deploy::{DeployRule, FunctionUpload, deploy, public_root, version_folder},
    egress::EgressPorts,
    limits::watch,
    log_queue::{FunctionLogQueue, FunctionLogRow},
    relative_path::{PathProblem, RelativePath},
    versions::{
        FunctionChange, FunctionRecord, FunctionSlug, NO_FUNCTION, VersionSwitch, get, list,
        remove, switch, update,
    },
};
pub(crate) use self::{live::live_functions, run::acquire};
