//! The live versions of a project's functions.

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

/// A live version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFunction {
    pub(crate) id: Uuid,
    pub(crate) slug: String,
    pub(crate) version: i32,
    pub(crate) deployment: Uuid,
    pub(crate) verify_jwt: bool,
    pub(crate) entrypoint: String,
    pub(crate) import_map: Option<String>,
}

/// The live versions of a project, and the number of their environment.
#[derive(Debug, Default)]
pub struct LiveFunctions {
    by_slug: HashMap<String, Arc<LiveFunction>>,
    pub(crate) environment: i64,
}

impl LiveFunctions {
    /// Creates the set. `environment` is the number of the project's environment.
    pub(crate) const fn new(by_slug: HashMap<String, Arc<LiveFunction>>, environment: i64) -> Self {
        Self {
            by_slug,
            environment,
        }
    }

    /// Returns the live version of a function.
    pub(crate) fn get(&self, slug: &str) -> Option<&Arc<LiveFunction>> {
        self.by_slug.get(slug)
    }

    /// Returns the live version with these files.
    pub(crate) fn of_deployment(&self, deployment: Uuid) -> Option<&Arc<LiveFunction>> {
        self.by_slug
            .values()
            .find(|one| one.deployment == deployment)
    }

    /// Whether the project has no function.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_slug.is_empty()
    }
}
