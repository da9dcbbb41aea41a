//! Removal of files that no version names: of replaced and deleted versions, of removed projects,
//! and of deployments that a crash interrupted.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use uuid::Uuid;

use super::sources::UNFINISHED;
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Age of files from which they can be removed. Younger ones may be of a running deployment, or of
/// a process that still answers.
const AGE_MIN: Duration = Duration::from_mins(15);

/// Removes files without a version.
pub(in crate::control::services) async fn remove_unused(
    context: &ControlContext,
) -> Result<(), Error> {
    let doing = "removing files of functions";
    let root = context.home.functions();
    // Listed before the rows are read: a version that is stored in between is not listed.
    let now = SystemTime::from(context.clock.now());
    let listed = tokio::task::spawn_blocking(move || list(&root, now));
    let listed = listed.await.context(doing)?.context(doing)?;
    if listed.is_empty() {
        return Ok(());
    }
    let rows = context
        .db
        .query(
            // Also those of removed projects that can be restored.
            "select deployment from function_versions union all \
             select (v ->> 'deployment')::uuid from removed_project_rows, jsonb_array_elements(rows -> 'function_versions') v",
            &[],
        )
        .await
        .context(doing)?;
    let used: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let unused: Vec<PathBuf> = listed
        .into_iter()
        .filter(|(_, deployment)| deployment.is_none_or(|id| !used.contains(&id)))
        .map(|(path, _)| path)
        .collect();
    let removed = tokio::task::spawn_blocking(move || {
        for path in unused {
            fs::remove_dir_all(path)?;
        }
        Ok::<_, io::Error>(())
    });
    removed.await.context(doing)?.context(doing)
}

/// Returns the folders that are old enough, with the deployment that they are named after.
/// Unfinished ones have none.
fn list(root: &Path, now: SystemTime) -> io::Result<Vec<(PathBuf, Option<Uuid>)>> {
    let mut found = Vec::new();
    for project in fs::read_dir(root)? {
        for entry in fs::read_dir(project?.path())? {
            let entry = entry?;
            let age = now.duration_since(entry.metadata()?.modified()?);
            if age.is_ok_and(|age| age < AGE_MIN) {
                continue;
            }
            let name = entry.file_name().into_string().unwrap_or_default();
            let deployment = Uuid::try_parse(&name).ok();
            if deployment.is_some() || name.starts_with(UNFINISHED) {
                found.push((entry.path(), deployment));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_and_foreign_folders_are_not_listed() {
        let place = tempfile::tempdir().unwrap();
        let project = place.path().join("abcdefghijklmnopqrst");
        let version = Uuid::from_u128(7);
        for name in [
            version.simple().to_string(),
            format!("{UNFINISHED}x"),
            "other".into(),
        ] {
            fs::create_dir_all(project.join(name)).unwrap();
        }
        let now = fs::metadata(project.join("other"))
            .unwrap()
            .modified()
            .unwrap();
        assert!(list(place.path(), now).unwrap().is_empty());
        let later = now + AGE_MIN + Duration::from_secs(1);
        let mut listed: Vec<_> = list(place.path(), later).unwrap();
        listed.sort();
        let found: Vec<_> = listed
            .into_iter()
            .map(|(_, deployment)| deployment)
            .collect();
        assert_eq!(found, [None, Some(version)]);
    }
}
