//! The system calls that a PostgreSQL server may make: the [common ones](super::common), and those
//! of its shared memory.

use libc::c_long;

use crate::{
    supervisor::{ArgumentRule, ConditionalCall, SystemCalls},
    system_calls::common::COMMON,
};

/// The system calls of a PostgreSQL server from version 15 on, with the extensions of its
/// distribution.
pub(crate) static POSTGRES: SystemCalls = SystemCalls {
    name: "postgres",
    extends: Some(&COMMON),
    any: &[SHARED_MEMORY],
    conditional: SHARED_MEMORY_CREATION,
};

/// The system calls of `pg_upgrade`: those of a server and of clients of its socket, and those of
/// the shell by which it runs both. It may execute programs.
pub(crate) static UPGRADE: SystemCalls = SystemCalls {
    name: "pg_upgrade",
    extends: Some(&POSTGRES),
    any: &[CLIENTS],
    conditional: &[],
};

/// Calls of clients of a socket, of a shell, and of a program that copies files.
const CLIENTS: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_setpgid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// One small segment per server, by which a second postmaster detects the first. Its creation is in
/// [`SHARED_MEMORY_CREATION`].
const SHARED_MEMORY: &[c_long] = &[libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt];

/// Largest segment of System V shared memory, in bytes: one page. PostgreSQL's has 56, because the
/// command line of servers has `shared_memory_type=mmap`.
const SHARED_MEMORY_BYTES_MAX: u64 = 4096;

/// Creation of a segment. The kernel reserves nothing for a large one, so neither the address space
/// of a process nor its control group limits its size.
const SHARED_MEMORY_CREATION: &[ConditionalCall] = &[ConditionalCall {
    call: libc::SYS_shmget,
    arguments: &[ArgumentRule::AtMost {
        at: 1,
        value: SHARED_MEMORY_BYTES_MAX,
    }],
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_escape_the_sandbox_are_not_listed() {
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
            libc::SYS_msgget,
            libc::SYS_recvmsg,
            libc::SYS_semget,
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
            assert!(!POSTGRES.permits(call), "{call}");
        }
        // A call with conditions must not also be permitted without them.
        for ConditionalCall { call, .. } in POSTGRES.conditional_calls() {
            assert!(
                !POSTGRES.unconditional_calls().any(|any| any == call),
                "{call}"
            );
        }
    }
}
