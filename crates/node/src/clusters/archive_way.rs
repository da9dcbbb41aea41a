//! The ways in which a server hands finished segments of its write-ahead log to Gantry.
//!
//! The sandbox permits a server to start no program, so `archive_command` cannot be used. With the
//! module `basic_archive` the server copies each segment into a folder inside its data directory.
//! Without the module it only marks segments as ready. Gantry takes them from outside (decision
//! 0127).

use std::{io, path::Path};

use clap::ValueEnum;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, open, openat, unlinkat},
    io::Errno,
};

use crate::{
    engines::Engine,
    error::{At, Result},
    supervisor::ProcessOwner,
};

/// Folder of the data directory with copies of finished segments.
pub const SPOOL: &str = "gantry_spool";
/// Begin of the names of incomplete copies.
const UNFINISHED: &[u8] = b"archtemp.";
/// Maximum number of incomplete copies that are removed.
const UNFINISHED_MAX: usize = 10_000;

/// A way of archiving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArchiveWay {
    /// The server copies segments into [`SPOOL`].
    Spool,
    /// The server keeps segments until their status is changed.
    Status,
}

impl ArchiveWay {
    /// Returns the way that an engine supports.
    pub fn of(engine: &Engine) -> Self {
        let module = engine
            .libraries_dir()
            .is_some_and(|folder| folder.join("basic_archive.so").is_file());
        if module { Self::Spool } else { Self::Status }
    }

    /// The settings, as arguments of the server: a tenant cannot override them.
    pub(super) fn arguments(self) -> Vec<String> {
        let library = if self == Self::Spool {
            "basic_archive"
        } else {
            ""
        };
        let mut settings = vec![
            "archive_mode=on".to_owned(),
            "archive_command=".to_owned(),
            // Unfinished segments are read from outside.
            "archive_timeout=0".to_owned(),
            format!("archive_library={library}"),
        ];
        if self == Self::Spool {
            settings.push(format!("basic_archive.archive_directory={SPOOL}"));
        }
        settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting])
            .collect()
    }
}

/// Creates the spool of a stopped server, and removes incomplete copies of its previous run.
pub(super) fn prepare_spool(data: &Path, owner: ProcessOwner) -> Result<()> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let prepare = || -> io::Result<()> {
        let data = open(data, folder, Mode::empty())?;
        match mkdirat(&data, SPOOL, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let spool = openat(&data, SPOOL, folder, Mode::empty())?;
        owner.own_file(&std::fs::File::from(spool.try_clone()?))?;
        let mut removed = 0;
        for entry in Dir::read_from(&spool)? {
            let entry = entry?;
            let unfinished = entry.file_type() != FileType::Directory
                && entry.file_name().to_bytes().starts_with(UNFINISHED);
            if unfinished && removed < UNFINISHED_MAX {
                removed += 1;
                unlinkat(&spool, entry.file_name(), AtFlags::empty())?;
            }
        }
        Ok(())
    };
    prepare().at("preparing the spool of", data)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn spool_is_prepared_and_cleared_of_incomplete_copies() {
        let dir = tempfile::tempdir().unwrap();
        let owner = ProcessOwner::own_account();
        prepare_spool(dir.path(), owner).unwrap();
        let spool = dir.path().join(SPOOL);
        fs::write(spool.join("archtemp.1.2.3"), "half").unwrap();
        fs::write(spool.join("000000010000000000000001"), "whole").unwrap();
        prepare_spool(dir.path(), owner).unwrap();
        let left: Vec<_> = fs::read_dir(&spool).unwrap().collect();
        assert_eq!(left.len(), 1);
        fs::remove_dir_all(&spool).unwrap();
        std::os::unix::fs::symlink("/tmp", &spool).unwrap();
        assert!(prepare_spool(dir.path(), owner).is_err());
    }

    #[test]
    fn arguments_leave_no_choice_to_the_configuration() {
        for way in [ArchiveWay::Spool, ArchiveWay::Status] {
            let arguments = way.arguments().join(" ");
            for setting in ["archive_mode=on", "archive_command=", "archive_library="] {
                assert!(arguments.contains(setting), "{arguments}");
            }
        }
    }
}
