//! Log events of functions: lines of a process become rows for `function_logs`.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use gantry_base::{
    clock::{Clock, Entropy, Ticks},
    ids::ProjectRef,
};
use serde::Deserialize;
use tokio::{net::unix::pipe, sync::Notify};
use uuid::Uuid;

use crate::control::{
    context::ControlContext,
    services::{
        functions::log_queue::FunctionLogRow,
        instance_id::InstanceId,
        output::{OutputReader, ReadingState},
    },
};

/// Longest text of an event, in characters.
const TEXT_CHARS_MAX: usize = 10_000;
/// End of a text that was cut.
const TRUNCATED: &str = " ....[truncated]";
/// Events of a process in [`RATE_WINDOW`]. Further ones are dropped.
const EVENTS_MAX: usize = 100;
/// The window of the rate, in milliseconds.
const RATE_WINDOW: Ticks = 10_000;
/// First character of lines that the preloaded module wrote.
const MARK: char = '\u{1e}';

/// Texts of the runtime when its memory is used up.
const OUT_OF_MEMORY: [&str; 3] = [
    "JavaScript heap out of memory",
    "JavaScript out of memory",
    "RangeError: Array buffer allocation failed",
];

/// A line of the preloaded module.
#[derive(Debug, Deserialize)]
struct MarkedLine {
    kind: String,
    level: String,
    text: String,
}

/// The function of a process, for its log.
#[derive(Debug, Clone)]
pub(in crate::control::services) struct LoggedFunction {
    pub(super) function: Uuid,
    pub(super) slug: String,
    pub(super) version: i32,
    pub(super) execution: Uuid,
}

/// Parses a line of a process. Lines of the runtime itself have no mark.
fn parse(line: &str) -> MarkedLine {
    let marked = line.strip_prefix(MARK);
    let parsed = marked.and_then(|text| serde_json::from_str::<MarkedLine>(text).ok());
    let known = parsed.filter(|line| {
        matches!(line.kind.as_str(), "Log" | "UncaughtException" | "Shutdown")
            && matches!(line.level.as_str(), "Debug" | "Info" | "Warning" | "Error")
    });
    let mut line = known.unwrap_or_else(|| MarkedLine {
        kind: "Log".to_owned(),
        level: "Error".to_owned(),
        text: line.replace(MARK, ""),
    });
    if let Some((end, _)) = line.text.char_indices().nth(TEXT_CHARS_MAX) {
        line.text.truncate(end);
        line.text.push_str(TRUNCATED);
    }
    line
}

/// Limits the events of a process.
#[derive(Debug, Default)]
struct EventRate {
    since: Ticks,
    count: usize,
}

impl EventRate {
    fn admits(&mut self, now: Ticks) -> bool {
        if now.saturating_sub(self.since) >= RATE_WINDOW {
            *self = Self {
                since: now,
                count: 0,
            };
        }
        self.count += 1;
        self.count <= EVENTS_MAX
    }
}

/// The parts of a log.
#[derive(Clone)]
pub(in crate::control::services) struct FunctionLog {
    context: ControlContext,
    project: ProjectRef,
    logged: LoggedFunction,
    /// Set when the process reports that its memory is used up.
    pub(in crate::control::services) exceeded: Arc<AtomicBool>,
}

impl FunctionLog {
    pub(in crate::control::services) fn new(
        context: &ControlContext,
        id: &InstanceId,
        logged: LoggedFunction,
    ) -> Self {
        Self {
            context: context.clone(),
            project: id.reference.clone(),
            logged,
            exceeded: Arc::default(),
        }
    }

    fn row(&self, line: MarkedLine) -> FunctionLogRow {
        let clock: &Clock = &self.context.clock;
        let entropy: &Entropy = &self.context.entropy;
        FunctionLogRow {
            id: entropy.uuid(),
            at: clock.now(),
            project: self.project.clone(),
            function: self.logged.function,
            slug: self.logged.slug.clone(),
            version: self.logged.version,
            execution: self.logged.execution,
            kind: line.kind,
            level: line.level,
            text: line.text,
        }
    }

    /// Adds the event of a start. `millis` is its duration.
    pub(in crate::control::services) fn booted(&self, millis: Ticks) {
        self.add(MarkedLine {
            kind: "Boot".to_owned(),
            level: "Info".to_owned(),
            text: format!("booted (time: {millis}ms)"),
        });
    }

    /// Adds the event of a failed start.
    pub(in crate::control::services) fn failed(&self, why: &str) {
        self.add(MarkedLine {
            kind: "BootFailure".to_owned(),
            level: "Error".to_owned(),
            text: parse(why).text,
        });
    }

    fn add(&self, line: MarkedLine) {
        // Dropped when the queue is full: a function must not delay others.
        let _ = self.context.services.function_log.add(self.row(line));
    }

    /// Starts reading the output of a process.
    pub(in crate::control::services) fn start_reading(self, path: &Path) -> OutputReader {
        OutputReader::spawn(path, |lines, stop, progress| {
            let opened = pipe::OpenOptions::new()
                .read_write(true)
                .open_receiver(path);
            async move {
                let mut rate = EventRate::default();
                let each = |line: &str| {
                    let parsed = parse(line);
                    if OUT_OF_MEMORY.iter().any(|text| line.contains(text)) {
                        self.exceeded.store(true, Ordering::Release);
                    }
                    lines.add(parsed.text.clone());
                    if rate.admits(self.context.clock.ticks()) {
                        self.add(parsed);
                    }
                };
                read_lines(opened?, &stop, each).await?;
                progress.send_replace(ReadingState::ReadAll);
                Ok(())
            }
        })
    }
}

/// Longest line, in bytes: a text of the largest size with its escapes. The rest is dropped.
const LINE_BYTES_MAX: usize = 128 << 10;

/// Reads the lines of a FIFO until it is told to stop, then what is left.
async fn read_lines(
    receiver: pipe::Receiver,
    stop: &Notify,
    mut each: impl FnMut(&str),
) -> io::Result<()> {
    let (mut line, mut chunk) = (Vec::new(), vec![0; 8192]);
    let mut is_stopped = false;
    loop {
        if !is_stopped {
            tokio::select! {
                () = stop.notified() => is_stopped = true,
                ready = receiver.readable() => ready?,
            }
        }
        // The runtime may not know yet that the last lines have come.
        let outcome = if is_stopped {
            rustix::io::read(&receiver, &mut chunk).map_err(io::Error::from)
        } else {
            receiver.try_read(&mut chunk)
        };
        let read = match outcome {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_stopped => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return Ok(());
        }
        for byte in &chunk[..read] {
            if *byte != b'\n' {
                if line.len() < LINE_BYTES_MAX {
                    line.push(*byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            if !text.trim().is_empty() {
                each(text.trim_end());
            }
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_preloaded_module_have_kind_and_level() {
        let of = |line: &str| {
            let line = parse(line);
            (line.kind, line.level, line.text)
        };
        let expected = |kind: &str, level: &str, text: &str| {
            (kind.to_owned(), level.to_owned(), text.to_owned())
        };
        assert_eq!(
            of("\u{1e}{\"kind\":\"Log\",\"level\":\"Warning\",\"text\":\"a\\nb\"}"),
            expected("Log", "Warning", "a\nb")
        );
        // A function can write any line, but no other kinds.
        for line in [
            "error: Uncaught",
            "\u{1e}{\"kind\":\"Boot\",\"level\":\"Info\",\"text\":\"x\"}",
            "\u{1e}{",
        ] {
            let (kind, level, _) = of(line);
            assert_eq!((kind.as_str(), level.as_str()), ("Log", "Error"), "{line}");
        }
        let long = of(&"x".repeat(20_000)).2;
        assert!(long.ends_with(TRUNCATED) && long.len() == TEXT_CHARS_MAX + TRUNCATED.len());
    }

    #[test]
    fn events_beyond_the_rate_are_dropped() {
        let mut rate = EventRate::default();
        let admitted = (0..300).filter(|_| rate.admits(20_000)).count();
        assert_eq!(admitted, EVENTS_MAX);
        assert!(rate.admits(20_000 + RATE_WINDOW));
    }
}
