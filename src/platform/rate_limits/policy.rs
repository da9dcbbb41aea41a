//! Which windows apply to a request: those of the operation, or what the operator put in their place.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::RwLock;
use uuid::Uuid;

use super::{Limit, WINDOWS_MAX, Window};
use crate::base::ids::OrganizationId;

/// The windows that apply to a request, and the field that states them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy(Arc<Stated>);

#[derive(Debug, PartialEq, Eq)]
struct Stated {
    windows: [Window; WINDOWS_MAX],
    len: usize,
    field: Bytes,
}

impl Policy {
    /// A policy of these windows, the longest first; of more than [`WINDOWS_MAX`], the first.
    pub fn new(windows: &[Window]) -> Self {
        let mut list = [Window::default(); WINDOWS_MAX];
        let len = windows.len().min(WINDOWS_MAX);
        list[..len].copy_from_slice(&windows[..len]);
        let items: Vec<_> = windows[..len]
            .iter()
            .map(|w| format!("\"{}\";q={};w={}", w.name(), w.requests, w.secs))
            .collect();
        Self(Arc::new(Stated {
            windows: list,
            len,
            field: items.join(", ").into(),
        }))
    }

    /// The windows, the longest first.
    pub fn windows(&self) -> &[Window] {
        &self.0.windows[..self.0.len]
    }

    /// Value of the `RateLimit-Policy` field: written once, not with every response.
    pub fn field(&self) -> &Bytes {
        &self.0.field
    }

    /// The same with another quota in its first window. A burst protects the server, so it stays.
    fn admitting(&self, requests: u32) -> Self {
        let mut windows = self.0.windows;
        windows[0].requests = requests;
        Self::new(&windows[..self.0.len])
    }
}

impl Window {
    /// Name of the window in the `RateLimit` fields.
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

/// What an override can be about besides the operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The organization named, or that owns the project named.
    pub organization: Option<OrganizationId>,
    /// The application that calls.
    pub application: Option<Uuid>,
}

/// Whom an override applies to. `None` is everybody, or every operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) operation: Option<u16>,
    pub(super) application: Option<Uuid>,
    pub(super) organization: Option<OrganizationId>,
}

/// The policy of every operation, and the operator's overrides.
pub struct Policies {
    operations: Box<[Operation]>,
    overrides: RwLock<Arc<HashMap<Subject, Override, RandomState>>>,
}

struct Operation {
    id: &'static str,
    standing: Policy,
    /// Whether an override can apply to it: most have none, and pay one load for the question.
    overridden: AtomicBool,
}

struct Override {
    requests: u32,
    /// Written beforehand where the operation is known.
    policy: Option<Policy>,
}

impl Policies {
    /// Of these operations, numbered in this order.
    pub fn new(operations: impl Iterator<Item = (&'static str, &'static Limit)>) -> Self {
        let operation = |(id, limit): (_, &Limit)| Operation {
            id,
            standing: Policy::new(limit.windows),
            overridden: AtomicBool::new(false),
        };
        Self {
            operations: operations.map(operation).collect(),
            overrides: RwLock::default(),
        }
    }

    /// Id of an operation: unlike its number, the same in every version of the program.
    pub fn id(&self, operation: u16) -> &'static str {
        self.operations
            .get(usize::from(operation))
            .map_or("", |operation| operation.id)
    }

    /// Number of the operation with this id.
    pub fn operation(&self, id: &str) -> Option<u16> {
        self.operations
            .iter()
            .position(|operation| operation.id == id)
            .and_then(|place| u16::try_from(place).ok())
    }

    /// What applies to `operation` here. The most specific override wins: one that names the operation before one that
    /// does not, then one that names the application, then one that names the organization.
    pub fn of(&self, operation: u16, place: Place) -> Policy {
        let Some(Operation {
            standing,
            overridden,
            ..
        }) = self.operations.get(usize::from(operation))
        else {
            return Policy::new(&[]);
        };
        if !overridden.load(Ordering::Acquire) {
            return standing.clone();
        }
        let overrides = self.overrides.read().clone();
        let found = subjects(operation, place).find_map(|subject| overrides.get(&subject));
        found.map_or_else(
            || standing.clone(),
            |found| {
                found
                    .policy
                    .clone()
                    .unwrap_or_else(|| standing.admitting(found.requests))
            },
        )
    }

    /// Puts these overrides in the place of those before.
    pub(super) fn replace(&self, rows: impl Iterator<Item = (Subject, u32)>) {
        let written = |subject: &Subject, requests| {
            let operation = self.operations.get(usize::from(subject.operation?))?;
            Some(operation.standing.admitting(requests))
        };
        let overrides: HashMap<_, _, RandomState> = rows
            .map(|(subject, requests)| {
                (
                    subject,
                    Override {
                        requests,
                        policy: written(&subject, requests),
                    },
                )
            })
            .collect();
        let of: HashSet<Option<u16>> = overrides.keys().map(|subject| subject.operation).collect();
        *self.overrides.write() = Arc::new(overrides);
        for (number, operation) in (0..).zip(&self.operations) {
            operation.overridden.store(
                of.contains(&None) || of.contains(&Some(number)),
                Ordering::Release,
            );
        }
    }
}

/// Every override that could apply, the most specific first. One for everybody and everything is none: it cannot be set.
fn subjects(operation: u16, place: Place) -> impl Iterator<Item = Subject> {
    let each = |some: bool| [some, false].into_iter().take(1 + usize::from(some));
    each(true).flat_map(move |by_operation| {
        each(place.application.is_some()).flat_map(move |by_application| {
            each(place.organization.is_some()).map(move |by_organization| Subject {
                operation: by_operation.then_some(operation),
                application: place.application.filter(|_| by_application),
                organization: place.organization.filter(|_| by_organization),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::rate_limits::{CONTEXT, STANDARD};

    fn policies() -> Policies {
        Policies::new([("list", &STANDARD), ("context", &CONTEXT)].into_iter())
    }

    #[test]
    fn the_field_states_every_window() {
        assert_eq!(
            policies().of(0, Place::default()).field(),
            "\"minute\";q=120;w=60"
        );
        assert_eq!(
            policies().of(1, Place::default()).field(),
            "\"minute\";q=10;w=60, \"second\";q=1;w=1"
        );
    }

    #[test]
    fn the_most_specific_override_wins() {
        let (acme, context) = (OrganizationId(1), Uuid::from_u128(2));
        let (some_op, some_app, some_org) = (Some(0), Some(context), Some(acme));
        // From the least specific to the most.
        let ladder = [
            Subject {
                operation: None,
                application: None,
                organization: some_org,
            },
            Subject {
                operation: None,
                application: some_app,
                organization: None,
            },
            Subject {
                operation: None,
                application: some_app,
                organization: some_org,
            },
            Subject {
                operation: some_op,
                application: None,
                organization: None,
            },
            Subject {
                operation: some_op,
                application: None,
                organization: some_org,
            },
            Subject {
                operation: some_op,
                application: some_app,
                organization: None,
            },
            Subject {
                operation: some_op,
                application: some_app,
                organization: some_org,
            },
        ];
        let here = Place {
            organization: Some(acme),
            application: Some(context),
        };
        for steps in 1..=ladder.len() {
            let policies = policies();
            policies.replace(
                ladder[..steps]
                    .iter()
                    .zip(1..)
                    .map(|(subject, requests)| (*subject, requests)),
            );
            assert_eq!(
                policies.of(0, here).windows()[0].requests,
                u32::try_from(steps).unwrap()
            );
        }
    }

    #[test]
    fn an_override_is_for_those_it_names_and_leaves_the_burst() {
        let policies = policies();
        let acme = Some(OrganizationId(1));
        policies.replace(
            [(
                Subject {
                    operation: Some(1),
                    application: None,
                    organization: acme,
                },
                500,
            )]
            .into_iter(),
        );
        let here = Place {
            organization: acme,
            application: None,
        };
        assert_eq!(
            policies.of(1, here).windows(),
            [
                crate::platform::rate_limits::per(500, 60),
                crate::platform::rate_limits::per(1, 1)
            ]
        );
        assert_eq!(
            policies.of(1, here).field(),
            "\"minute\";q=500;w=60, \"second\";q=1;w=1"
        );
        assert_eq!(
            policies.of(0, here).windows(),
            STANDARD.windows,
            "another operation"
        );
        assert_eq!(
            policies.of(1, Place::default()).windows(),
            CONTEXT.windows,
            "another organization"
        );
        policies.replace(std::iter::empty());
        assert_eq!(
            policies.of(1, here).windows(),
            CONTEXT.windows,
            "taken away"
        );
    }
}
