//! System V shared memory, semaphores and message queues, which outlive the processes that created
//! them.
//!
//! PostgreSQL creates one small segment per server. Native code in a server can create more, which
//! remain after its end. They are read from `/proc/sysvipc` and removed with `ipcrm` of util-linux,
//! as the project's user id.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

/// Maximum number of objects removed by one call of `ipcrm`.
const BATCH: usize = 128;
/// Maximum number of objects removed at a time. The kernel has at most 32,768 of each kind.
const REMOVED_MAX: usize = 3 * 32_768;
/// Possible paths of `ipcrm`.
const PROGRAMS: [&str; 2] = ["/usr/bin/ipcrm", "/bin/ipcrm"];

/// A kind of System V object: its file in `/proc/sysvipc`, the flag of `ipcrm`, and columns of the
/// file.
struct Kind {
    file: &'static str,
    flag: &'static str,
    /// Column of the number of attachments, for memory.
    attached: Option<usize>,
    /// Column of the user id that created the object. The column of the owner can be changed by
    /// the owner.
    creator: usize,
}

/// Column of the identifier. All kinds begin with `key id perms`.
const ID: usize = 1;
const KINDS: [Kind; 3] = [
    Kind {
        file: "shm",
        flag: "-m",
        attached: Some(6),
        creator: 9,
    },
    Kind {
        file: "sem",
        flag: "-s",
        attached: None,
        creator: 6,
    },
    Kind {
        file: "msg",
        flag: "-q",
        attached: None,
        creator: 9,
    },
];

/// Returns the objects of a kind that this user id created and no process is attached to.
fn abandoned(table: &str, kind: &Kind, uid: u32) -> Vec<String> {
    let ours = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let id: u32 = columns.get(ID)?.parse().ok()?;
        let detached = kind
            .attached
            .is_none_or(|column| columns.get(column) == Some(&"0"));
        let creator: u32 = columns.get(kind.creator)?.parse().ok()?;
        (creator == uid && detached).then(|| id.to_string())
    };
    table.lines().skip(1).filter_map(ours).collect()
}

/// Returns the resident bytes of shared memory that this user id created and no process is attached
/// to.
fn detached_bytes(table: &str, uid: u32) -> u64 {
    /// Columns of the resident and the swapped size, in bytes.
    const SIZES: [usize; 2] = [14, 15];
    let [memory, ..] = &KINDS;
    let ids = abandoned(table, memory, uid);
    let lines = table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let detached = lines.filter(|columns| {
        columns
            .get(ID)
            .is_some_and(|id| ids.iter().any(|other| other == id))
    });
    let sizes = detached.flat_map(|columns| {
        SIZES.map(|column| {
            columns
                .get(column)
                .and_then(|size| size.parse().ok())
                .unwrap_or(0)
        })
    });
    sizes.fold(0, u64::saturating_add)
}

/// Does [`detached_bytes`] for the current table of the kernel. 0 if the kernel has no System V
/// shared memory.
pub(super) fn detached_bytes_of(uid: u32) -> u64 {
    fs::read_to_string("/proc/sysvipc/shm").map_or(0, |table| detached_bytes(&table, uid))
}

/// Removes the objects of this user id that no process is attached to, and returns their number.
///
/// The user id must have no processes: semaphores and queues do not show whether they are in use.
pub(super) fn remove_abandoned(uid: u32, gid: u32) -> io::Result<usize> {
    let mut removed = 0;
    for kind in &KINDS {
        // A kernel may be built without System V objects.
        let Ok(table) = fs::read_to_string(Path::new("/proc/sysvipc").join(kind.file)) else {
            continue;
        };
        let mut ids = abandoned(&table, kind, uid);
        ids.truncate(REMOVED_MAX);
        for batch in ids.chunks(BATCH) {
            let program = PROGRAMS.iter().find(|program| Path::new(program).exists());
            let program = program.ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    "util-linux's ipcrm is not installed",
                )
            })?;
            let mut command = Command::new(program);
            command
                .args(batch.iter().flat_map(|id| [kind.flag, id]))
                .uid(uid)
                .gid(gid)
                .env_clear()
                .current_dir("/");
            let output = command.stdin(Stdio::null()).output()?;
            if !output.status.success() {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                ));
            }
            removed += batch.len();
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHM: &str = "\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
  12345678          7   600                    56   100   100      6   700   700   700   700          0          0          0                  4096                     0
         0          8  1600             104857600   101   101      0   700   700   700   700          0          0          0             104857600                     0
         0          9   600                  4096   101   101      0   700   700   701   701          0          0          0                     0                     0
";

    #[test]
    fn abandoned_lists_detached_segments_of_the_creator_only() {
        let [memory, semaphores, _] = &KINDS;
        assert_eq!(abandoned(SHM, memory, 700), ["8"]);
        assert_eq!(
            abandoned(SHM, memory, 701),
            ["9"],
            "the creator counts, not the owner"
        );
        assert_eq!(abandoned("", memory, 700), Vec::<String>::new());
        let sem = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n         0          3   600  1 700 700 700 700 0 0\nbroken\n";
        assert_eq!(abandoned(sem, semaphores, 700), ["3"]);
    }

    #[test]
    fn detached_bytes_sums_resident_sizes() {
        assert_eq!(
            [700, 701, 702].map(|uid| detached_bytes(SHM, uid)),
            [104_857_600, 0, 0]
        );
    }
}
