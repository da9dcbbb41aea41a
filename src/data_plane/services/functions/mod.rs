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

mod clean;
mod copies;
mod database;
mod deploy;
mod egress;
mod environment;
pub mod eszip;
mod limits;
mod live;
mod node_network;
mod output;
mod process;
mod relative_path;
mod run;
pub mod secrets;
pub mod sources;
mod type_imports;
mod versions;

use crate::platform::error::Error;

pub(super) use self::{
    clean::remove_unused,
    database::FunctionDatabase,
    environment::public_url,
    output::FunctionLog,
    process::{KilledOnDrop, PreparedFunction},
    run::{adopted_log, is_live, is_too_old, prepare, spare_use},
};
pub use self::{
    copies::{CopyScope, copy},
    deploy::{DeployRule, FunctionUpload, deploy, public_root, version_folder},
    egress::EgressPorts,
    limits::watch,
    output::{FunctionLogQueue, FunctionLogRow},
    relative_path::{PathProblem, RelativePath},
    versions::{
        FunctionChange, FunctionRecord, FunctionSlug, VersionSwitch, get, list, remove, switch,
        update,
    },
};
pub(crate) use self::{
    live::{FunctionCache, live_functions},
    run::{acquire, is_current},
};

/// The error of a function that does not exist.
pub const NO_FUNCTION: Error = Error::Missing("Function not found");
