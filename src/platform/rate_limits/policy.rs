//! Policies: the windows that apply to a request, from its operation or from an override.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use gantry_base::ids::OrganizationId;
use parking_lot::RwLock;
use tokio::sync::Notify;
use uuid::Uuid;

use super::window::{Limit, WINDOWS_MAX, Window};

/// The windows that apply to a request, with the value of the `RateLimit-Policy` field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy(Arc<PolicyData>);

#[derive(Debug, PartialEq, Eq)]
struct PolicyData {
    windows: [Window; WINDOWS_MAX],
    len: usize,
    field: Bytes,
}

impl Policy {
    /// Returns a policy of these windows, the longest first; at most [`WINDOWS_MAX`].
    pub fn new(windows: &[Window]) -> Self {
        let mut list = [Window::default(); WINDOWS_MAX];
        let len = windows.len().min(WINDOWS_MAX);
        list[..len].copy_from_slice(&windows[..len]);
        let items: Vec<_> = windows[..len]
            .iter()
            .map(|w| format!("\"{}\";q={};w={}", w.name(), w.requests, w.secs))
            .collect();
        Self(Arc::new(PolicyData {
            windows: list,
            len,
            field: items.join(", ").into(),
        }))
    }

    /// Returns the windows, the longest first.
    pub fn windows(&self) -> &[Window] {
        &self.0.windows[..self.0.len]
    }

    /// Returns the value of the `RateLimit-Policy` field, which is formatted once per policy.
    pub fn field(&self) -> &Bytes {
        &self.0.field
    }

    /// Returns the policy with another quota in its first window. The burst is kept, because it
    /// protects the server.
    fn admitting(&self, requests: u32) -> Self {
        let mut windows = self.0.windows;
        windows[0].requests = requests;
        Self::new(&windows[..self.0.len])
    }
}

impl Window {
    /// Returns the name of the window in the `RateLimit` fields.
    pub fn name(self) -> &'static str {
        match self.secs {
            1 => "second",
            60 => "minute",
            180 => "three-minutes",
            3600 => "hour",
            _ => "window",
        }
    }
}

/// The context that overrides are selected by, besides the operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyContext {
    /// The named organization, or the one that owns the named project.
    pub organization: Option<OrganizationId>,
    /// Client id of the calling OAuth application.
    pub application: Option<Uuid>,
}

/// The key of an override. `None` stands for all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct OverrideKey {
    pub(super) operation: Option<u16>,
    pub(super) application: Option<Uuid>,
    pub(super) organization: Option<OrganizationId>,
}

/// The policies of all operations, and the operator's overrides.
pub struct Policies {
    operations: Box<[OperationPolicy]>,
    overrides: RwLock<Arc<HashMap<OverrideKey, ActiveOverride, RandomState>>>,
}

struct OperationPolicy {
    id: &'static str,
    default_policy: Policy,
    /// Whether an override may apply. False for most operations, which then skip the look-up.
    overridden: AtomicBool,
}

struct ActiveOverride {
    requests: u32,
    /// The resulting policy, precomputed if the operation is known.
    policy: Option<Policy>,
}

impl Policies {
    /// Returns the policies of these operations, indexed in this order.
    pub fn new(operations: impl Iterator<Item = (&'static str, &'static Limit)>) -> Self {
        Self {
            operations: operations
                .map(|(id, limit): (_, &Limit)| OperationPolicy {
                    id,
                    default_policy: Policy::new(limit.windows),
                    overridden: AtomicBool::new(false),
                })
                .collect(),
            overrides: RwLock::default(),
        }
    }

    /// Returns the id of an operation, which is stable across versions of Gantry.
    pub fn id(&self, operation: u16) -> &'static str {
        self.operations
            .get(usize::from(operation))
            .map_or("", |operation| operation.id)
    }

    /// Returns the index of the operation with this id.
    pub fn operation(&self, id: &str) -> Option<u16> {
        self.operations
            .iter()
            .position(|operation| operation.id == id)
            .and_then(|index| u16::try_from(index).ok())
    }

    /// Returns the policy of an operation in this context. The most specific override wins:
    /// operation before application before organization.
    pub fn policy_for(&self, operation: u16, context: PolicyContext) -> Policy {
        let Some(OperationPolicy {
            default_policy,
            overridden,
            ..
        }) = self.operations.get(usize::from(operation))
        else {
            return Policy::new(&[]);
        };
        if !overridden.load(Ordering::Acquire) {
            return default_policy.clone();
        }
        let overrides = self.overrides.read().clone();
        let found = override_keys(operation, context)
            .iter()
            .find_map(|key| overrides.get(key));
        found.map_or_else(
            || default_policy.clone(),
            |found| {
                found
                    .policy
                    .clone()
                    .unwrap_or_else(|| default_policy.admitting(found.requests))
            },
        )
    }

    /// Replaces all overrides.
    pub(super) fn replace(&self, rows: impl Iterator<Item = (OverrideKey, u32)>) {
        let written = |key: &OverrideKey, requests| {
            let operation = self.operations.get(usize::from(key.operation?))?;
            Some(operation.default_policy.admitting(requests))
        };
        let overrides: HashMap<_, _, RandomState> = rows
            .map(|(key, requests)| {
                (
                    key,
                    ActiveOverride {
                        requests,
                        policy: written(&key, requests),
                    },
                )
            })
            .collect();
        let of: HashSet<Option<u16>> = overrides.keys().map(|key| key.operation).collect();
        *self.overrides.write() = Arc::new(overrides);
        for (number, operation) in (0..).zip(&self.operations) {
            operation.overridden.store(
                of.contains(&None) || of.contains(&Some(number)),
                Ordering::Release,
            );
        }
    }
}

/// Returns the keys of all overrides that may apply, the most specific first. The last one, without
/// any value, cannot be set.
fn override_keys(operation: u16, context: PolicyContext) -> Vec<OverrideKey> {
    let mut keys = Vec::with_capacity(8);
    for operation in with_wildcard(Some(operation)) {
        for application in with_wildcard(context.application) {
            for organization in with_wildcard(context.organization) {
                keys.push(OverrideKey {
                    operation,
                    application,
                    organization,
                });
            }
        }
    }
    keys
}

/// Returns the value, if there is one, and then the wildcard `None`.
fn with_wildcard<T>(value: Option<T>) -> impl Iterator<Item = Option<T>> {
    value.map(Some).into_iter().chain([None])
}

/// Wakes the task that reads overrides after a change.
#[derive(Debug, Default)]
pub struct OverrideChanges(pub(super) Notify);

impl OverrideChanges {
    /// Requests a reload.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, STANDARD};

    fn policies() -> Policies {
        Policies::new([("list", &STANDARD), ("context", &CONTEXT)].into_iter())
    }

    #[test]
    fn field_lists_every_window() {
        assert_eq!(
            policies().policy_for(0, PolicyContext::default()).field(),
            "\"minute\";q=120;w=60"
        );
        assert_eq!(
            policies().policy_for(1, PolicyContext::default()).field(),
            "\"minute\";q=10;w=60, \"second\";q=1;w=1"
        );
    }

    #[test]
    fn most_specific_override_wins() {
        let some_op = Some(0);
        let some_app = Some(Uuid::from_u128(2));
        let some_org = Some(OrganizationId(1));
        // In ascending order of specificity.
        let ladder = [
            OverrideKey {
                operation: None,
                application: None,
                organization: some_org,
            },
            OverrideKey {
                operation: None,
                application: some_app,
                organization: None,
            },
            OverrideKey {
                operation: None,
                application: some_app,
                organization: some_org,
            },
            OverrideKey {
                operation: some_op,
                application: None,
                organization: None,
            },
            OverrideKey {
                operation: some_op,
                application: None,
                organization: some_org,
            },
            OverrideKey {
                operation: some_op,
                application: some_app,
                organization: None,
            },
            OverrideKey {
                operation: some_op,
                application: some_app,
                organization: some_org,
            },
        ];
        let here = PolicyContext {
            organization: some_org,
            application: some_app,
        };
        for steps in 1..=ladder.len() {
            let policies = policies();
            policies.replace(
                ladder[..steps]
                    .iter()
                    .zip(1..)
                    .map(|(key, requests)| (*key, requests)),
            );
            assert_eq!(
                policies.policy_for(0, here).windows()[0].requests,
                u32::try_from(steps).unwrap()
            );
        }
    }

    #[test]
    fn override_applies_to_its_target_and_keeps_the_burst() {
        let policies = policies();
        let acme = Some(OrganizationId(1));
        policies.replace(
            [(
                OverrideKey {
                    operation: Some(1),
                    application: None,
                    organization: acme,
                },
                500,
            )]
            .into_iter(),
        );
        let here = PolicyContext {
            organization: acme,
            application: None,
        };
        assert_eq!(
            policies.policy_for(1, here).windows(),
            [
                crate::platform::rate_limits::per(500, 60),
                crate::platform::rate_limits::per(1, 1)
            ]
        );
        assert_eq!(
            policies.policy_for(1, here).field(),
            "\"minute\";q=500;w=60, \"second\";q=1;w=1"
        );
        assert_eq!(
            policies.policy_for(0, here).windows(),
            STANDARD.windows,
            "another operation"
        );
        assert_eq!(
            policies.policy_for(1, PolicyContext::default()).windows(),
            CONTEXT.windows,
            "another organization"
        );
        policies.replace(std::iter::empty());
        assert_eq!(
            policies.policy_for(1, here).windows(),
            CONTEXT.windows,
            "taken away"
        );
    }
}
