//! Temporary files of a function: a file system in memory at `/tmp`, which only its process sees
//! and which ends with it (decision 0171).
//!
//! It needs the right to mount. Otherwise `TMPDIR` names a folder in that of the instance.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use crate::supervisor::ProcessOwner;

/// The folder of temporary files, as programs expect it.
pub const PLACE: &str = "/tmp";
/// Text in an argument that stands for `,/tmp` if that is the process's own, and for nothing
/// otherwise.
pub const ARGUMENT: &str = "{scratch}";
/// Largest size of all temporary files, in megabytes.
const MEGABYTES_MAX: u64 = 256;
/// Largest number of temporary files.
const FILES_MAX: u64 = 65_536;

/// Mounts the file system for this process and its descendants. Paths below `/tmp` that the process
/// needs remain visible.
pub fn mount_own((uid, gid): (u32, u32), needed: &[&Path]) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Otherwise the mount would appear in the machine's namespace as well.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>)?;
    let mut kept: Vec<(PathBuf, File)> = Vec::new();
    for path in needed {
        let Some(top) = top(path) else { continue };
        if kept.iter().all(|(known, _)| *known != top) {
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
                .open(&top)?;
            kept.push((top, opened));
        }
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options =
        format!("size={MEGABYTES_MAX}m,nr_inodes={FILES_MAX},mode=0711,uid={uid},gid={gid}");
    mount(Some("tmpfs"), PLACE, Some("tmpfs"), flags, Some(&*options))?;
    for (path, opened) in kept {
        DirBuilder::new().mode(0o711).create(&path)?;
        let opened = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&*opened), &path, None::<&Path>, bind, None::<&Path>)?;
    }
    Ok(())
}

/// Returns the folder directly below `/tmp` that contains a path.
fn top(path: &Path) -> Option<PathBuf> {
    let first = path.strip_prefix(PLACE).ok()?.components().next()?;
    Some(Path::new(PLACE).join(first))
}

/// Lets a program keep its temporary files in the folder of its instance.
pub fn use_folder(program: &mut Command, folder: &Path, owner: ProcessOwner) -> io::Result<()> {
    let place = folder.join("tmp");
    match DirBuilder::new().mode(0o700).create(&place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    // The instance could have put a link in its place.
    if !fs::symlink_metadata(&place)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    owner.own(&place)?;
    program.env("TMPDIR", place);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_place_are_kept_by_their_first_folder() {
        let top = |path| top(Path::new(path));
        assert_eq!(top("/tmp/a/b/c"), Some("/tmp/a".into()));
        assert_eq!(top("/tmp/a"), Some("/tmp/a".into()));
        assert_eq!(top("/tmp"), None);
        assert_eq!(top("/tmpx/a"), None);
        assert_eq!(top("/var/tmp/a"), None);
    }

    #[test]
    fn program_without_the_right_to_mount_has_a_folder() {
        let place = tempfile::tempdir().unwrap();
        let mut program = Command::new("true");
        for _ in 0..2 {
            use_folder(&mut program, place.path(), ProcessOwner::own_account()).unwrap();
        }
        let expected = place.path().join("tmp");
        let found: Vec<_> = program.get_envs().collect();
        assert_eq!(found, [("TMPDIR".as_ref(), Some(expected.as_os_str()))]);
        assert!(expected.is_dir());
    }
}
