//! Who acts on the clusters of a data folder: of several processes that serve it, one at a time.
//!
//! The lease is a row in the control database that runs out. Its holder renews it long before, and stops acting before
//! anybody else may begin; what it still writes afterwards is refused, as each holder has a generation. Beside the row
//! there is a lock file, which the kernel releases however a process ends: so a successor need not wait until a lease runs
//! out when its holder was killed, and only has to when it hangs.

use std::{fs::File, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::reconciler;
use crate::{
    app::App,
    clock::Entropy,
    error::{Context, Error},
};

/// How long a lease stands without being renewed.
const TERM: Duration = Duration::from_secs(15);
/// How long before that its holder stops acting.
const MARGIN: Duration = Duration::from_secs(3);
/// How often it is renewed.
const RENEWAL: Duration = Duration::from_secs(4);
/// How often others look whether it is free.
const LOOK: Duration = Duration::from_secs(1);

/// This process's claim.
#[derive(Debug)]
pub struct Lease {
    /// Names this process, and no later one.
    holder: Uuid,
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    generation: i64,
    until: Instant,
    /// The kernel's word for the same. A holder may have to do without until its predecessor, which hangs, has ended.
    lock: Option<File>,
    /// Whether what the predecessor left was looked through.
    ready: bool,
}

impl Lease {
    /// A claim that was not made yet.
    pub fn new(entropy: &Entropy) -> Self {
        Self { holder: entropy.uuid(), held: Mutex::default() }
    }

    /// The number of the lease while it is held: every outcome is written down under it.
    pub(super) fn generation(&self) -> Option<i64> {
        self.held.lock().as_ref().filter(|held| Instant::now() < held.until).map(|held| held.generation)
    }

    /// The same, to act on.
    pub(super) fn check(&self) -> Result<i64, Error> {
        self.generation().ok_or("another process drives the clusters of this data folder now").context("acting on a cluster")
    }

    /// Whether this process acts on the clusters of its data folder.
    pub fn leads(&self) -> bool {
        self.held.lock().as_ref().is_some_and(|held| held.ready && Instant::now() < held.until)
    }

    /// Lets go, for good: nothing may claim it again. The kernel tells whoever waits.
    pub fn release(&self) {
        *self.held.lock() = None;
    }

    fn is_begun(&self) -> bool {
        self.held.lock().as_ref().is_some_and(|held| !held.ready)
    }

    pub(super) fn set_ready(&self) {
        if let Some(held) = self.held.lock().as_mut() {
            held.ready = true;
        }
    }

    /// Takes the lease if it is free, or prolongs it. What is not held afterwards is somebody else's.
    pub(super) async fn claim(&self, app: &App) -> Result<(), Error> {
        // From before the question: how long the answer took is not time we have.
        let asked = Instant::now();
        let had = self.held.lock().as_mut().and_then(|held| held.lock.take());
        let lock = match had {
            Some(lock) => Some(lock),
            None => app.clusters.try_lock().context("locking the data folder")?,
        };
        let sql = "insert into node_leases as l (node, holder, generation, locked, expires_at) \
                   values ($1, $2, 1, $3, clock_timestamp() + make_interval(secs => $4)) \
                   on conflict (node) do update set holder = excluded.holder, locked = excluded.locked, expires_at = excluded.expires_at, \
                   generation = l.generation + (l.holder <> excluded.holder)::int \
                   where l.holder = excluded.holder or l.expires_at < clock_timestamp() or (l.locked and excluded.locked) \
                   returning generation";
        let claimed = app.db.query(sql, &[&app.settings.node, &self.holder, &lock.is_some(), &TERM.as_secs_f64()]).await;
        let mut held = self.held.lock();
        match claimed {
            Ok(rows) => {
                let ready = held.as_ref().is_some_and(|held| held.ready);
                let lease = |generation| Held { generation, until: asked + TERM.saturating_sub(MARGIN), lock, ready };
                *held = rows.first().map(|row| lease(row.get(0)));
                Ok(())
            }
            Err(error) => {
                // What is held stays held until it is due.
                if let Some(held) = held.as_mut() {
                    held.lock = lock;
                }
                Err(error).context("claiming the data folder's lease")
            }
        }
    }
}

/// Claims the lease again and again until it is dropped, and takes stock whenever it passes to this process.
pub async fn run(app: App) {
    let mut led = app.lease.leads();
    loop {
        if let Err(error) = claim(&app).await {
            tracing::warn!(%error, "the lease of the data folder could not be claimed");
        }
        let before = std::mem::replace(&mut led, app.lease.leads());
        match (before, led) {
            (true, false) => tracing::warn!("another process acts on the clusters of this data folder from now on"),
            (false, true) => {
                tracing::info!("this process acts on the clusters of its data folder");
                app.reconciler.wake();
                app.pool.wake();
                app.jit.wake();
            }
            _ => {}
        }
        tokio::time::sleep(if led { RENEWAL } else { LOOK }).await;
    }
}

/// Claims the lease once. Whoever has just got it first looks through what its predecessor left.
pub async fn claim(app: &App) -> Result<(), Error> {
    app.lease.claim(app).await?;
    if app.lease.is_begun() {
        reconciler::take_stock(app).await?;
        app.lease.set_ready();
    }
    Ok(())
}
