//! Edge Functions: rows, source files and secrets.
//!
//! A function has versions. A version is referred to by its number, its files by the id of its
//! deployment. Files are written before the row, so no row names incomplete files; files without a
//! row are removed later.
//!
//! - `deploy` stores an uploaded version.
//! - `sources` has names and folders of files, `eszip` reads bundles.
//! - `versions` stores functions and versions, `secrets` the variables of their environment.

mod deploy;
pub mod eszip;
pub mod secrets;
pub mod sources;
mod versions;

pub use self::{
    deploy::{DeployRule, FunctionUpload, deploy, public_root, version_folder},
    versions::{
        FunctionChange, FunctionRecord, FunctionSlug, VersionSwitch, get, list, remove, switch,
        update,
    },
};
