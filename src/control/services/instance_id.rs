//! Names of instances.

use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::kits::Service;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::crashes::CrashScope;

/// The project and the service of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceId {
    pub(super) project: ProjectId,
    pub(super) reference: ProjectRef,
    pub(super) service: Service,
    /// The version, for functions.
    pub(super) function: Option<FunctionVersion>,
}

/// A version of a function with its environment. Each has an instance of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FunctionVersion {
    /// The name of the function in paths.
    pub(crate) slug: String,
    /// Id of the files.
    pub(crate) deployment: Uuid,
    /// Identifies secrets and keys.
    pub(crate) environment: u64,
    /// Whether this is the second process, which is kept ready after a crash.
    #[serde(default)]
    pub(crate) spare: bool,
}

impl FunctionVersion {
    /// Returns whether both are processes of one version with one environment.
    pub(super) fn is_same_version(&self, other: &Self) -> bool {
        (&self.slug, self.deployment, self.environment)
            == (&other.slug, other.deployment, other.environment)
    }
}

/// The key of an instance in the table.
pub(super) type InstanceKey = (ProjectId, Service, Option<FunctionVersion>);

impl InstanceId {
    pub(super) fn key(&self) -> InstanceKey {
        (self.project, self.service, self.function.clone())
    }

    /// The program that the ends of this process are counted for.
    pub(super) fn crash_scope(&self) -> CrashScope {
        let deployment = self.function.as_ref().map(|function| function.deployment);
        (self.project, self.service, deployment)
    }

    /// Returns the id of the spare process of this version, if it is a function.
    pub(super) fn spare(&self) -> Option<Self> {
        self.with_spare(true)
    }

    /// Returns the id of the process that this spare replaces, if it is one.
    pub(super) fn first_of_spare(&self) -> Option<Self> {
        let is_spare = self.function.as_ref().is_some_and(|one| one.spare);
        is_spare.then(|| self.with_spare(false)).flatten()
    }

    fn with_spare(&self, spare: bool) -> Option<Self> {
        let function = self.function.clone()?;
        Some(Self {
            function: Some(FunctionVersion { spare, ..function }),
            ..self.clone()
        })
    }
}
