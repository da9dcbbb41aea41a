//! The system calls that a confined program may make: a list for each program, and everything else is refused.
//!
//! Landlock says which files a program may reach; this says what it may ask of the kernel at all. Sockets are of the
//! Unix domain only, so no byte leaves by TCP, UDP, MPTCP, netlink or raw packets. Namespaces, `io_uring`,
//! `userfaultfd`, `memfd_create`, `ptrace`, keys, BPF and modules are on no list.
//!
//! A program that was started cannot start another: `execve` asks the tracing process, and only the one `exec` that
//! begins the server has one (see [`super::trace`]). A path or a descriptor could not say this, as the kernel itself
//! must be allowed to execute the dynamic loader.
//!
//! `docs/decisions/0066-seccomp-allow-list.md` says how the lists were found and how one is extended.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule,
};

/// A named list of system calls.
#[derive(Debug)]
pub(super) struct Profile {
    /// The program, as messages name it.
    pub(super) name: &'static str,
    /// Calls with any arguments.
    any: &'static [&'static [c_long]],
    /// Calls with certain arguments. A call that stands here more than once is allowed if one of its lines fits.
    bounded: &'static [Bounded],
}

/// A call and what its arguments must be.
#[derive(Debug)]
struct Bounded {
    call: c_long,
    arguments: &'static [Argument],
}

/// The argument at this place, counted from 0, and what its lower 32 bits or the whole must be.
#[derive(Debug)]
enum Argument {
    /// These bits of it are exactly those.
    Bits { at: u8, mask: u64, are: u64 },
    /// A null pointer.
    Null { at: u8 },
}

impl Argument {
    fn condition(&self) -> Result<Condition, seccompiler::BackendError> {
        match *self {
            Self::Bits { at, mask, are } => {
                Condition::new(at, Width::Dword, Op::MaskedEq(mask), are)
            }
            Self::Null { at } => Condition::new(at, Width::Qword, Op::Eq, 0),
        }
    }
}

const fn exactly(at: u8, value: u64) -> Argument {
    Argument::Bits {
        at,
        mask: 0xffff_ffff,
        are: value,
    }
}

/// A PostgreSQL server of any version from 15 on, with the extensions of its own distribution.
pub(super) static POSTGRES: Profile = Profile {
    name: "postgres",
    any: &[
        MEMORY,
        FILES,
        FILES_BY_OLDER_CALLS,
        PROCESSES,
        SIGNALS,
        TIME,
        WAITING,
        SHARED_MEMORY,
        SESSIONS,
    ],
    bounded: POSTGRES_BOUNDED,
};

const MEMORY: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mincore,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munmap,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
];

const FILES: &[c_long] = &[
    libc::SYS_chdir,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    // PostgreSQL 15 puts a new WAL segment in its place by a second name.
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Calls that newer architectures never had.
#[cfg(target_arch = "x86_64")]
const FILES_BY_OLDER_CALLS: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_fork,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_utime,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_BY_OLDER_CALLS: &[c_long] = &[];

const PROCESSES: &[c_long] = &[
    // Answered with "no such call" by a filter of its own, so that the C library takes `clone`, whose flags can be seen.
    libc::SYS_clone3,
    // Asks the tracing process.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setsid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

const SIGNALS: &[c_long] = &[
    libc::SYS_kill,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    libc::SYS_tkill,
];

const TIME: &[c_long] = &[
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getitimer,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_times,
];

const WAITING: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
];

/// One small segment for each server, by which a second postmaster notices the first.
const SHARED_MEMORY: &[c_long] = &[
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
];

/// Calls for listening and for the connections that were accepted. Without `connect`, it begins none: neither to another server's
/// socket nor to the services of the host. Without `sendmsg` and `recvmsg`, no descriptor is passed.
const SESSIONS: &[c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Flags of `clone` that make namespaces, or children of the process that started the server.
const CLONE_FORBIDDEN: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS
    | libc::CLONE_PARENT
    | libc::CLONE_PTRACE) as u64;

/// Whether a terminal is there, how many bytes wait, and the flags of a descriptor.
const FIOCLEX: u64 = 0x5451;
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;
const TCGETS: u64 = 0x5401;
const TIOCGWINSZ: u64 = 0x5413;
/// The type of a socket without the flags that may stand beside it.
const SOCKET_TYPE: u64 = 0xf;

const POSTGRES_BOUNDED: &[Bounded] = &[
    Bounded {
        call: libc::SYS_clone,
        arguments: &[Argument::Bits {
            at: 0,
            mask: CLONE_FORBIDDEN,
            are: 0,
        }],
    },
    Bounded {
        call: libc::SYS_socket,
        arguments: &[
            exactly(0, libc::AF_UNIX as u64),
            Argument::Bits {
                at: 1,
                mask: SOCKET_TYPE,
                are: libc::SOCK_STREAM as u64,
            },
        ],
    },
    // Without an address: only to the other end of a connection.
    Bounded {
        call: libc::SYS_sendto,
        arguments: &[Argument::Null { at: 4 }],
    },
    // Reading limits, not setting them.
    Bounded {
        call: libc::SYS_prlimit64,
        arguments: &[exactly(0, 0), Argument::Null { at: 2 }],
    },
    Bounded {
        call: libc::SYS_ioctl,
        arguments: &[exactly(1, FIOCLEX)],
    },
    Bounded {
        call: libc::SYS_ioctl,
        arguments: &[exactly(1, FIONBIO)],
    },
    Bounded {
        call: libc::SYS_ioctl,
        arguments: &[exactly(1, FIONREAD)],
    },
    Bounded {
        call: libc::SYS_ioctl,
        arguments: &[exactly(1, TCGETS)],
    },
    Bounded {
        call: libc::SYS_ioctl,
        arguments: &[exactly(1, TIOCGWINSZ)],
    },
    // A child ends with its postmaster, and what libraries ask about the process as they are loaded.
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_SET_PDEATHSIG as u64)],
    },
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_SET_NAME as u64)],
    },
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_GET_NAME as u64)],
    },
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_CAPBSET_READ as u64)],
    },
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_GET_NO_NEW_PRIVS as u64)],
    },
    Bounded {
        call: libc::SYS_prctl,
        arguments: &[exactly(0, libc::PR_GET_SECUREBITS as u64)],
    },
];

/// No filter could be put in force.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The kernel or the compiler of filters refuses.
    #[error("{0}")]
    Refused(#[from] seccompiler::Error),
    /// A list is wrong.
    #[error("{0}")]
    List(#[from] seccompiler::BackendError),
}

/// Whether the kernel has filters with the answers that are given here.
pub(super) fn available() -> bool {
    let answers =
        std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    ["errno", "trace", "allow"]
        .iter()
        .all(|answer| answers.split_whitespace().any(|known| known == *answer))
}

impl Profile {
    /// The filters, in the order in which they are put in force. Of several answers the kernel takes the strictest, and
    /// the last filter allows no further one.
    fn filters(&self) -> Result<Vec<BpfProgram>, SeccompError> {
        let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = self
            .any
            .iter()
            .flat_map(|list| list.iter())
            .map(|call| (*call, Vec::new()))
            .collect();
        for Bounded { call, arguments } in self.bounded {
            let conditions: Result<_, _> = arguments.iter().map(Argument::condition).collect();
            allowed
                .entry(*call)
                .or_default()
                .push(SeccompRule::new(conditions?)?);
        }
        let only = |call: c_long| BTreeMap::from([(call, Vec::new())]);
        let answer = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
        let trace = filter(
            only(libc::SYS_execve),
            SeccompAction::Allow,
            SeccompAction::Trace(0),
        )?;
        let absent = filter(
            only(libc::SYS_clone3),
            SeccompAction::Allow,
            answer(libc::ENOSYS),
        )?;
        let list = filter(allowed, answer(libc::EPERM), SeccompAction::Allow)?;
        Ok(vec![trace, absent, list])
    }

    /// Puts the list in force for this process and all that come from it. It must have given up new privileges.
    pub(super) fn apply(&self) -> Result<(), SeccompError> {
        self.filters()?
            .iter()
            .try_for_each(|filter| Ok(seccompiler::apply_filter(filter)?))
    }
}

/// A filter with one answer for the calls listed, and another for all others. Calls of another architecture end the
/// process; those of x32 have numbers of their own, which are on no list.
fn filter(
    calls: BTreeMap<i64, Vec<SeccompRule>>,
    other: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, SeccompError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(calls, other, listed, architecture)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(profile: &Profile, call: c_long) -> bool {
        profile.any.iter().any(|list| list.contains(&call))
            || profile.bounded.iter().any(|bounded| bounded.call == call)
    }

    #[test]
    fn the_list_of_postgres_makes_filters() {
        assert_eq!(POSTGRES.filters().unwrap().len(), 3);
    }

    #[test]
    fn what_leads_out_is_on_no_list() {
        for call in [
            libc::SYS_bpf,
            libc::SYS_chroot,
            libc::SYS_connect,
            libc::SYS_execveat,
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_memfd_create,
            libc::SYS_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_perf_event_open,
            libc::SYS_pidfd_getfd,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_recvmsg,
            libc::SYS_sendmsg,
            libc::SYS_setns,
            libc::SYS_setrlimit,
            libc::SYS_setuid,
            libc::SYS_socketpair,
            libc::SYS_symlinkat,
            libc::SYS_unshare,
            libc::SYS_userfaultfd,
            libc::SYS_vmsplice,
        ] {
            assert!(!listed(&POSTGRES, call), "{call}");
        }
        // Those that are allowed with certain arguments are not allowed with any.
        for Bounded { call, .. } in POSTGRES.bounded {
            assert!(
                !POSTGRES.any.iter().any(|list| list.contains(call)),
                "{call}"
            );
        }
    }
}
