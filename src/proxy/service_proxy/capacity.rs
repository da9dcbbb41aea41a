//! Limits on concurrent requests, unfinished bodies and WebSockets of a project, and on the share
//! of one client (decision 0073).
//!
//! A client is an IPv4 address or an IPv6 /64 network. When a limit is reached, the request body
//! that has waited longest for its client's next byte is aborted, if it has waited for
//! [`STALLED_MILLIS`].

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Context,
};

use futures_util::task::AtomicWaker;
use gantry_base::{clock::Ticks, ids::ProjectId};
use ipnet::IpNet;
use parking_lot::Mutex;

/// Time without a byte from the client, in milliseconds, after which a request body may be aborted
/// to free capacity.
pub(super) const STALLED_MILLIS: Ticks = 2_000;

/// Value of `waiting_since` while the body does not wait for its client.
const NOT_WAITING: Ticks = Ticks::MAX;

/// A counted resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request in flight: from the first byte of its body, or the end of its head if it has none,
    /// until the response ends.
    Request,
    /// A request body that is incomplete, from the end of the request's head on.
    Body,
    /// A WebSocket.
    WebSocket,
}

/// A number for each [`Kind`].
type KindCounts = [usize; 3];

/// Maximum numbers, in the order of [`Kind`].
#[derive(Debug, Clone, Copy)]
pub(super) struct CapacityBounds {
    /// For one project.
    pub(super) project: KindCounts,
    /// For one client of one project.
    pub(super) client: KindCounts,
}

/// Limits of the proxy. A client's share is a quarter.
pub(super) const BOUNDS: CapacityBounds = CapacityBounds {
    project: [1000, 500, 500],
    client: [250, 125, 125],
};

/// The project and the client that a resource is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CapacityKey {
    pub(super) project: ProjectId,
    pub(super) client: IpNet,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CapacityExceeded {
    /// The project's limit.
    Project,
    /// The client's share.
    Client,
    /// The request's body was aborted to free capacity before the request was counted.
    Body,
}

/// Usage of every project with at least one counted resource, bounded by the number of connections.
pub(super) struct ProxyCapacity {
    bounds: CapacityBounds,
    projects: Mutex<HashMap<ProjectId, ProjectUsage>>,
}

/// Counted resources of one project.
#[derive(Default)]
struct ProjectUsage {
    all: KindCounts,
    clients: HashMap<IpNet, KindCounts>,
    /// Unfinished bodies by number.
    bodies: HashMap<u64, Arc<BodyProgress>>,
    next_body: u64,
}

/// State of one unfinished body, shared by the capacity and the body.
struct BodyProgress {
    number: u64,
    client: IpNet,
    /// Time since which the body waits for a byte, or [`NOT_WAITING`].
    waiting_since: AtomicU64,
    /// Whether its request is counted as [`Kind::Request`]. Changed under the lock of the projects.
    in_flight: AtomicBool,
    /// Whether it was aborted to free capacity. Changed under the lock of the projects.
    ended: AtomicBool,
    waker: AtomicWaker,
}

impl BodyProgress {
    fn has_stalled(&self, now: Ticks) -> bool {
        let since = self.waiting_since.load(Ordering::Relaxed);
        since != NOT_WAITING && now.saturating_sub(since) >= STALLED_MILLIS
    }
}

/// A counted resource. Dropping it releases it.
pub(super) struct CapacityPermit {
    capacity: Arc<ProxyCapacity>,
    capacity_key: CapacityKey,
    kind: Kind,
    progress: Option<Arc<BodyProgress>>,
}

/// An incomplete request body, counted until it is dropped.
pub(super) struct UnfinishedBody(CapacityPermit);

impl ProxyCapacity {
    pub(super) fn new(bounds: CapacityBounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            projects: Mutex::default(),
        })
    }

    /// Counts a request without a body.
    pub(super) fn request(
        self: &Arc<Self>,
        capacity_key: CapacityKey,
        now: Ticks,
    ) -> Result<CapacityPermit, CapacityExceeded> {
        self.take(Kind::Request, capacity_key, None, now)
    }

    /// Counts a WebSocket.
    pub(super) fn websocket(
        self: &Arc<Self>,
        capacity_key: CapacityKey,
        now: Ticks,
    ) -> Result<CapacityPermit, CapacityExceeded> {
        self.take(Kind::WebSocket, capacity_key, None, now)
    }

    /// Counts a body of which nothing has arrived.
    pub(super) fn body(
        self: &Arc<Self>,
        capacity_key: CapacityKey,
        now: Ticks,
    ) -> Result<UnfinishedBody, CapacityExceeded> {
        self.take(Kind::Body, capacity_key, None, now)
            .map(UnfinishedBody)
    }

    fn take(
        self: &Arc<Self>,
        kind: Kind,
        capacity_key: CapacityKey,
        progress: Option<Arc<BodyProgress>>,
        now: Ticks,
    ) -> Result<CapacityPermit, CapacityExceeded> {
        let mut projects = self.projects.lock();
        if progress
            .as_ref()
            .is_some_and(|progress| progress.ended.load(Ordering::Relaxed))
        {
            return Err(CapacityExceeded::Body);
        }
        let usage = projects.entry(capacity_key.project).or_default();
        let ended = usage.make_room(kind, capacity_key.client, &self.bounds, now)?;
        usage.add(kind, capacity_key.client);
        let progress = match kind {
            Kind::Body => Some(usage.begin_body(capacity_key.client, now)),
            Kind::Request | Kind::WebSocket => progress,
        };
        if let (Kind::Request, Some(progress)) = (kind, &progress) {
            progress.in_flight.store(true, Ordering::Relaxed);
        }
        drop(projects);
        if let Some(ended) = ended {
            ended.waker.wake();
        }
        Ok(CapacityPermit {
            capacity: Arc::clone(self),
            capacity_key,
            kind,
            progress,
        })
    }
}

impl ProjectUsage {
    fn add(&mut self, kind: Kind, client: IpNet) {
        self.all[kind as usize] += 1;
        self.clients.entry(client).or_default()[kind as usize] += 1;
    }

    fn subtract(&mut self, kind: Kind, client: IpNet) {
        self.all[kind as usize] -= 1;
        if let Some(counts) = self.clients.get_mut(&client) {
            counts[kind as usize] -= 1;
            if *counts == KindCounts::default() {
                self.clients.remove(&client);
            }
        }
    }

    fn begin_body(&mut self, client: IpNet, now: Ticks) -> Arc<BodyProgress> {
        let progress = Arc::new(BodyProgress {
            number: self.next_body,
            client,
            waiting_since: AtomicU64::new(now),
            in_flight: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        self.bodies.insert(self.next_body, Arc::clone(&progress));
        self.next_body += 1;
        progress
    }

    /// Frees capacity for one more resource of `kind`, if needed. Returns the body that was
    /// aborted, if any.
    fn make_room(
        &mut self,
        kind: Kind,
        client: IpNet,
        bounds: &CapacityBounds,
        now: Ticks,
    ) -> Result<Option<Arc<BodyProgress>>, CapacityExceeded> {
        let own = self
            .clients
            .get(&client)
            .map_or(0, |counts| counts[kind as usize]);
        if own >= bounds.client[kind as usize] {
            // A client that exceeds its share does not displace other clients.
            return self
                .end_oldest_stalled(kind, Some(client), now)
                .map(Some)
                .ok_or(CapacityExceeded::Client);
        }
        if self.all[kind as usize] >= bounds.project[kind as usize] {
            return self
                .end_oldest_stalled(kind, None, now)
                .map(Some)
                .ok_or(CapacityExceeded::Project);
        }
        Ok(None)
    }

    /// Aborts the body that has stalled for the longest time, of one client or of all, if that
    /// frees a resource of `kind`.
    fn end_oldest_stalled(
        &mut self,
        kind: Kind,
        client: Option<IpNet>,
        now: Ticks,
    ) -> Option<Arc<BodyProgress>> {
        let frees = |body: &BodyProgress| match kind {
            Kind::Request => body.in_flight.load(Ordering::Relaxed),
            Kind::Body => true,
            Kind::WebSocket => false,
        };
        let stalled = self
            .bodies
            .values()
            .filter(|body| client.is_none_or(|client| client == body.client));
        let stalled = stalled.filter(|body| frees(body) && body.has_stalled(now));
        let oldest = stalled
            .min_by_key(|body| (body.waiting_since.load(Ordering::Relaxed), body.number))
            .cloned()?;
        self.bodies.remove(&oldest.number);
        self.subtract(Kind::Body, oldest.client);
        if oldest.in_flight.load(Ordering::Relaxed) {
            self.subtract(Kind::Request, oldest.client);
        }
        oldest.ended.store(true, Ordering::Release);
        Some(oldest)
    }
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        let mut projects = self.capacity.projects.lock();
        let Some(usage) = projects.get_mut(&self.capacity_key.project) else {
            return;
        };
        if let Some(progress) = &self.progress {
            // Already subtracted when it was aborted.
            if progress.ended.load(Ordering::Relaxed) {
                return Self::tidy(&mut projects, self.capacity_key.project);
            }
            match self.kind {
                Kind::Body => drop(usage.bodies.remove(&progress.number)),
                Kind::Request | Kind::WebSocket => {
                    progress.in_flight.store(false, Ordering::Relaxed);
                }
            }
        }
        usage.subtract(self.kind, self.capacity_key.client);
        Self::tidy(&mut projects, self.capacity_key.project);
    }
}

impl CapacityPermit {
    /// Removes a project without counted resources.
    fn tidy(projects: &mut HashMap<ProjectId, ProjectUsage>, project: ProjectId) {
        if projects
            .get(&project)
            .is_some_and(|usage| usage.clients.is_empty())
        {
            projects.remove(&project);
        }
    }
}

impl UnfinishedBody {
    /// Counts the body's request as in flight, after the first bytes arrived.
    pub(super) fn request(&self, now: Ticks) -> Result<CapacityPermit, CapacityExceeded> {
        self.0.capacity.take(
            Kind::Request,
            self.0.capacity_key,
            self.0.progress.clone(),
            now,
        )
    }

    /// Records that bytes have arrived.
    pub(super) fn moved(&self) {
        if let Some(progress) = &self.0.progress {
            progress.waiting_since.store(NOT_WAITING, Ordering::Relaxed);
        }
    }

    /// Records that the body waits for its client's next byte. The task is woken if the body is
    /// aborted.
    pub(super) fn waits(&self, cx: &Context<'_>, now: Ticks) {
        if let Some(progress) = &self.0.progress {
            // Keeps the time of the first wait since the last byte.
            let _ = progress.waiting_since.compare_exchange(
                NOT_WAITING,
                now,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            progress.waker.register(cx.waker());
        }
    }

    /// Returns whether the body was aborted to free capacity.
    pub(super) fn is_ended(&self) -> bool {
        self.0
            .progress
            .as_ref()
            .is_some_and(|progress| progress.ended.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const TIGHT: CapacityBounds = CapacityBounds {
        project: [4, 4, 4],
        client: [2, 2, 2],
    };

    fn of(project: i64, last: u8) -> CapacityKey {
        CapacityKey {
            project: ProjectId(project),
            client: format!("192.0.2.{last}/32").parse().unwrap(),
        }
    }

    #[test]
    fn client_share_and_project_limit_apply_to_each_kind() {
        for take in [ProxyCapacity::request, ProxyCapacity::websocket] {
            let capacity = ProxyCapacity::new(TIGHT);
            let first: Vec<_> = (0..2)
                .map(|_| {
                    take(&capacity, of(1, 1), 0).unwrap_or_else(|_| panic!("within its share"))
                })
                .collect();
            assert_eq!(
                take(&capacity, of(1, 1), 0).err(),
                Some(CapacityExceeded::Client)
            );
            let _second: Vec<_> = (0..2)
                .map(|_| {
                    take(&capacity, of(1, 2), 0).unwrap_or_else(|_| panic!("within its share"))
                })
                .collect();
            assert_eq!(
                take(&capacity, of(1, 3), 0).err(),
                Some(CapacityExceeded::Project)
            );
            assert!(
                take(&capacity, of(2, 1), 0).is_ok(),
                "another project has its own bound"
            );
            drop(first);
            assert!(take(&capacity, of(1, 3), 0).is_ok());
        }
    }

    #[test]
    fn unused_project_is_removed() {
        let capacity = ProxyCapacity::new(TIGHT);
        let body = capacity.body(of(1, 1), 0).ok().unwrap();
        let request = body.request(0).ok().unwrap();
        drop((body, request));
        drop(capacity.websocket(of(2, 1), 0));
        assert!(capacity.projects.lock().is_empty());
    }

    #[test]
    fn oldest_stalled_body_is_aborted() {
        let capacity = ProxyCapacity::new(TIGHT);
        let bodies: Vec<_> = [1, 1, 2, 2]
            .into_iter()
            .zip(0..)
            .map(|(last, at)| capacity.body(of(1, last), at).ok().unwrap())
            .collect();
        assert_eq!(
            capacity.body(of(1, 3), STALLED_MILLIS - 1).err(),
            Some(CapacityExceeded::Project),
            "none has waited for long enough"
        );
        // The first two bodies make progress, so the third is the oldest stalled one.
        bodies[0].moved();
        bodies[1].moved();
        let now = STALLED_MILLIS + 10;
        bodies[1].waits(&Context::from_waker(Waker::noop()), now - 1);
        let newcomer = capacity.body(of(1, 3), now).ok().unwrap();
        assert_eq!(
            bodies
                .iter()
                .map(UnfinishedBody::is_ended)
                .collect::<Vec<_>>(),
            [false, false, true, false]
        );
        // A client that has used up its share displaces a body of its own.
        assert_eq!(
            capacity.body(of(1, 1), now).err(),
            Some(CapacityExceeded::Client)
        );
        assert!(capacity.body(of(1, 1), now + STALLED_MILLIS).is_ok());
        assert_eq!(
            bodies
                .iter()
                .map(UnfinishedBody::is_ended)
                .collect::<Vec<_>>(),
            [false, true, true, false]
        );
        drop((bodies, newcomer));
        assert!(capacity.projects.lock().is_empty());
    }

    #[test]
    fn stalled_request_frees_its_permit() {
        let capacity = ProxyCapacity::new(TIGHT);
        let begin = |last| {
            let body = capacity.body(of(1, last), 0).ok().unwrap();
            let request = body.request(0).ok().unwrap();
            (body, request)
        };
        let stalled = [begin(1), begin(1)];
        let idle = capacity.body(of(1, 2), 0).ok().unwrap();
        let others = [
            capacity.request(of(1, 2), 0).ok().unwrap(),
            capacity.request(of(1, 2), 0).ok().unwrap(),
        ];
        assert_eq!(
            capacity.request(of(1, 3), 0).err(),
            Some(CapacityExceeded::Project)
        );
        let newcomer = capacity.request(of(1, 3), STALLED_MILLIS).ok().unwrap();
        assert!(stalled[0].0.is_ended() && !stalled[1].0.is_ended());
        assert!(
            !idle.is_ended(),
            "a body that has not begun holds no place in flight"
        );
        drop((stalled, idle, others, newcomer));
        assert!(capacity.projects.lock().is_empty());
    }
}
