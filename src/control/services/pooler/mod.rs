//! The connection pooler: `PgBouncer` behind the PostgreSQL proxy, one process for a project.
//!
//! - `config` has the settings in effect, and the configuration file.
//! - `admin` sends commands of its console.
//! - `process` writes the configuration of a process, and `sessions` uses it.
//! - `pause` lets clients wait while the server is away.
//! - `take_over` replaces a process by one of another version.
//!
//! Clients log in by SCRAM with the verifiers of the database, which the function
//! `pgbouncer.get_auth` returns to the pooler's role alone; the pooler logs in to the server with
//! the keys of the client's login. The password of its own role is new with each start, and only
//! its folder has it (decision 0166).

pub(in crate::control::services) mod admin;
pub(in crate::control::services) mod config;
pub(in crate::control::services) mod identity;
pub(in crate::control::services) mod pause;
pub(in crate::control::services) mod process;
pub(in crate::control::services) mod retired;
mod sessions;
pub(in crate::control::services) mod take_over;

pub use self::{
    admin::{ConfigValue, PoolerFigures, figures, show_config},
    config::{PoolMode, PoolerConfig, config},
    identity::ROLE,
    sessions::{acquire, is_installed},
};
pub(in crate::control) use self::{pause::pause, sessions::until_replaced};
