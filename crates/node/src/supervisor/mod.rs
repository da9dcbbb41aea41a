//! Starts and supervises server processes with reduced privileges.
//!
//! [`SandboxedProgram`] turns a process into a confined server: it enters control groups, sets
//! resource limits, enters [`Namespaces`], applies Landlock and seccomp, changes the user id and
//! executes the program. It runs in a process that [`Launcher`] starts by executing Gantry's own
//! binary again. [`ProcessHandle`] signals and awaits a process without a race on its pid, and
//! [`LaunchRecord`] identifies a server that a previous Gantry started.
//!
//! This module knows no particular program: paths, arguments and system calls are parameters.

pub mod account;
mod bounds;
mod confinement;
mod launcher;
mod launcher_arguments;
mod namespaces;
pub mod owned_socket;
mod process;
mod sandbox;
mod sandboxed_program;
mod seccomp;
mod trace;

pub use self::{
    account::{Account, AccountError, ProcessOwner},
    bounds::LaunchBounds,
    confinement::Confinement,
    launcher::{LAUNCH_TIMEOUT, Launcher, LauncherError},
    launcher_arguments::LauncherArguments,
    namespaces::{Namespaces, namespaces_available},
    process::{LaunchRecord, ProcessHandle, reap},
    sandbox::{Sandbox, SandboxError, landlock_abi, sandbox_available},
    sandboxed_program::{LaunchError, SandboxedProgram},
    seccomp::{ArgumentRule, ConditionalCall, SeccompError, SystemCalls},
};
