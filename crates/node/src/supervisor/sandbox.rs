//! The sandbox of a program: the files, ports and system calls that it may use.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

use crate::supervisor::seccomp::{self, SeccompError, SystemCalls};

/// The newest Landlock ABI with rights that the rules cover. Older kernels enforce the rights
/// that they know.
const LANDLOCK: ABI = ABI::V9;

/// Files that programs of the distribution read: shared libraries, extensions, time zones and
/// locales, random numbers.
const SYSTEM_FILES: &[&str] = &[
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/ssl/openssl.cnf",
    "/dev/urandom",
];

/// The dynamic loaders, which the kernel executes for a program.
const LOADERS: &[&str] = &[
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux-riscv64-lp64d.so.1",
    "/lib64/ld64.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// File access, ports and system calls of a confined program. All other access is denied, including
/// other network access and signals to other processes.
///
/// A rule on files applies to the file that has the name now. If a file is replaced, running
/// programs cannot access the new file. Paths that do not exist are ignored.
#[derive(Debug)]
pub struct Sandbox {
    /// Permitted access, and the files and folders to which it applies.
    files: Vec<(BitFlags<AccessFs>, Vec<PathBuf>)>,
    /// TCP ports that it may connect to.
    pub ports: Vec<u16>,
    /// TCP ports that it may listen on.
    pub listen_ports: Vec<u16>,
    /// Permitted system calls.
    system_calls: &'static SystemCalls,
    /// Whether the program may execute other programs, as far as its file access permits.
    pub executes: bool,
}

/// A sandbox could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Landlock rejected the rules.
    #[error("{0}")]
    Rules(#[from] landlock::RulesetError),
    /// The kernel has no Landlock.
    #[error("this kernel has no Landlock")]
    Unsupported,
    /// The kernel rejected the list of system calls.
    #[error("list of system calls of {0}: {1}")]
    Calls(&'static str, SeccompError),
}

impl Sandbox {
    /// Permits the system calls, and the files that every program of the distribution needs.
    pub fn new(system_calls: &'static SystemCalls) -> Self {
        let empty = Self {
            files: Vec::new(),
            ports: Vec::new(),
            listen_ports: Vec::new(),
            system_calls,
            executes: false,
        };
        let discard = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        empty
            .read(SYSTEM_FILES)
            .execute(LOADERS)
            .allow(discard, ["/dev/null"])
    }

    /// Permits access to files, and to files in folders.
    #[must_use]
    pub fn allow(
        mut self,
        access: impl Into<BitFlags<AccessFs>>,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Self {
        let paths = paths.into_iter().map(|path| path.as_ref().to_owned());
        self.files.push((access.into(), paths.collect()));
        self
    }

    /// Permits reading files, and listing folders.
    #[must_use]
    pub fn read(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.allow(AccessFs::ReadFile | AccessFs::ReadDir, paths)
    }

    /// Permits executing files.
    #[must_use]
    pub fn execute(self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.allow(AccessFs::Execute | AccessFs::ReadFile, paths)
    }

    /// Permits reading, creating, changing and removing files and folders in folders, and `more`.
    /// By itself it permits no links, pipes, devices or sockets, and no renames between folders.
    #[must_use]
    pub fn change(
        self,
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        more: impl Into<BitFlags<AccessFs>>,
    ) -> Self {
        let access = AccessFs::ReadFile
            | AccessFs::ReadDir
            | AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::MakeReg
            | AccessFs::MakeDir
            | AccessFs::RemoveFile
            | AccessFs::RemoveDir;
        self.allow(access | more.into(), paths)
    }

    /// Restricts this process to the permitted files and ports, without other network access and
    /// without signals to processes outside the sandbox.
    pub(super) fn restrict_files(&self) -> Result<(), SandboxError> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        for (access, paths) in &self.files {
            ruleset = ruleset.add_rules(path_beneath_rules(paths, *access))?;
        }
        for port in &self.ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        for port in &self.listen_ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        match ruleset.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => Err(SandboxError::Unsupported),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        }
    }

    /// Restricts this process to the permitted system calls. Requires `no_new_privs`.
    pub(super) fn restrict_system_calls(&self) -> Result<(), SandboxError> {
        let calls = self.system_calls;
        calls
            .apply(self.executes)
            .map_err(|error| SandboxError::Calls(calls.name, error))
    }
}

/// Returns the version of the kernel's Landlock ABI, or `None` without Landlock.
pub fn landlock_abi() -> Option<i32> {
    // Only the thread that calls is restricted, and it ends.
    let thread = std::thread::Builder::new().spawn(|| {
        let ruleset = Ruleset::default().handle_access(AccessFs::Execute)?;
        let applied = ruleset.create()?.restrict_self()?;
        Ok::<_, RulesetError>(applied.landlock)
    });
    match thread.ok()?.join().ok()?.ok()? {
        LandlockStatus::Available {
            effective_abi,
            kernel_abi,
        } => kernel_abi.or(Some(effective_abi as i32)),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}

/// Returns whether the kernel supports Landlock and seccomp filters and both are enabled.
pub fn sandbox_available() -> bool {
    let landlock = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    landlock
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create)
        .is_ok()
        && seccomp::available()
}
