//! The log of a recovery: that of one archive, or of several that continue each other.

use std::fmt::Write as _;

use super::{archive_row::Archive, manifest::Manifest, wal::Lsn};

/// A part of the log: that of one archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// Folder of the archive.
    pub folder: String,
    /// Timeline of its segments.
    pub timeline: u32,
    /// Start of its first segment.
    pub begin: Lsn,
    /// Position up to which the log is that of the part before.
    pub fork: Lsn,
}

/// Parts of the log, each of which continues the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChain(Vec<LogPart>);

impl LogChain {
    /// The log of archives, each of which continues the one before. There is at least one.
    pub(super) fn of(archives: &[&Archive]) -> Self {
        let part = |archive: &&Archive| LogPart {
            folder: archive.folder(),
            timeline: archive.timeline,
            begin: archive.begin,
            fork: archive.fork.map_or(Lsn(0), |fork| fork.at),
        };
        Self(archives.iter().map(part).collect())
    }

    /// The log of the archive of a base backup alone.
    pub fn own(manifest: &Manifest) -> Self {
        Self(vec![LogPart {
            folder: manifest.archive.clone(),
            timeline: manifest.timeline,
            begin: Lsn(0),
            fork: Lsn(0),
        }])
    }

    /// The parts, in their order.
    pub fn parts(&self) -> &[LogPart] {
        &self.0
    }

    /// Position up to which the log of a part is that of the chain.
    pub(super) fn end_of(&self, part: usize) -> Lsn {
        self.0.get(part + 1).map_or(Lsn(u64::MAX), |next| next.fork)
    }

    /// Returns the timeline of a part, and its history file. `None` if it is that of the first
    /// part, for which the server needs no file.
    pub(super) fn history(&self, part: usize) -> Option<(u32, String)> {
        let first = self.0.first()?.timeline;
        let target = self.0.get(part)?.timeline;
        if target == first {
            return None;
        }
        let mut text = String::new();
        for pair in self.0[..=part].windows(2) {
            if pair[0].timeline != pair[1].timeline {
                let (timeline, fork) = (pair[0].timeline, pair[1].fork);
                // Writing to a string does not fail.
                let _ = writeln!(text, "{timeline}\t{fork}\ta restore");
            }
        }
        Some((target, text))
    }
}

/// Returns the name of the history file of a timeline.
pub(super) fn history_name(timeline: u32) -> String {
    format!("{timeline:08X}.history")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(parts: &[(u32, u64)]) -> LogChain {
        let part = |(timeline, fork): &(u32, u64)| LogPart {
            folder: "7-1".to_owned(),
            timeline: *timeline,
            begin: Lsn(fork - fork % 100),
            fork: Lsn(*fork),
        };
        LogChain(parts.iter().map(part).collect())
    }

    #[test]
    fn history_names_the_ends_of_earlier_timelines() {
        let chain = chain(&[(1, 0), (2, 0x150), (2, 0x210), (4, 0x333)]);
        assert_eq!(chain.history(0), None);
        let (timeline, text) = chain.history(2).unwrap();
        assert_eq!((timeline, &*text), (2, "1\t0/150\ta restore\n"));
        let (timeline, text) = chain.history(3).unwrap();
        assert_eq!(timeline, 4);
        assert_eq!(text, "1\t0/150\ta restore\n2\t0/333\ta restore\n");
        assert_eq!(history_name(4), "00000004.history");
    }

    #[test]
    fn part_ends_where_the_next_one_begins() {
        let chain = chain(&[(1, 0), (2, 0x150)]);
        assert_eq!(chain.end_of(0), Lsn(0x150));
        assert_eq!(chain.end_of(1), Lsn(u64::MAX));
    }
}
