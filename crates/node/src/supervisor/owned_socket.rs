//! Unix sockets of this server for the processes of one account.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tokio::net::UnixListener;

use crate::supervisor::account::ProcessOwner;

/// Listens at `path` for the processes of `owner`. A socket of an earlier server is replaced:
/// processes keep its path. Its folder must not be writable for a tenant.
pub fn listen(path: &Path, owner: ProcessOwner) -> io::Result<UnixListener> {
    // As short as the name of the socket: the length of its path is limited.
    let unfinished = path.with_file_name("n");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&unfinished)?;
    fs::set_permissions(&unfinished, Permissions::from_mode(0o600))?;
    owner.own(&unfinished)?;
    fs::rename(&unfinished, path)?;
    Ok(listener)
}
