//! State of the operations, above that of the data plane and the platform.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use gantry_base::ids::ProjectRef;

use super::{
    accounts::oidc::OidcProvider,
    branches::{BranchOptions, restore_points::RestorePointHook, runner::BranchRunner},
    log_drains,
    log_drains::DrainManager,
    logs,
    logs::Analytics,
    oauth,
    projects::listing::Listings,
};
use crate::{
    data_plane::context::{DataPlaneContext, ProjectRemovalHook},
    platform::{
        context::ChangeListener,
        error::Error,
        http::{Call, Input, openapi::OperationDoc},
        tables::{Cache, Task},
    },
};

/// Settings of the operator for single resources.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// OAuth tokens of applications.
    pub oauth: oauth::OAuthSettings,
    /// The identity provider with which people sign in, if there is one.
    pub provider: Option<Arc<OidcProvider>>,
    /// Where log lines of projects are stored.
    pub logs: logs::Options,
    /// Limits of log drains.
    pub log_drains: log_drains::Options,
    /// Limits of branches.
    pub branches: BranchOptions,
}

/// Handle to the state of the operations. Cheap to clone.
#[derive(Clone)]
pub struct ApiContext(Arc<ApiState>);

/// The parts of the operations' state.
pub struct ApiState {
    /// State of the data plane.
    pub data_plane: DataPlaneContext,
    /// Settings of the operator.
    pub api_settings: ApiSettings,
    /// Cached lists of projects.
    pub listings: Listings,
    /// Logs of projects and the usage counted from them.
    pub analytics: Analytics,
    /// Deliveries of log lines to systems of customers.
    pub drains: DrainManager,
    /// Runs of branches that are carried out in this process.
    pub branch_runner: BranchRunner,
    /// Makes a point before a merge to which the parent can be restored.
    pub(super) restore_points: OnceLock<Arc<dyn RestorePointHook>>,
}

impl Deref for ApiContext {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.0
    }
}

impl Deref for ApiState {
    type Target = DataPlaneContext;

    fn deref(&self) -> &DataPlaneContext {
        &self.data_plane
    }
}

impl ApiContext {
    /// State of operations over this data plane.
    pub fn new(data_plane: DataPlaneContext, settings: ApiSettings) -> Self {
        let analytics = Analytics::new(
            settings.logs.clone(),
            data_plane.settings.node,
            data_plane.home.clone(),
            data_plane.clock.clone(),
            data_plane.entropy.clone(),
        );
        let drains = DrainManager::new(&data_plane.entropy, &data_plane.metrics);
        let state = Arc::new(ApiState {
            data_plane,
            api_settings: settings,
            listings: Listings::default(),
            analytics,
            drains,
            branch_runner: BranchRunner::default(),
            restore_points: OnceLock::new(),
        });
        let weak = Arc::downgrade(&state);
        state.data_plane.add_listener(weak.clone());
        state.data_plane.set_removal_hook(weak);
        Self(state)
    }
}

impl ChangeListener for ApiState {
    fn invalidate(&self, cache: Cache) {
        self.listings.invalidate(cache);
    }

    fn wake(&self, task: Task) {
        match task {
            Task::LogDrains => self.drains.wake(),
            Task::Branches => self.branch_runner.wake(),
            _ => {}
        }
    }

    fn set_subscribed(&self, subscribed: bool) {
        self.listings.set_trusted(subscribed);
    }
}

#[async_trait]
impl ProjectRemovalHook for ApiState {
    async fn project_removed(&self, project: &ProjectRef) -> Result<(), Error> {
        self.analytics.delete_project(project).await
    }
}

impl Input for ApiContext {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        call.state::<Self>().cloned()
    }
}
