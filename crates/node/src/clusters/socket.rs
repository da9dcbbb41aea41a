//! Connections to a project's server. Each is checked against the peer credentials that the kernel
//! records for the socket.
//!
//! The socket lies in a folder that the project's processes may write. A process of a tenant can
//! put a symbolic link to another project's socket there, or listen itself. Gantry may open every
//! socket and passes peer authentication in every server, so it must identify the server
//! before it sends a byte. [`ServerSocket::connect`] is the only way to a project's server: a test
//! in `tests/it/tidy.rs` keeps it so.

use std::{
    fmt, fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_base::ids::ProjectRef;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    io::Errno,
    net::sockopt,
    process::Pid,
};
use tokio::net::UnixStream;

use crate::{
    clusters::{
        home::{Home, SOCKET},
        process::ServerProcesses,
    },
    supervisor::ProcessOwner,
};

/// The Unix socket of one server, with the properties that identify the server. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerSocket(Arc<Place>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    path: PathBuf,
    listener: Listener,
}

/// The process that must have called `listen`.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Listener {
    /// The postmaster in this data directory, under the uid that owns the directory.
    Server { name: String, data: PathBuf },
    /// The process with this id.
    Process { uid: u32, pid: i32 },
}

/// The process behind a socket is not the server. No data was sent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTheServer {
    path: PathBuf,
    why: &'static str,
}

impl fmt::Display for NotTheServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}; no data was sent; restart the project to create the socket again",
            self.path.display(),
            self.why
        )
    }
}

impl std::error::Error for NotTheServer {}

impl ServerSocket {
    /// The socket of a project's server in the data folder `dir`, which another process may have
    /// locked.
    pub fn in_home(dir: &Path, project: &ProjectRef) -> Self {
        let name = project.as_str();
        let path = Home::sockets_of(dir, name).join(SOCKET);
        Self::of_server(path, name, dir.join("projects").join(name).join("data"))
    }

    /// The socket at `path` of the server `name` with data directory `data`. The tenant must not
    /// have write access to the directories above `data` and above the socket's directory.
    pub(super) fn of_server(path: PathBuf, name: &str, data: PathBuf) -> Self {
        Self(Arc::new(Place {
            path,
            listener: Listener::Server {
                name: name.to_owned(),
                data,
            },
        }))
    }

    /// The socket at `path` of the process with these ids.
    pub fn of_process(path: PathBuf, uid: u32, pid: i32) -> Self {
        Self(Arc::new(Place {
            path,
            listener: Listener::Process { uid, pid },
        }))
    }

    /// Path of the socket. For messages and for programs of the tenant's own uid; Gantry itself
    /// connects by [`Self::connect`].
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Connects to the server. The kernel has confirmed the server's uid and process before this
    /// returns.
    ///
    /// Errors: [`NotTheServer`], wrapped as permission denied, if another file or process is in the
    /// server's place; otherwise the answer of the operating system. `WouldBlock` means that the
    /// server's queue is full.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let uid = self.owner()?;
        let node = self.node(uid)?;
        // The path of the descriptor leads to the examined file, even if it was renamed meanwhile.
        let stream = UnixStream::connect(format!("/proc/self/fd/{}", node.as_raw_fd())).await?;
        self.check(&stream, uid)?;
        Ok(stream)
    }

    /// Returns the uid of the server's processes.
    fn owner(&self) -> io::Result<u32> {
        match &self.0.listener {
            Listener::Process { uid, .. } => Ok(*uid),
            Listener::Server { data, .. } => {
                let found = fs::symlink_metadata(data)?;
                Ok(ProcessOwner::new(found.uid(), found.gid()).uid())
            }
        }
    }

    /// Opens the socket's file without following a link and without connecting.
    fn node(&self, uid: u32) -> io::Result<OwnedFd> {
        let path = &self.0.path;
        let folder = path.parent().unwrap_or(path);
        let name = path.file_name().unwrap_or_default();
        // Links above the folder are followed: only the operator can create them.
        let above = folder.parent().unwrap_or(folder);
        let inner = folder.file_name().unwrap_or_default();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |above: &Path| {
            let above = rustix::fs::openat(
                CWD,
                above,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let folder =
                rustix::fs::openat(above, inner, flags | OFlags::DIRECTORY, Mode::empty())?;
            rustix::fs::openat(folder, name, flags, Mode::empty())
        };
        let node = open(above).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => self.refused("lies in a folder that is a link"),
            other => other.into(),
        })?;
        let found = rustix::fs::fstat(&node)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Socket if found.st_uid == uid => Ok(node),
            FileType::Socket => Err(self.refused("is a socket of another user")),
            FileType::Symlink => Err(self.refused("is a symbolic link")),
            _ => Err(self.refused("is not a socket")),
        }
    }

    /// Checks the credentials of the process that called `listen`. The kernel stores them with the
    /// socket, and no process can change them.
    fn check(&self, stream: &UnixStream, uid: u32) -> io::Result<()> {
        let peer = sockopt::socket_peercred(stream)?;
        if peer.uid.as_raw() != uid {
            return Err(self.refused("is served by a process of another user"));
        }
        let is_server = match &self.0.listener {
            Listener::Process { pid, .. } => peer.pid == Pid::from_raw(*pid).unwrap_or(Pid::INIT),
            Listener::Server { name, data } => ServerProcesses {
                data: data.clone(),
                uid,
                name: name.clone(),
            }
            .is_launched(peer.pid),
        };
        if is_server {
            Ok(())
        } else {
            Err(self.refused("is served by a process that is not the project's server"))
        }
    }

    fn refused(&self, why: &'static str) -> io::Error {
        let refusal = NotTheServer {
            path: self.0.path.clone(),
            why,
        };
        tracing::warn!(socket = %self.0.path.display(), why, "rejected a socket that does not belong to its server");
        io::Error::new(io::ErrorKind::PermissionDenied, refusal)
    }
}
