//! Services of projects that Gantry runs itself, such as the Data API.
//!
//! A *kit* is a program with a manifest. An *instance* is a process of a kit for one project: it is
//! started by the first request, stopped when idle, and adopted after a restart of Gantry. No row
//! describes an instance: the configuration and the process table do.
//!
//! - `acquire` is the way of a request to a process, and `health` that of a health check.
//! - `state` has the instances and `instance` their states; `start` and `stop` change them,
//!   `replace` follows the end of a process, and `sweep` stops idle ones.
//! - `requests`, `crashes` and `failures`: the requests of a process, the callers that its end is
//!   charged to, and pauses after failed starts.
//! - `folder`, `limits` and `output`: files, limits and output of a process. Its sandbox, ports and
//!   temporary files are in [`gantry_node::services`], the kits in [`gantry_node::kits`].
//! - `environment`: variables of programs that are configured by variables. `data` has the files of
//!   Storage.
//! - `trial`: new settings of several services, before they are stored.
//! - `rest`: configuration, keys and settings of PostgREST.
//! - `functions`: Edge Functions, their versions, sources and secrets.
//! - `pooler`: `PgBouncer`, which shares server connections among clients.
//! - `schema_diff`: comparison of two schemas, a process of seconds that is no instance.
//!
//! [`acquire()`] is the one way to an instance. Its result holds the instance until the response
//! has ended.

mod acquire;
mod crashes;
mod data;
pub mod environment;
mod failures;
mod folder;
pub mod functions;
mod health;
mod instance;
mod instance_id;
mod kit_choice;
mod limits;
pub mod output;
pub mod pooler;
pub mod pressure;
mod probe;
mod replace;
mod requests;
pub mod rest;
pub mod schema_diff;
mod spawn;
mod start;
mod start_failure;
mod start_settings;
pub mod state;
mod stop;
pub mod sweep;
mod task;
pub(in crate::control) mod trial;
mod versions;

pub use gantry_node::services::launch::{ServiceLaunchPlan, launch};

pub(crate) use self::acquire::replacement;
pub use self::{
    acquire::acquire,
    health::{function_notes, observe},
    instance::ServiceUse,
    kit_choice::{data_api_version, has_kit},
    stop::stop_all,
};
pub use crate::proxy::{
    service_caller::ServiceCaller,
    unavailable::{Unavailable, UnavailableReason},
};
