//! The system calls that an instance may make: the [common ones](super::common), and those by which
//! a program connects to the server's Unix socket.
//!
//! `socket` permits Unix stream sockets only, so no byte leaves by TCP, UDP or raw packets.
//! Functions may also open TCP and UDP sockets; Landlock limits the ports.

use libc::c_long;

use crate::{
    supervisor::{ConditionalCall, SystemCalls},
    system_calls::common::{COMMON, socket},
};

/// The system calls of an instance.
pub(crate) static INSTANCE: SystemCalls = SystemCalls {
    name: "service",
    extends: Some(&COMMON),
    any: &[CLIENT, RUNTIME],
    conditional: &[],
};

/// The system calls of a function that may not reach other machines.
pub(crate) static OFFLINE: SystemCalls = SystemCalls {
    name: "function",
    extends: Some(&INSTANCE),
    any: &[SCRIPTS],
    conditional: &[],
};

/// The system calls of a function.
pub(crate) static FUNCTION: SystemCalls = SystemCalls {
    name: "function",
    extends: Some(&OFFLINE),
    any: &[],
    conditional: INTERNET,
};

/// The system calls of a program that stores files: those of a function, and attributes of files.
pub(crate) static STORAGE: SystemCalls = SystemCalls {
    name: "storage",
    extends: Some(&FUNCTION),
    any: &[ATTRIBUTES],
    conditional: &[],
};

/// Extended attributes of files, in which Storage keeps media types.
const ATTRIBUTES: &[c_long] = &[
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_listxattr,
    libc::SYS_removexattr,
    libc::SYS_setxattr,
];

/// Calls of JavaScript: pairs of sockets for signals, queries of names.
const SCRIPTS: &[c_long] = &[libc::SYS_fchown, libc::SYS_sendmmsg, libc::SYS_socketpair];

/// Calls of a client of the database's socket, and of HTTP libraries that answer with one vector.
const CLIENT: &[c_long] = &[libc::SYS_connect, libc::SYS_recvmsg, libc::SYS_sendmsg];

/// Calls of language runtimes: timers and wake-ups of their schedulers.
const RUNTIME: &[c_long] = &[
    libc::SYS_eventfd2,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

/// Internet sockets: streams and datagrams of IPv4. The runtime cannot deny networks of IPv6, so
/// that is not permitted at all.
const INTERNET: &[ConditionalCall] = &[socket!(AF_INET, SOCK_STREAM), socket!(AF_INET, SOCK_DGRAM)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_escape_the_sandbox_are_not_listed() {
        for call in [
            libc::SYS_bpf,
            libc::SYS_execveat,
            libc::SYS_io_uring_setup,
            libc::SYS_memfd_create,
            libc::SYS_mount,
            libc::SYS_open_by_handle_at,
            libc::SYS_pidfd_getfd,
            libc::SYS_process_vm_writev,
            libc::SYS_ptrace,
            libc::SYS_setns,
            libc::SYS_setrlimit,
            libc::SYS_setuid,
            libc::SYS_shmget,
            libc::SYS_socketpair,
            libc::SYS_symlinkat,
            libc::SYS_unshare,
        ] {
            assert!(!INSTANCE.permits(call), "{call}");
        }
    }
}
