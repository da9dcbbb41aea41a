//! Limits on queries.

use std::time::Duration;

/// Limits on queries.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of running queries.
    pub running: usize,
    /// Maximum number of running queries of one project, less if it would hold all slots.
    pub running_project: usize,
    /// Maximum number of running queries over little data, in addition to [`Self::running`].
    pub running_short: usize,
    /// Maximum size of the files and the unflushed lines of a query over little data, in bytes.
    pub short_bytes: u64,
    /// Maximum number of queries that wait for a slot.
    pub waiting: usize,
    /// Maximum number of queries of one project that wait for a slot.
    pub waiting_project: usize,
    /// Maximum time that a query waits for a slot.
    pub wait: Duration,
    /// Memory limit of one query in bytes.
    pub memory_query: usize,
    /// Memory limit of all queries of one project in bytes.
    pub memory_project: usize,
    /// Memory limit of all queries in bytes.
    pub memory_all: usize,
    /// Number of worker threads.
    pub threads: usize,
    /// Time limit of a query, including the wait for a slot.
    pub timeout: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let threads = std::thread::available_parallelism()
            .map_or(2, usize::from)
            .min(8);
        Self {
            running: threads.max(2),
            running_project: 2,
            running_short: 4,
            short_bytes: 8 << 20,
            waiting: 64,
            waiting_project: 16,
            wait: Duration::from_secs(5),
            memory_query: 256 << 20,
            memory_project: 384 << 20,
            memory_all: 1 << 30,
            threads,
            timeout: Duration::from_secs(30),
        }
    }
}
