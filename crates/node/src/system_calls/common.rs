//! The system calls that every sandboxed program may make.
//!
//! Sockets are limited to the Unix domain, so no byte leaves by TCP, UDP, MPTCP, netlink or raw
//! packets. Namespaces, `io_uring`, `userfaultfd`, `memfd_create`, `ptrace`, keys, BPF and modules
//! are not listed.
//!
//! `docs/decisions/0066-seccomp-allow-list.md` describes how the lists were determined and how to
//! extend them.

use libc::c_long;

use crate::supervisor::{ArgumentRule, ConditionalCall, SystemCalls};

/// The system calls of every program: work in memory and on files, and Unix sockets that it listens
/// on.
pub(super) static COMMON: SystemCalls = SystemCalls {
    name: "program",
    extends: None,
    any: &[
        MEMORY,
        FILES,
        FILES_BY_OLDER_CALLS,
        PROCESSES,
        SIGNALS,
        TIME,
        WAITING,
        SESSIONS,
    ],
    conditional: CONDITIONAL,
};

/// Calls that manage the memory of a process.
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

/// Calls on files and open descriptors, by the ways that every architecture has.
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
/// Calls that newer architectures never had: none.
#[cfg(not(target_arch = "x86_64"))]
const FILES_BY_OLDER_CALLS: &[c_long] = &[];

/// Calls that create processes and threads, wait for them, and ask about them.
const PROCESSES: &[c_long] = &[
    // A separate filter fails `clone3` with ENOSYS, so that the C library uses `clone`, which has
    // flags that a filter can check.
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

/// Calls that send and handle signals.
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

/// Calls that read clocks and set timers.
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

/// Calls that wait for events.
const WAITING: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
];

/// Calls for listening sockets and accepted connections. `connect` is missing, so the server cannot
/// reach other servers or services of the host; `sendmsg` and `recvmsg` are missing, so it cannot
/// pass descriptors.
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

/// Flags of `clone` that create namespaces, or children of the process that started the server.
const CLONE_FORBIDDEN: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS
    | libc::CLONE_PARENT
    | libc::CLONE_PTRACE) as u64;

/// `ioctl` requests: descriptor flags, readable bytes, and properties of a terminal.
const FIOCLEX: u64 = 0x5451;
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;
const TCGETS: u64 = 0x5401;
const TIOCGWINSZ: u64 = 0x5413;
/// Mask of a socket's type, without flags.
pub(super) const SOCKET_TYPE: u64 = 0xf;

/// A call that is permitted if the lower 32 bits of one argument have a value.
macro_rules! exactly {
    ($call:ident, $at:literal, $value:expr) => {
        ConditionalCall {
            call: libc::$call,
            arguments: &[ArgumentRule::exactly($at, $value)],
        }
    };
}

/// A call of `socket` that is permitted with one address family and one type.
macro_rules! socket {
    ($family:ident, $kind:ident) => {
        $crate::supervisor::ConditionalCall {
            call: libc::SYS_socket,
            arguments: &[
                $crate::supervisor::ArgumentRule::exactly(0, libc::$family as u64),
                $crate::supervisor::ArgumentRule::Bits {
                    at: 1,
                    mask: $crate::system_calls::common::SOCKET_TYPE,
                    are: libc::$kind as u64,
                },
            ],
        }
    };
}
pub(super) use socket;

/// Calls that are permitted with some arguments only.
const CONDITIONAL: &[ConditionalCall] = &[
    ConditionalCall {
        call: libc::SYS_clone,
        arguments: &[ArgumentRule::Bits {
            at: 0,
            mask: CLONE_FORBIDDEN,
            are: 0,
        }],
    },
    socket!(AF_UNIX, SOCK_STREAM),
    // Without an address: only to the peer of a connection.
    ConditionalCall {
        call: libc::SYS_sendto,
        arguments: &[ArgumentRule::Null { at: 4 }],
    },
    // Reads limits but does not set them.
    ConditionalCall {
        call: libc::SYS_prlimit64,
        arguments: &[ArgumentRule::exactly(0, 0), ArgumentRule::Null { at: 2 }],
    },
    exactly!(SYS_ioctl, 1, FIOCLEX),
    exactly!(SYS_ioctl, 1, FIONBIO),
    exactly!(SYS_ioctl, 1, FIONREAD),
    exactly!(SYS_ioctl, 1, TCGETS),
    exactly!(SYS_ioctl, 1, TIOCGWINSZ),
    // PDEATHSIG ends a child with its postmaster; libraries make the other calls when loaded.
    exactly!(SYS_prctl, 0, libc::PR_SET_PDEATHSIG as u64),
    exactly!(SYS_prctl, 0, libc::PR_SET_NAME as u64),
    exactly!(SYS_prctl, 0, libc::PR_GET_NAME as u64),
    exactly!(SYS_prctl, 0, libc::PR_CAPBSET_READ as u64),
    exactly!(SYS_prctl, 0, libc::PR_GET_NO_NEW_PRIVS as u64),
    exactly!(SYS_prctl, 0, libc::PR_GET_SECUREBITS as u64),
];
