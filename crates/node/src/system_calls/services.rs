//! The system calls that an instance may make: those of a PostgreSQL server, without its shared
//! memory, and those by which a program connects to the server's Unix socket.
//!
//! `socket` permits Unix stream sockets only, so no byte leaves by TCP, UDP or raw packets.
//! Functions may also open TCP and UDP sockets; Landlock limits the ports.

use libc::c_long;

use crate::{
    supervisor::{ArgumentRule, ConditionalCall, SystemCalls},
    system_calls::postgres::{
        FILES, FILES_BY_OLDER_CALLS, MEMORY, POSTGRES_CONDITIONAL, PROCESSES, SESSIONS, SIGNALS,
        TIME, WAITING,
    },
};

/// The system calls of an instance.
pub(crate) static INSTANCE: SystemCalls = SystemCalls {
    name: "service",
    any: &[
        MEMORY,
        FILES,
        FILES_BY_OLDER_CALLS,
        PROCESSES,
        SIGNALS,
        TIME,
        WAITING,
        SESSIONS,
        CLIENT,
        RUNTIME,
    ],
    conditional: &[POSTGRES_CONDITIONAL],
};

/// The system calls of a function.
pub(crate) static FUNCTION: SystemCalls = SystemCalls {
    name: "function",
    any: &[
        MEMORY,
        FILES,
        FILES_BY_OLDER_CALLS,
        PROCESSES,
        SIGNALS,
        TIME,
        WAITING,
        SESSIONS,
        CLIENT,
        RUNTIME,
        SCRIPTS,
    ],
    conditional: &[POSTGRES_CONDITIONAL, &INTERNET],
};

/// The system calls of a function that may not reach other machines.
pub(crate) static OFFLINE: SystemCalls = SystemCalls {
    name: "function",
    any: FUNCTION.any,
    conditional: &[POSTGRES_CONDITIONAL],
};

/// The system calls of a program that stores files: those of a function, and attributes of files.
pub(crate) static STORAGE: SystemCalls = SystemCalls {
    name: "storage",
    any: &[
        MEMORY,
        FILES,
        FILES_BY_OLDER_CALLS,
        PROCESSES,
        SIGNALS,
        TIME,
        WAITING,
        SESSIONS,
        CLIENT,
        RUNTIME,
        SCRIPTS,
        ATTRIBUTES,
    ],
    conditional: &[POSTGRES_CONDITIONAL, &INTERNET],
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

/// Mask of a socket's type, without flags.
const SOCKET_TYPE: u64 = 0xf;
/// Internet sockets: streams and datagrams of IPv4. The runtime cannot deny networks of IPv6, so
/// that is not permitted at all.
static INTERNET: [ConditionalCall; 2] = [
    ConditionalCall {
        call: libc::SYS_socket,
        arguments: &[
            ArgumentRule::exactly(0, libc::AF_INET as u64),
            ArgumentRule::Bits {
                at: 1,
                mask: SOCKET_TYPE,
                are: libc::SOCK_STREAM as u64,
            },
        ],
    },
    ConditionalCall {
        call: libc::SYS_socket,
        arguments: &[
            ArgumentRule::exactly(0, libc::AF_INET as u64),
            ArgumentRule::Bits {
                at: 1,
                mask: SOCKET_TYPE,
                are: libc::SOCK_DGRAM as u64,
            },
        ],
    },
];

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
            let listed = INSTANCE.any.iter().any(|list| list.contains(&call))
                || INSTANCE
                    .conditional
                    .iter()
                    .copied()
                    .flatten()
                    .any(|rule| rule.call == call);
            assert!(!listed, "{call}");
        }
    }
}
