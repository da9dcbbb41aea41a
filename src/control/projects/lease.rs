//! The lease by which one process at a time operates the clusters of a data folder.
//!
//! The lease is a row in the control database that expires. Its holder renews it early, and stops
//! acting before another process can start; later writes are rejected, because each holder has a
//! generation (fencing token). In addition there is a lock file, which the kernel releases when a
//! process ends: the successor of a killed holder need not wait for the expiry, only that of a hung
//! one.
//!
//! The row also contains the location of the holder's folder. A process with a folder elsewhere has
//! a copy, and gets the lease only after the operator confirmed the copy with `gantry node adopt`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gantry_base::clock::Entropy;
use gantry_node::clusters::{Likeness, Location, Moved};
use tokio::time::Instant;
use tokio_postgres::{Row, types::Json};
use uuid::Uuid;

use super::reconciler;
use crate::{
    control::{
        context::ControlContext,
        projects::state::lease::{Held, MARGIN, TERM},
    },
    platform::{
        db::{Db, Param},
        error::{Context, Error},
    },
};

/// The interval of renewals.
const RENEWAL: Duration = Duration::from_secs(4);
/// The interval at which other processes try to acquire it.
const LOOK: Duration = Duration::from_secs(1);
/// The interval of the log message about a copied folder.
const REMINDER: Duration = Duration::from_mins(5);

/// A lease as stored in its row.
#[derive(Debug)]
struct Standing {
    holder: Uuid,
    /// Whether the holder has the folder's lock file.
    locked: bool,
    expires_at: DateTime<Utc>,
    /// Where the holder's folder is; unknown if the holder is an older version of Gantry.
    location: Option<Location>,
}

impl Standing {
    const SQL: &str = "select holder, locked, expires_at, location, clock_timestamp() from node_leases where node = $1";

    /// Reads the lease, and the time of the database's clock.
    fn read(row: &Row) -> (Self, DateTime<Utc>) {
        let location = row
            .get::<_, Option<Json<Location>>>(3)
            .map(|Json(location)| location);
        (
            Self {
                holder: row.get(0),
                locked: row.get(1),
                expires_at: row.get(2),
                location,
            },
            row.get(4),
        )
    }
}

/// A process that tries to acquire the lease.
#[derive(Debug)]
struct Claimant<'a> {
    holder: Uuid,
    /// Whether it has the folder's lock file.
    locked: bool,
    location: &'a Location,
    /// Whether the control database lies in the folder: then no process elsewhere can use it.
    own_database: bool,
}

/// The decision about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Take,
    /// Rejected until the lease expires.
    Wait,
    /// The folder is a copy of the holder's.
    Refuse,
}

fn decide(lease: Option<&Standing>, ours: &Claimant<'_>, now: DateTime<Utc>) -> Decision {
    let Some(lease) = lease else {
        return Decision::Take;
    };
    if lease.holder == ours.holder || (ours.own_database && ours.locked) {
        return Decision::Take;
    }
    match lease
        .location
        .as_ref()
        .map(|earlier| ours.location.likeness(earlier))
    {
        Some(Likeness::Other) => Decision::Refuse,
        // On the same kernel a free lock file means that its holder has ended.
        Some(Likeness::Same) if lease.locked && ours.locked => Decision::Take,
        _ if lease.expires_at < now => Decision::Take,
        _ => Decision::Wait,
    }
}

/// Outcome of a claim.
#[derive(Debug)]
enum Claimed {
    Held { generation: i64 },
    Waiting,
    Refused(Moved),
}

/// Releases the lease for good and ends it in its row, so that a successor does not wait until
/// it expires.
pub async fn hand_back(context: &ControlContext) {
    let lease = &context.lease;
    let held = lease.generation().is_some();
    lease.release();
    let sql =
        "update node_leases set expires_at = clock_timestamp() where node = $1 and holder = $2";
    if held
        && let Err(error) = context
            .db
            .query(sql, &[&context.settings.node, &lease.holder])
            .await
    {
        tracing::debug!(%error, "failed to release the lease of the data folder; it expires by itself");
    }
}

/// Acquires the lease if it is free, or renews it.
async fn acquire(context: &ControlContext) -> Result<(), Error> {
    let lease = &context.lease;
    // Measured before the query, because its duration counts against the lease.
    let asked = Instant::now();
    let had = lease.held.lock().as_mut().and_then(|held| held.lock.take());
    let lock = match had {
        Some(lock) => Some(lock),
        None => context
            .home
            .try_lock_clusters()
            .context("locking the data folder")?,
    };
    let claimed = ask(context, lock.is_some()).await;
    let mut held = lease.held.lock();
    match claimed {
        Ok(claimed) => {
            let ready = held.as_ref().is_some_and(|held| held.ready);
            let (generation, refusal) = match claimed {
                Claimed::Held { generation } => (Some(generation), None),
                Claimed::Waiting => (None, None),
                Claimed::Refused(moved) => (None, Some(moved)),
            };
            *held = generation.map(|generation| Held {
                generation,
                until: asked + TERM.saturating_sub(MARGIN),
                lock,
                ready,
            });
            *lease.refusal.lock() = refusal;
            Ok(())
        }
        Err(error) => {
            // The lease is kept until it expires.
            if let Some(held) = held.as_mut() {
                held.lock = lock;
            }
            Err(error)
        }
    }
}

async fn ask(context: &ControlContext, locked: bool) -> Result<Claimed, Error> {
    let ours = &context.lease;
    let doing = "claiming the data folder's lease";
    let node = &context.settings.node;
    let location = Json(&ours.location);
    let held = |rows: Vec<Row>| {
        rows.first().map_or(Claimed::Waiting, |row| Claimed::Held {
            generation: row.get(0),
        })
    };
    let sql = "update node_leases set locked = $3, location = $4, expires_at = clock_timestamp() + make_interval(secs => $5) \
               where node = $1 and holder = $2 returning generation";
    let renewal: [Param<'_>; 5] = [node, &ours.holder, &locked, &location, &TERM.as_secs_f64()];
    if let renewed @ Claimed::Held { .. } =
        held(context.db.query(sql, &renewal).await.context(doing)?)
    {
        return Ok(renewed);
    }
    let rows = context
        .db
        .query(Standing::SQL, &[node])
        .await
        .context(doing)?;
    let standing = rows.first().map(Standing::read);
    let claimant = Claimant {
        holder: ours.holder,
        locked,
        location: &ours.location,
        own_database: ours.own_database,
    };
    let (lease, now) = standing.map_or((None, DateTime::UNIX_EPOCH), |(lease, now)| {
        (Some(lease), now)
    });
    match decide(lease.as_ref(), &claimant, now) {
        Decision::Wait => return Ok(Claimed::Waiting),
        Decision::Refuse => {
            let earlier = lease
                .as_ref()
                .and_then(|lease| lease.location.as_ref())
                .unwrap_or(&ours.location);
            return Ok(Claimed::Refused(Moved::new(context.home.dir(), earlier)));
        }
        Decision::Take => {}
    }
    let Some(lease) = lease else {
        let sql = "insert into node_leases (node, holder, locked, location, generation, expires_at) \
                   values ($1, $2, $3, $4, 1, clock_timestamp() + make_interval(secs => $5)) on conflict (node) do nothing \
                   returning generation";
        return Ok(held(context.db.query(sql, &renewal).await.context(doing)?));
    };
    // Conditional on the row being unchanged: another process may have been faster.
    let sql = "update node_leases set holder = $2, locked = $3, location = $4, generation = generation + 1, \
               expires_at = clock_timestamp() + make_interval(secs => $5) \
               where node = $1 and holder = $6 and locked = $7 and expires_at = $8 returning generation";
    let params: [Param<'_>; 8] = [
        node,
        &ours.holder,
        &locked,
        &location,
        &TERM.as_secs_f64(),
        &lease.holder,
        &lease.locked,
        &lease.expires_at,
    ];
    Ok(held(context.db.query(sql, &params).await.context(doing)?))
}

/// Returns the last location of this node's folder and whether its lease has expired, if the folder
/// was ever used.
pub async fn last_used(db: &Db, node: Uuid) -> Result<Option<(Option<Location>, bool)>, Error> {
    let rows = db
        .query(Standing::SQL, &[&node])
        .await
        .context("reading a data folder's lease")?;
    let standing = rows.first().map(Standing::read);
    Ok(standing.map(|(lease, now)| (lease.location, lease.expires_at < now)))
}

/// Assigns the lease to the next process in this location. Returns false while a process elsewhere
/// renews it.
pub async fn adopt(
    db: &Db,
    node: Uuid,
    location: &Location,
    entropy: &Entropy,
) -> Result<bool, Error> {
    // A new holder and generation, so that a suspended process elsewhere loses the lease.
    let sql = "update node_leases set holder = $2, locked = false, location = $3, generation = generation + 1, \
               expires_at = clock_timestamp() where node = $1 and expires_at < clock_timestamp() returning generation";
    let rows = db
        .query(sql, &[&node, &entropy.uuid(), &Json(location)])
        .await
        .context("adopting a data folder")?;
    Ok(!rows.is_empty())
}

/// Acquires and renews the lease periodically, and recovers the state whenever this process
/// acquires it.
pub async fn run(context: ControlContext) {
    let mut led = context.lease.leads();
    let mut told = None::<(Moved, Instant)>;
    loop {
        if let Err(error) = claim(&context).await {
            tracing::warn!(%error, "failed to acquire the lease of the data folder; retrying");
        }
        let before = std::mem::replace(&mut led, context.lease.leads());
        match (before, led) {
            (true, false) => {
                tracing::warn!(
                    "lease of the data folder lost; clusters are operated by another process"
                );
            }
            (false, true) => {
                tracing::info!("lease of the data folder acquired");
                context.reconciler.wake();
                context.pool.wake();
                context.temporary_access.wake();
            }
            _ => {}
        }
        told = remind(context.lease.refusal(), told);
        tokio::time::sleep(if led { RENEWAL } else { LOOK }).await;
    }
}

/// Logs a rejection when it is new, and repeats it at an interval.
fn remind(refusal: Option<Moved>, told: Option<(Moved, Instant)>) -> Option<(Moved, Instant)> {
    let refusal = refusal?;
    if let Some((earlier, at)) =
        told.filter(|(earlier, at)| *earlier == refusal && at.elapsed() < REMINDER)
    {
        return Some((earlier, at));
    }
    tracing::error!("{refusal}");
    Some((refusal, Instant::now()))
}

/// Tries to acquire the lease once. A new holder first recovers the state of its predecessor.
pub async fn claim(context: &ControlContext) -> Result<(), Error> {
    acquire(context).await?;
    if context.lease.is_begun() {
        reconciler::recover_on_startup(context).await?;
        context.lease.set_ready();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn location(machine: &str, boot: &str, inode: u64) -> Location {
        Location {
            machine: Some(machine.to_owned()),
            boot: boot.to_owned(),
            device: 1,
            inode,
            host: machine.to_owned(),
        }
    }

    /// The outcome for a process that finds the lease of another one.
    fn asked(
        earlier: Option<Location>,
        expired: bool,
        locked: [bool; 2],
        here: &Location,
        own_database: bool,
    ) -> Decision {
        let now = DateTime::UNIX_EPOCH;
        let expires_at = now + TimeDelta::seconds(if expired { -1 } else { 1 });
        let lease = Standing {
            holder: Uuid::from_u128(1),
            locked: locked[0],
            expires_at,
            location: earlier,
        };
        let ours = Claimant {
            holder: Uuid::from_u128(2),
            locked: locked[1],
            location: here,
            own_database,
        };
        decide(Some(&lease), &ours, now)
    }

    #[test]
    fn lease_is_taken_over_on_same_machine_and_denied_to_copies() {
        use Decision::{Refuse, Take, Wait};
        let here = location("m", "b", 1);
        let (rebooted, copied, cloned) = (
            location("m", "a", 1),
            location("m", "b", 2),
            location("n", "c", 1),
        );
        let both = [true, true];
        for (earlier, expired, locked, decision, what) in [
            (
                Some(&here),
                false,
                both,
                Take,
                "the holder was killed, and the kernel says so",
            ),
            (
                Some(&here),
                false,
                [true, false],
                Wait,
                "the holder has the lock file",
            ),
            (
                Some(&here),
                false,
                [false, true],
                Wait,
                "the holder never had the lock file",
            ),
            (Some(&here), true, [true, false], Take, "the holder hangs"),
            (
                Some(&rebooted),
                false,
                both,
                Wait,
                "the machine was started again, or it is a clone that runs",
            ),
            (
                Some(&rebooted),
                true,
                both,
                Take,
                "the machine was started again",
            ),
            (
                Some(&copied),
                false,
                both,
                Refuse,
                "the original runs on the same machine",
            ),
            (
                Some(&copied),
                true,
                both,
                Refuse,
                "a copy on the same machine",
            ),
            (
                Some(&cloned),
                false,
                both,
                Refuse,
                "the original runs on another machine",
            ),
            (
                Some(&cloned),
                true,
                both,
                Refuse,
                "a copy from another machine",
            ),
            (
                None,
                false,
                both,
                Wait,
                "an older version holds it, without a location",
            ),
            (None, true, both, Take, "an older version held it"),
        ] {
            assert_eq!(
                asked(earlier.cloned(), expired, locked, &here, false),
                decision,
                "{what}"
            );
        }
    }

    #[test]
    fn new_or_own_lease_is_acquired_immediately() {
        let (here, now) = (location("m", "b", 1), DateTime::UNIX_EPOCH);
        let ours = Claimant {
            holder: Uuid::from_u128(2),
            locked: false,
            location: &here,
            own_database: false,
        };
        assert_eq!(decide(None, &ours, now), Decision::Take);
        let own = Standing {
            holder: ours.holder,
            locked: true,
            expires_at: now,
            location: Some(here.clone()),
        };
        assert_eq!(decide(Some(&own), &ours, now), Decision::Take);
        // A folder with its own control database was confirmed before that was started.
        let elsewhere = Some(location("n", "c", 9));
        assert_eq!(
            asked(elsewhere.clone(), false, [true, true], &here, true),
            Decision::Take
        );
        assert_eq!(
            asked(elsewhere, false, [true, false], &here, true),
            Decision::Refuse
        );
    }
}
