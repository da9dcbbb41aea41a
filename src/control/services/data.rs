//! Folders of programs that keep files: `storage/<ref>` in the data folder. A folder lives as long
//! as its project.

use std::{
    collections::HashSet,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use gantry_base::ids::ProjectRef;
use gantry_node::{clusters::Home, supervisor::ProcessOwner};

use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Returns the folder of a project.
pub(super) fn folder(home: &Home, project: &ProjectRef) -> PathBuf {
    home.storage().join(project.as_str())
}

/// Creates the folder of a project for the account of its service. Existing files are kept.
pub(super) fn create(home: &Home, project: &ProjectRef, owner: ProcessOwner) -> io::Result<()> {
    let folder = folder(home, project);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    owner.own(&folder)
}

/// Removes the folders of removed projects.
pub(super) async fn remove_unused(context: &ControlContext) -> Result<(), Error> {
    let doing = "removing files of Storage";
    let root = context.home.storage();
    let listed = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for entry in fs::read_dir(root)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            // Other names are not Gantry's.
            found.extend(name.parse::<ProjectRef>().is_ok().then_some(name));
        }
        Ok::<_, io::Error>(found)
    });
    let listed = listed.await.context(doing)?.context(doing)?;
    if listed.is_empty() {
        return Ok(());
    }
    // Only a project that is known as removed loses its files: the row of a removed project stays.
    let sql = "select ref from projects where ref = any($1) and status = 'REMOVED'";
    let rows = context.db.query(sql, &[&listed]).await.context(doing)?;
    let removed: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let home = context.home.clone();
    let done = tokio::task::spawn_blocking(move || {
        for project in listed.iter().filter(|name| removed.contains(*name)) {
            fs::remove_dir_all(home.storage().join(project))?;
        }
        Ok::<_, io::Error>(())
    });
    done.await.context(doing)?.context(doing)
}
