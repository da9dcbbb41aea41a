//! The output of an instance: lines from its FIFO.
//!
//! The launcher opens the FIFO for reading and writing, so the program can write while no Gantry
//! reads: the kernel keeps up to [`PIPE_BYTES`], then writing waits.

use std::{collections::VecDeque, fs::File, path::Path, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, BufReader},
    net::unix::pipe,
};

/// Capacity of the FIFO, in bytes.
const PIPE_BYTES: i32 = 1 << 20;
/// Longest line, in bytes. The rest of a longer line is dropped.
const LINE_BYTES_MAX: usize = 10_000;
/// Lines that are kept for messages.
const LINES_KEPT: usize = 20;

/// The last lines of an instance.
#[derive(Debug, Default)]
pub(super) struct RecentLines(Mutex<VecDeque<String>>);

impl RecentLines {
    pub(super) fn add(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() >= LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Returns the last line that is not empty.
    pub(super) fn last(&self) -> Option<String> {
        self.0.lock().back().cloned()
    }
}

/// Opens the FIFO as the program's output.
pub(super) fn open(path: &Path) -> std::io::Result<File> {
    let file = File::options().read(true).write(true).open(path)?;
    // The default capacity is smaller, and an unprivileged account may be denied more.
    let _ = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok(file)
}

/// Reads lines until it is dropped.
pub(super) async fn read(path: std::path::PathBuf, lines: Arc<RecentLines>) {
    let opened = pipe::OpenOptions::new()
        .read_write(true)
        .open_receiver(&path);
    let mut receiver = match opened {
        Ok(receiver) => BufReader::new(receiver),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the output of a service");
            return;
        }
    };
    let mut splitter = LineSplitter::default();
    let mut chunk = vec![0; 8192];
    while let Ok(read) = receiver.read(&mut chunk).await {
        if read == 0 {
            return;
        }
        splitter.feed(&chunk[..read], |line| {
            tracing::debug!(path = %path.display(), line, "service output");
            lines.add(line.to_owned());
        });
    }
}

/// Splits bytes into lines of at most [`LINE_BYTES_MAX`].
#[derive(Debug, Default)]
struct LineSplitter {
    line: Vec<u8>,
}

impl LineSplitter {
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE_BYTES_MAX {
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
        assert_eq!(lines[3].len(), LINE_BYTES_MAX);
        let kept = RecentLines::default();
        (0..50).for_each(|n| kept.add(n.to_string()));
        assert_eq!(kept.last().unwrap(), "49");
        assert_eq!(kept.0.lock().len(), LINES_KEPT);
    }
}
