//! The requests of a process, and the callers that its end is charged to.

use std::collections::{BTreeMap, HashMap, VecDeque};

use gantry_base::clock::Ticks;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::crashes::ChargedCaller;
use crate::proxy::service_caller::ServiceCaller;

/// Callers of finished requests that are kept: work after a response can end a process too.
const FINISHED_MAX: usize = 4;
/// Callers of which the finished requests are counted.
const COUNTED_MAX: usize = 64;

/// A request that has not ended.
#[derive(Debug)]
struct OpenRequest {
    since: Ticks,
    caller: Option<ServiceCaller>,
    /// Only its response is under way.
    is_answered: bool,
}

#[derive(Debug, Default)]
struct RequestTable {
    /// Number of the next request.
    next: u64,
    open: BTreeMap<u64, OpenRequest>,
    /// Callers of the last finished requests, oldest first.
    finished: VecDeque<ServiceCaller>,
    /// Numbers of finished requests by caller.
    counts: HashMap<ServiceCaller, u32>,
    last: Option<Ticks>,
}

/// The requests that a process serves or has served.
#[derive(Debug, Default)]
pub(super) struct ProcessRequests {
    table: Mutex<RequestTable>,
    /// Notified when the last open request ends.
    unused: Notify,
}

impl ProcessRequests {
    /// Adds a request, and returns its number.
    pub(super) fn begin(&self, now: Ticks, caller: Option<ServiceCaller>) -> u64 {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        table.last = Some(now);
        table.open.insert(
            number,
            OpenRequest {
                since: now,
                caller,
                is_answered: false,
            },
        );
        number
    }

    /// Marks a request as answered.
    pub(super) fn answered(&self, number: u64) {
        if let Some(open) = self.table.lock().open.get_mut(&number) {
            open.is_answered = true;
        }
    }

    /// Removes a request.
    pub(super) fn end(&self, number: u64) {
        let mut table = self.table.lock();
        let caller = table.open.remove(&number).and_then(|open| open.caller);
        if table.open.is_empty() {
            self.unused.notify_waiters();
        }
        let Some(caller) = caller else {
            return;
        };
        if table.counts.len() < COUNTED_MAX || table.counts.contains_key(&caller) {
            *table.counts.entry(caller).or_default() += 1;
        }
        if !table.finished.contains(&caller) {
            if table.finished.len() >= FINISHED_MAX {
                table.finished.pop_front();
            }
            table.finished.push_back(caller);
        }
    }

    /// Returns when no request is open.
    pub(super) async fn unused(&self) {
        loop {
            let notified = self.unused.notified();
            if self.table.lock().open.is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Returns the start of the oldest request that is not answered.
    pub(super) fn oldest_unanswered(&self) -> Option<Ticks> {
        let table = self.table.lock();
        let mut waiting = table.open.values().filter(|open| !open.is_answered);
        waiting.next().map(|open| open.since)
    }

    /// Returns whether a request began at this time or later.
    pub(super) fn has_served_since(&self, then: Ticks) -> bool {
        self.table.lock().last.is_some_and(|last| last >= then)
    }

    /// Returns the callers that the end of the process is charged to: those of requests without an
    /// answer, otherwise those of unfinished responses, otherwise the last ones.
    pub(super) fn charged(&self) -> Vec<ChargedCaller> {
        let table = self.table.lock();
        let charged = |caller: ServiceCaller| ChargedCaller {
            caller,
            answered: table.counts.get(&caller).copied().unwrap_or(0),
        };
        let open = |is_answered: bool| {
            let of_kind = table.open.values();
            let of_kind = of_kind.filter(move |open| open.is_answered == is_answered);
            let callers = of_kind.filter_map(|open| open.caller);
            callers.map(charged).collect::<Vec<_>>()
        };
        for callers in [open(false), open(true)] {
            if !callers.is_empty() {
                return callers;
            }
        }
        table.finished.iter().copied().map(charged).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(last: u8) -> ServiceCaller {
        ServiceCaller::of_address([192, 0, 2, last].into())
    }

    fn charged(requests: &ProcessRequests) -> Vec<ServiceCaller> {
        let charged = requests.charged().into_iter();
        charged.map(|charged| charged.caller).collect()
    }

    #[test]
    fn answered_requests_of_a_caller_are_counted() {
        let requests = ProcessRequests::default();
        for _ in 0..3 {
            requests.end(requests.begin(0, Some(caller(1))));
        }
        requests.begin(0, Some(caller(1)));
        requests.begin(0, Some(caller(2)));
        let found: Vec<u32> = requests.charged().iter().map(|it| it.answered).collect();
        assert_eq!(found, [3, 0]);
    }

    #[test]
    fn end_is_charged_to_requests_without_an_answer_first() {
        let requests = ProcessRequests::default();
        assert!(requests.charged().is_empty() && !requests.has_served_since(0));
        let first = requests.begin(1, Some(caller(1)));
        let second = requests.begin(2, Some(caller(2)));
        requests.begin(3, None);
        assert_eq!(charged(&requests), [caller(1), caller(2)]);
        assert_eq!(requests.oldest_unanswered(), Some(1));
        requests.answered(first);
        assert_eq!(charged(&requests), [caller(2)]);
        assert_eq!(requests.oldest_unanswered(), Some(2));
        requests.end(second);
        assert_eq!(charged(&requests), [caller(1)], "its response is under way");
        requests.end(first);
        assert_eq!(charged(&requests), [caller(2), caller(1)]);
        assert!(requests.has_served_since(3) && !requests.has_served_since(4));
    }

    #[test]
    fn callers_of_finished_requests_are_bounded() {
        let requests = ProcessRequests::default();
        for last in 0..100 {
            let number = requests.begin(0, Some(caller(last)));
            requests.end(number);
        }
        assert_eq!(charged(&requests), [96, 97, 98, 99].map(caller));
        let counted = requests.table.lock().counts.len();
        assert_eq!(counted, COUNTED_MAX);
    }
}
