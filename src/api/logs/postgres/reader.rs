//! Reads the log files of one server in the order they were written, from a stored offset.
//!
//! The folder belongs to the tenant, and a superuser of the server can write any file there. So
//! symbolic links are not followed, only plain files of the tenant are read, and every read is
//! bounded.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, lstat, openat, unlinkat};

/// Maximum length of a line, in bytes. A longer line is skipped and reported.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
/// Number of log files kept behind the current file.
const KEPT: usize = 2;
/// Maximum number of files per server, more than a server writes in a week.
const FILES_MAX: usize = 4096;
/// Maximum number of folder entries examined.
const ENTRIES_MAX: usize = 64 * 1024;
/// Maximum length of a file name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of bytes searched for the end of a too long line, per poll. The rest is then read
/// as another line.
const SEARCH_BYTES_MAX: u64 = 4 << 20;

/// Offset of a reader in the log of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) file: String,
    pub(super) inode: u64,
    /// Byte offset of the start of a line.
    pub(super) offset: u64,
}

impl Position {
    /// Encodes the offset for storage.
    pub(super) fn text(&self) -> String {
        format!("{} {} {}", self.inode, self.offset, self.file)
    }

    /// Decodes a stored offset. An invalid value is decoded as the beginning.
    pub(super) fn of_text(text: &str) -> Self {
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        match (number(), number(), parts.next()) {
            (Some(inode), Some(offset), Some(file)) => Self {
                file: file.to_owned(),
                inode,
                offset,
            },
            _ => Self::default(),
        }
    }
}

/// A line, or the length of a line that exceeds the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    TooLong(u64),
}

/// A chunk of lines, and the offset after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub(super) lines: Vec<Line>,
    pub(super) next: Position,
}

/// File state that changes when a server writes: modification time of the folder and size of the
/// newest file.
type Signs = (i64, u64, u64, u64);

/// Reader of one server's log.
#[derive(Debug)]
pub(super) struct Reader {
    data: PathBuf,
    at: Position,
    seen: Option<Signs>,
}

impl Reader {
    /// Creates a reader for the server with this data directory.
    pub(super) fn new(data: PathBuf, at: Position) -> Self {
        Self {
            data,
            at,
            seen: None,
        }
    }

    /// Makes the next poll read the files even if they look unchanged.
    pub(super) fn look_again(&mut self) {
        self.seen = None;
    }

    /// Advances past a stored chunk and removes old files.
    pub(super) fn advance(&mut self, next: Position) -> io::Result<()> {
        let turned = self.at.file != next.file;
        self.at = next;
        if turned { self.tidy_up() } else { Ok(()) }
    }

    /// Reads the next lines, about [`LINE_BYTES_MAX`] bytes at most. Returns `None` if there are
    /// none.
    pub(super) fn read(&mut self) -> io::Result<Option<Portion>> {
        let signs = self.signs();
        if signs.is_some() && signs == self.seen {
            return Ok(None);
        }
        let Some(folder) = self.folder()? else {
            return Ok(None);
        };
        let owner = fstat(&folder)?.st_uid;
        let files = files(&folder)?;
        let mut at = self.at.clone();
        let mut current = files
            .iter()
            .position(|(name, inode)| *name == at.file && *inode == at.inode);
        if current.is_none() {
            // The file was removed or replaced.
            current = files.iter().position(|(name, _)| *name >= at.file);
            at.offset = 0;
        }
        let Some(mut current) = current else {
            return Ok(None);
        };
        loop {
            let (name, inode) = &files[current];
            at = Position {
                file: name.clone(),
                inode: *inode,
                offset: at.offset,
            };
            let is_last = current + 1 == files.len();
            if let Some(portion) = open(&folder, name, owner)?
                .map_or(Ok(None), |file| portion(&file, at.clone(), !is_last))?
            {
                return Ok(Some(portion));
            }
            if is_last {
                self.seen = signs;
                // A file that was read to its end is behind.
                return Ok((at != self.at).then(|| Portion {
                    lines: Vec::new(),
                    next: at,
                }));
            }
            // The server writes one file at a time. The next file existed before this one was read
            // to its end, so this one is complete.
            current += 1;
            at.offset = 0;
        }
    }

    /// Returns `None` if there is no such file.
    fn signs(&self) -> Option<Signs> {
        let folder = lstat(self.data.join("log")).ok()?;
        let file = lstat(self.data.join("log").join(&self.at.file)).ok()?;
        Some((
            folder.st_mtime,
            folder.st_mtime_nsec,
            u64::try_from(file.st_size).unwrap_or_default(),
            file.st_ino,
        ))
    }

    fn folder(&self) -> io::Result<Option<OwnedFd>> {
        let step = |from: &OwnedFd, name: &str| {
            openat(
                from,
                name,
                OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        let Some(place) = self.data.parent() else {
            return Ok(None);
        };
        let open_store = openat(
            CWD,
            place,
            OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let data = self
            .data
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        match open_store
            .and_then(|place| step(&place, data))
            .and_then(|data| step(&data, "log"))
        {
            Ok(folder) => Ok(Some(folder)),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes files that were read, except the most recent ones.
    fn tidy_up(&self) -> io::Result<()> {
        let Some(folder) = self.folder()? else {
            return Ok(());
        };
        let all = names(&folder, |_| true)?;
        let stems: Vec<&str> = all
            .iter()
            .filter(|(name, _)| *name < self.at.file)
            .filter_map(|(name, _)| name.strip_suffix(".json"))
            .collect();
        let Some(oldest_kept) = stems
            .len()
            .checked_sub(KEPT)
            .and_then(|from| stems.get(from))
        else {
            return Ok(());
        };
        for (name, _) in all.iter().filter(|(name, _)| {
            name.split('.')
                .next()
                .is_some_and(|stem| stem < *oldest_kept)
        }) {
            unlinkat(&folder, name.as_str(), AtFlags::empty())?;
        }
        Ok(())
    }
}

/// Lists the log files in the order they were written.
fn files(folder: &OwnedFd) -> io::Result<Vec<(String, u64)>> {
    names(folder, |name| {
        Path::new(name)
            .extension()
            .is_some_and(|shutdown| shutdown == "json")
    })
}

fn names(folder: &OwnedFd, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder.as_fd())?.take(ENTRIES_MAX) {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && is_log(name)
            && wanted(name)
            && found.len() < FILES_MAX
        {
            found.push((name.to_owned(), entry.ino()));
        }
    }
    found.sort();
    Ok(found)
}

/// Checks the file name: the pattern of PostgreSQL log names, bounded in length and characters.
fn is_log(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.starts_with("postgres-") && name.len() <= NAME_BYTES_MAX && name.bytes().all(plain)
}

/// Opens a plain file of the owner with a link count of one. A hard link could lead to the file of
/// another user.
fn open(folder: &OwnedFd, name: &str, owner: u32) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Stat {
        st_uid,
        st_mode,
        st_nlink,
        ..
    } = fstat(&file)?;
    Ok((st_uid == owner
        && st_nlink == 1
        && FileType::from_raw_mode(st_mode) == FileType::RegularFile)
        .then(|| File::from(file)))
}

/// Reads lines of a file from an offset. With `finished`, the rest without a line break is a line
/// too.
fn portion(file: &File, at: Position, finished: bool) -> io::Result<Option<Portion>> {
    let length = file.metadata()?.len();
    // The file was truncated.
    let start = if at.offset > length { 0 } else { at.offset };
    let mut bytes = vec![
        0;
        usize::try_from(length - start)
            .unwrap_or(usize::MAX)
            .min(LINE_BYTES_MAX)
    ];
    let filled = fill(file, &mut bytes, start)?;
    bytes.truncate(filled);
    let (lines, end) = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(last) => {
            bytes.truncate(last);
            let end = start + last as u64 + 1;
            (
                bytes
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty())
                    .map(|line| Line::Whole(line.to_vec()))
                    .collect(),
                end,
            )
        }
        None if filled == LINE_BYTES_MAX => {
            match line_end(file, start + filled as u64)?.or(finished.then_some(length)) {
                Some(end) => (vec![Line::TooLong(end - start)], end),
                None => return Ok(None),
            }
        }
        None if finished && !bytes.is_empty() => (vec![Line::Whole(bytes)], start + filled as u64),
        None => return Ok(None),
    };
    Ok(Some(Portion {
        lines,
        next: Position { offset: end, ..at },
    }))
}

fn fill(file: &File, bytes: &mut [u8], start: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], start + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Returns the offset after the first line break from `from`, or the end of the searched range.
fn line_end(file: &File, mut from: u64) -> io::Result<Option<u64>> {
    let search_end = from + SEARCH_BYTES_MAX;
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let filled = fill(file, &mut bytes, from)?;
        if let Some(place) = bytes[..filled].iter().position(|byte| *byte == b'\n') {
            return Ok(Some(from + place as u64 + 1));
        }
        if filled == 0 {
            return Ok(None);
        }
        from += filled as u64;
        if from >= search_end {
            return Ok(Some(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::unix::fs::symlink};

    use super::*;

    struct Server {
        dir: tempfile::TempDir,
        reader: Reader,
    }

    impl Server {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("data/log")).unwrap();
            let reader = Reader::new(dir.path().join("data"), Position::default());
            Self { dir, reader }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.dir.path().join("data/log").join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.file(name))
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
        }

        /// Reads and acknowledges all lines.
        fn all(&mut self) -> Vec<String> {
            let mut all = Vec::new();
            self.reader.look_again();
            while let Some(portion) = self.reader.read().unwrap() {
                all.extend(portion.lines.into_iter().map(|line| match line {
                    Line::Whole(bytes) => String::from_utf8(bytes).unwrap(),
                    Line::TooLong(length) => format!("too long: {length}"),
                }));
                self.reader.advance(portion.next).unwrap();
            }
            all
        }

        /// Simulates a restart after a kill: only the stored offset remains.
        fn restart(&mut self) {
            self.reader = Reader::new(
                self.reader.data.clone(),
                Position::of_text(&self.reader.at.text()),
            );
        }
    }

    #[test]
    fn lines_are_read_once_across_rotation_and_restart() {
        let mut server = Server::new();
        assert!(server.all().is_empty());
        server.write("postgres-1.json", "a\nb\nhal");
        assert_eq!(server.all(), ["a", "b"]);
        server.restart();
        server.write("postgres-1.json", "f\n");
        assert_eq!(server.all(), ["half"]);
        server.write("postgres-1.json", "c\ntorn");
        server.write("postgres-1.log", "for people\n");
        server.write("postgres-2.json", "d\n");
        assert_eq!(server.all(), ["c", "torn", "d"]);
        server.restart();
        assert!(server.all().is_empty());
        server.write("postgres-3.json", "");
        server.write("postgres-2.json", "e\n");
        assert_eq!(server.all(), ["e"]);
    }

    #[test]
    fn what_was_read_and_not_kept_is_read_again() {
        let mut server = Server::new();
        server.write("postgres-1.json", "a\n");
        let first = server.reader.read().unwrap();
        assert_eq!(first, server.reader.read().unwrap());
        assert_eq!(server.all(), ["a"]);
    }

    #[test]
    fn a_file_that_was_cut_off_or_replaced_is_read_from_its_beginning() {
        let mut server = Server::new();
        server.write("postgres-1.json", "a\nb\n");
        assert_eq!(server.all().len(), 2);
        fs::write(server.file("postgres-1.json"), "c\n").unwrap();
        assert_eq!(server.all(), ["c"]);
        fs::rename(server.file("postgres-1.json"), server.file("other")).unwrap();
        server.write("postgres-1.json", "d\ne\nf\n");
        assert_eq!(server.all(), ["d", "e", "f"]);
        fs::remove_file(server.file("postgres-1.json")).unwrap();
        server.write("postgres-4.json", "g\n");
        assert_eq!(server.all(), ["g"]);
    }

    #[test]
    fn a_line_has_a_bound() {
        let mut server = Server::new();
        let long = "x".repeat(LINE_BYTES_MAX - 1);
        server.write("postgres-1.json", &format!("{long}\n{long}yy\nb\n"));
        assert_eq!(
            server.all(),
            [
                long.clone(),
                format!("too long: {}", LINE_BYTES_MAX + 2),
                "b".to_owned()
            ]
        );
        server.write("postgres-1.json", &"z".repeat(3 * LINE_BYTES_MAX));
        assert!(server.all().is_empty(), "it may not be over");
        server.write("postgres-2.json", "c\n");
        assert_eq!(
            server.all(),
            [format!("too long: {}", 3 * LINE_BYTES_MAX), "c".to_owned()]
        );
    }

    #[test]
    fn an_idle_server_is_not_read_and_old_files_go() {
        let mut server = Server::new();
        for n in 1..=5 {
            server.write(&format!("postgres-{n}.json"), &format!("{n}\n"));
            server.write(&format!("postgres-{n}.log"), "");
        }
        assert_eq!(server.all(), ["1", "2", "3", "4", "5"]);
        let left: Vec<bool> = (1..=5)
            .map(|n| server.file(&format!("postgres-{n}.json")).exists())
            .collect();
        assert_eq!(left, [false, false, true, true, true]);
        assert!(!server.file("postgres-2.log").exists() && server.file("postgres-3.log").exists());
        assert!(
            server.reader.seen.is_some(),
            "the next look costs two calls"
        );
        server.write("postgres-5.json", "6\n");
        assert!(server.reader.read().unwrap().is_some());
    }

    #[test]
    fn nothing_of_others_is_read() {
        let mut server = Server::new();
        let secret = server.dir.path().join("secret");
        fs::write(&secret, "secret\n").unwrap();
        symlink(&secret, server.file("postgres-1.json")).unwrap();
        fs::create_dir(server.file("postgres-2.json")).unwrap();
        fs::hard_link(&secret, server.file("postgres-3.json")).unwrap();
        rustix::fs::mknodat(
            CWD,
            server.file("postgres-4.json"),
            FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        for name in [
            "postgres-\n5.json",
            "postgres-6 .json",
            &format!("postgres-{}.json", "7".repeat(NAME_BYTES_MAX)),
            "other-8.json",
        ] {
            fs::write(server.file(name), "secret\n").unwrap();
        }
        assert!(server.all().is_empty());
        let (log, elsewhere) = (
            server.dir.path().join("data/log"),
            server.dir.path().join("elsewhere"),
        );
        fs::remove_dir_all(&log).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("postgres-1.json"), "secret\n").unwrap();
        symlink(&elsewhere, &log).unwrap();
        assert!(server.all().is_empty());
    }

    #[test]
    fn a_file_without_end_is_passed_by_in_steps() {
        let mut server = Server::new();
        // A sparse file uses no disk blocks, so a tenant can create any number of these.
        File::create(server.file("postgres-1.json"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        for step in 1..=2 {
            let portion = server.reader.read().unwrap().unwrap();
            let passed = LINE_BYTES_MAX as u64 + SEARCH_BYTES_MAX;
            assert_eq!(
                (portion.lines, portion.next.offset),
                (vec![Line::TooLong(passed)], step * passed)
            );
            server.reader.advance(portion.next).unwrap();
        }
    }

    #[test]
    fn a_position_is_kept_as_text() {
        let at = Position {
            file: "postgres-1 2.json".to_owned(),
            inode: 7,
            offset: 12,
        };
        assert_eq!(Position::of_text(&at.text()), at);
        for text in ["", "x", "1 2", "1 x y"] {
            assert_eq!(Position::of_text(text), Position::default(), "{text}");
        }
    }
}
