//! The lease that this process holds.

use std::{fs::File, time::Duration};

use gantry_base::clock::Entropy;
use gantry_node::clusters::{Location, Moved};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::platform::error::{Context, Error};

/// The time to live of a lease.
pub(in crate::control) const TERM: Duration = Duration::from_secs(15);

/// The safety margin before the expiry in which the holder does not act.
pub(in crate::control) const MARGIN: Duration = Duration::from_secs(3);

/// This process's claim.
#[derive(Debug)]
pub struct Lease {
    /// Unique identifier of this process.
    pub(in crate::control) holder: Uuid,
    pub(in crate::control) held: Mutex<Option<Held>>,
    pub(in crate::control) location: Location,
    pub(in crate::control) own_database: bool,
    /// The reason of the last rejection.
    pub(in crate::control) refusal: Mutex<Option<Moved>>,
}

#[derive(Debug)]
pub(in crate::control) struct Held {
    pub(in crate::control) generation: i64,
    pub(in crate::control) until: Instant,
    /// The lock file. A hung predecessor may still hold it when this process gets the lease.
    pub(in crate::control) lock: Option<File>,
    /// Whether the state of the predecessor was recovered.
    pub(in crate::control) ready: bool,
}

impl Lease {
    /// Returns an inactive claim for a folder in this location. `own_database`: the control
    /// database is in the folder.
    pub fn new(entropy: &Entropy, location: Location, own_database: bool) -> Self {
        Self {
            holder: entropy.uuid(),
            held: Mutex::default(),
            location,
            own_database,
            refusal: Mutex::default(),
        }
    }

    /// Returns why this process must not operate the folder, if so.
    pub fn refusal(&self) -> Option<Moved> {
        self.refusal.lock().clone()
    }

    /// Returns the generation of the lease while it is held. Every recorded outcome carries it.
    pub(crate) fn generation(&self) -> Option<i64> {
        self.held
            .lock()
            .as_ref()
            .filter(|held| Instant::now() < held.until)
            .map(|held| held.generation)
    }

    /// Returns the generation of the lease, or an error if this process does not hold the lease.
    pub(crate) fn check(&self) -> Result<i64, Error> {
        self.generation()
            .ok_or("another process now operates the clusters of this data folder")
            .context("acting on a cluster")
    }

    /// Returns whether this process operates the clusters of its data folder.
    pub fn leads(&self) -> bool {
        self.held
            .lock()
            .as_ref()
            .is_some_and(|held| held.ready && Instant::now() < held.until)
    }

    /// Releases the lock for good. Waiting processes can then acquire it.
    pub fn release(&self) {
        *self.held.lock() = None;
    }

    pub(in crate::control) fn is_begun(&self) -> bool {
        self.held.lock().as_ref().is_some_and(|held| !held.ready)
    }

    pub(crate) fn set_ready(&self) {
        if let Some(held) = self.held.lock().as_mut() {
            held.ready = true;
        }
    }
}
