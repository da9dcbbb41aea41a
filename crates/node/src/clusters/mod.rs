//! PostgreSQL clusters on this machine: those of projects, and the control cluster of Gantry.
//!
//! A cluster is one data directory and one postmaster. The directory is a copy of a prepared
//! [`template`] with its own system [`identity`]. The postmaster runs under the project's own uid
//! in a sandbox, started by executing Gantry again as [`launch()`]. All clusters are in one locked
//! [`home::Home`]. [`LocalDriver`] implements
//! [`ClusterDriver`](super::cluster_driver::ClusterDriver) for projects; [`control::Control`] runs
//! the control cluster.
//!
//! A server is identified by its executable and working directory, never by a pid in a file.
//! Servers therefore survive a restart of Gantry, and the next process adopts them.

pub mod archive_way;
pub mod control;
mod driver;
pub mod home;
pub mod identity;
pub mod launch;
pub mod local_driver;
pub mod location;
pub mod moved;
pub mod online_copy;
mod pid_file;
mod platform;
pub mod platform_roles;
mod privileges;
mod process;
mod quarantine;
mod recovered;
mod recovery;
pub mod resources;
mod roles;
mod running;
pub mod server;
mod server_log;
mod settings;
pub mod shutdown;
pub mod socket;
mod spec;
pub mod superuser;
pub mod template;
pub mod upgrade;
mod vault_key;

pub use self::{
    archive_way::ArchiveWay,
    control::Control,
    home::Home,
    launch::{LaunchPlan, launch},
    local_driver::{LocalDriver, ObservedState},
    location::{Likeness, Location},
    moved::Moved,
    online_copy::{
        CopyPhase, CopyProgress, CopyReport, CopySpec, IsolationStep, ScratchCopy, Snapshot,
        copy_needs,
    },
    platform::PlatformConflict,
    platform_roles::{OWNER_LOGIN, ROWS_LOGIN, peer_login},
    privileges::PrivilegeFinding,
    recovered::RecoveredServer,
    recovery::{
        KeptCluster, RecoveredCluster, RecoveredIdentity, RecoveryChecks, RecoveryOptions,
        RecoveryTarget, TimelineFork, UnfinishedCluster,
    },
    resources::{ControlGroups, ResourceLimits, Resources},
    running::{ProcessEnd, RunningServer, ServerProcess},
    server::{Host, NO_LIBRARIES},
    socket::ServerSocket,
    spec::{ClusterSpec, CopyPriority},
    superuser::{SqlArgument, SuperuserSession, SuperuserStatement},
    upgrade::{UpgradeBlockers, UpgradeLaunchPlan, UpgradeSpec, UpgradeStep, UpgradeSupport},
};
