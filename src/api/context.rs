//! State of the operations, above that of the control plane and the platform.

use std::{ops::Deref, sync::Arc};

use async_trait::async_trait;
use gantry_base::ids::ProjectRef;

use super::{
    accounts::oidc::OidcProvider,
    branches::state::{BranchOptions, BranchRunner},
    log_drains::state::{self as drains, DrainManager},
    logs::analytics::{self, Analytics},
    oauth,
    projects::listing_cache::Listings,
    service_identities::issuer_keys::TrustedKeys,
};
use crate::{
    control::context::{ControlContext, ProjectRemovalHook},
    platform::{
        context::ChangeListener,
        error::Error,
        http::{Call, Input, operation_doc::OperationDoc},
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
    pub logs: analytics::Options,
    /// Limits of log drains.
    pub log_drains: drains::Options,
    /// Limits of branches.
    pub branches: BranchOptions,
}

/// Handle to the state of the operations. Cheap to clone.
#[derive(Clone)]
pub struct ApiContext(Arc<ApiState>);

/// The parts of the operations' state.
pub struct ApiState {
    /// State of the control plane.
    pub control: ControlContext,
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
    /// Keys of issuers that service identities trust.
    pub trusted_keys: TrustedKeys,
}

impl Deref for ApiContext {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.0
    }
}

impl Deref for ApiState {
    type Target = ControlContext;

    fn deref(&self) -> &ControlContext {
        &self.control
    }
}

impl ApiContext {
    /// State of operations over this control plane.
    pub fn new(control: ControlContext, settings: ApiSettings) -> Self {
        let analytics = Analytics::new(
            settings.logs.clone(),
            control.settings.node,
            control.home.clone(),
            control.clock.clone(),
            control.entropy.clone(),
        );
        let drains = DrainManager::new(&control.entropy, &control.metrics);
        let state = Arc::new(ApiState {
            control,
            api_settings: settings,
            listings: Listings::default(),
            analytics,
            drains,
            branch_runner: BranchRunner::default(),
            trusted_keys: TrustedKeys::default(),
        });
        let weak = Arc::downgrade(&state);
        state.control.add_listener(weak.clone());
        state.control.set_removal_hook(weak);
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
