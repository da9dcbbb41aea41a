//! The role, the files and the instance of a pooler.

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::Service;
use rustix::process::Signal;

use crate::control::services::instance_id::InstanceId;

/// The role of the pooler: it calls `pgbouncer.get_auth`, and is the administrator of the console.
pub const ROLE: &str = "pgbouncer";

/// The signal that ends the process when no server connection is in use any more.
pub(in crate::control::services) const STOP_SIGNAL: Signal = Signal::INT;

/// Names of files in the folder of an instance.
pub(super) const CONFIG: &str = "pooler.ini";

pub(super) const USERS: &str = "users.txt";

pub(super) fn instance_id(project: ProjectId, reference: &ProjectRef) -> InstanceId {
    InstanceId {
        project,
        reference: reference.clone(),
        service: Service::Pooler,
        function: None,
    }
}
