//! Lines of output: split, bounded, and the last ones kept.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Lines that are kept for messages.
const LINES_KEPT: usize = 20;
/// Lines of an instance that are stored in one period.
const PERIOD_LINES_MAX: u32 = 100;
/// Length of the period, in milliseconds.
const PERIOD_MILLIS: i64 = 10_000;

/// The last lines of an instance.
#[derive(Debug, Default)]
pub struct RecentLines {
    lines: Mutex<KeptLines>,
    added: Notify,
}

#[derive(Debug, Default)]
struct KeptLines {
    kept: VecDeque<String>,
    /// Number of all lines so far.
    total: usize,
}

impl RecentLines {
    /// Adds a line. The oldest one is dropped if there are too many.
    pub fn add(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.kept.len() >= LINES_KEPT {
            lines.kept.pop_front();
        }
        lines.kept.push_back(line);
        lines.total += 1;
        drop(lines);
        self.added.notify_waiters();
    }

    /// Returns the last line.
    pub fn last(&self) -> Option<String> {
        self.lines.lock().kept.back().cloned()
    }

    /// Returns the number of lines so far.
    pub fn count(&self) -> usize {
        self.lines.lock().total
    }

    /// Waits for a line with one of these texts, after the first `seen` lines.
    pub async fn wait_for(&self, texts: &[&str], seen: usize) -> String {
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            added.as_mut().enable();
            if let Some(line) = self.find(texts, seen) {
                return line;
            }
            added.await;
        }
    }

    fn find(&self, texts: &[&str], seen: usize) -> Option<String> {
        let lines = self.lines.lock();
        let dropped = lines.total - lines.kept.len();
        let new = lines.kept.iter().skip(seen.saturating_sub(dropped));
        let mut matching = new.filter(|line| texts.iter().any(|text| line.contains(text)));
        matching.next().cloned()
    }
}

/// Bounds the lines that are stored. Says how many were dropped.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// Start of the period, in milliseconds since 1970.
    began: i64,
    admitted: u32,
    dropped: u32,
}

impl RateLimit {
    /// Returns the lines to store: this one unless there were too many, after a line about dropped
    /// ones.
    pub fn admit(&mut self, line: String, now: i64) -> Vec<String> {
        let mut lines = Vec::new();
        if !(self.began..self.began + PERIOD_MILLIS).contains(&now) {
            if self.dropped > 0 {
                lines.push(format!("{} lines of output were dropped", self.dropped));
            }
            *self = Self {
                began: now,
                ..Self::default()
            };
        }
        if self.admitted < PERIOD_LINES_MAX {
            self.admitted += 1;
            lines.push(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
        lines
    }
}

/// Splits bytes into lines of at most [`LineSplitter::BYTES_MAX`].
#[derive(Debug, Default)]
pub struct LineSplitter {
    line: Vec<u8>,
}

impl LineSplitter {
    /// Longest line, in bytes. The rest of a longer line is dropped.
    pub const BYTES_MAX: usize = 10_000;

    /// Calls `each` with the lines that end in these bytes.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < Self::BYTES_MAX {
                    self.line.push(*byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&self.line);
            let text = text.replace(|c: char| c.is_control(), " ");
            if !text.trim().is_empty() {
                each(text.trim());
            }
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_and_bounded() {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for part in [
            "one\ntw",
            "o\n\n",
            "\x1b[1mthree\n",
            &"x".repeat(20_000),
            "\n",
        ] {
            splitter.feed(part.as_bytes(), |line| lines.push(line.to_owned()));
        }
        assert_eq!(lines[..3], ["one", "two", "[1mthree"]);
        assert_eq!(lines[3].len(), LineSplitter::BYTES_MAX);
    }

    #[tokio::test]
    async fn last_lines_are_kept_and_new_ones_found() {
        let kept = RecentLines::default();
        (0..50).for_each(|n| kept.add(format!("line {n}")));
        assert_eq!(
            (kept.last().as_deref(), kept.count()),
            (Some("line 49"), 50)
        );
        assert_eq!(kept.find(&["line 49"], 50), None, "seen");
        assert_eq!(kept.find(&["line 3"], 0).as_deref(), Some("line 30"));
        let (found, ()) = tokio::join!(kept.wait_for(&["other", "loaded"], 50), async {
            kept.add("cache loaded".to_owned());
        });
        assert_eq!(found, "cache loaded");
    }

    #[test]
    fn flood_is_bounded_and_reported() {
        let mut rate = RateLimit::default();
        let mut stored = Vec::new();
        for n in 0..1000 {
            stored.extend(rate.admit(format!("{n}"), 1_000_000));
        }
        assert_eq!(stored.len(), 100);
        let next = rate.admit("later".to_owned(), 1_010_000);
        assert_eq!(next, ["900 lines of output were dropped", "later"]);
    }
}
