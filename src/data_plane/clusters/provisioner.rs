//! What the reconciler needs of whatever runs clusters, and no more.
//!
//! Every step may be repeated: it looks first, and acts only if something is missing. The reconciler runs one step for a
//! project at a time, and gives up on none; so a step that fails only has to leave what it can go on from.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;
use tokio_postgres::Client;

use super::{Cluster, Embedded, Pace, Result, Running};
use crate::base::ids::ProjectRef;

/// A step under way.
pub type Step<'a, T = ()> = BoxFuture<'a, Result<T>>;

/// Runs clusters: on this machine, or as a model in a test.
pub trait Provisioner: fmt::Debug + Send + Sync {
    /// Makes the cluster's data. Data that is there is left as it is.
    fn create<'a>(&'a self, cluster: &'a Cluster) -> Step<'a>;
    /// Writes the settings that the server reads at its next start or reload.
    fn configure<'a>(
        &'a self,
        project: &'a ProjectRef,
        settings: &'a [(String, String)],
    ) -> Step<'a>;
    /// Starts the server unless it runs.
    fn start<'a>(&'a self, project: &'a ProjectRef) -> Step<'a>;
    /// Waits until the server accepts connections; fails if it ended instead, or after `patience`.
    fn wait_ready<'a>(&'a self, project: &'a ProjectRef, patience: Duration) -> Step<'a>;
    /// Has the server read its settings again.
    fn reload<'a>(&'a self, project: &'a ProjectRef) -> Step<'a>;
    /// Sets a role's password to a verifier.
    fn set_password<'a>(
        &'a self,
        project: &'a ProjectRef,
        role: &'a str,
        verifier: &'a str,
    ) -> Step<'a>;
    /// Stops the server if it runs.
    fn stop<'a>(&'a self, project: &'a ProjectRef) -> Step<'a>;
    /// Stops the server and puts the data out of sight. What is not there is fine.
    fn remove<'a>(&'a self, project: &'a ProjectRef) -> Step<'a>;
    /// The server, if it runs.
    fn running<'a>(&'a self, project: &'a ProjectRef) -> Step<'a, Option<Running>>;
    /// A superuser's session with the server. A model has no server to have one with.
    fn admin<'a>(&'a self, project: &'a ProjectRef) -> Step<'a, Option<Client>>;
}

impl Provisioner for Embedded {
    fn create<'a>(&'a self, cluster: &'a Cluster) -> Step<'a> {
        Box::pin(Self::create(self, cluster, Pace::Now))
    }

    fn configure<'a>(
        &'a self,
        project: &'a ProjectRef,
        settings: &'a [(String, String)],
    ) -> Step<'a> {
        Box::pin(Self::configure(self, project, settings))
    }

    fn start<'a>(&'a self, project: &'a ProjectRef) -> Step<'a> {
        Box::pin(Self::start(self, project))
    }

    fn wait_ready<'a>(&'a self, project: &'a ProjectRef, patience: Duration) -> Step<'a> {
        Box::pin(Self::wait_ready(self, project, patience))
    }

    fn reload<'a>(&'a self, project: &'a ProjectRef) -> Step<'a> {
        Box::pin(Self::reload(self, project))
    }

    fn set_password<'a>(
        &'a self,
        project: &'a ProjectRef,
        role: &'a str,
        verifier: &'a str,
    ) -> Step<'a> {
        Box::pin(Self::set_password(self, project, role, verifier))
    }

    fn stop<'a>(&'a self, project: &'a ProjectRef) -> Step<'a> {
        Box::pin(Self::stop(self, project))
    }

    fn remove<'a>(&'a self, project: &'a ProjectRef) -> Step<'a> {
        Box::pin(Self::remove(self, project))
    }

    fn running<'a>(&'a self, project: &'a ProjectRef) -> Step<'a, Option<Running>> {
        Box::pin(Self::running(self, project))
    }

    fn admin<'a>(&'a self, project: &'a ProjectRef) -> Step<'a, Option<Client>> {
        Box::pin(async { Self::admin(self, project).await.map(Some) })
    }
}
