//! Installation of a kit beside its place, which it gets by a rename when it is complete.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use gantry_base::{clock::Entropy, files};
use tokio::{process::Command, time::timeout};

use crate::kits::{
    kit::{KitError, at},
    shelf::UNFINISHED,
};

/// Mode of folders and programs: every instance can read them, only Gantry's account can write.
pub(super) const OPEN: u32 = 0o755;
/// Time that a new program gets to print its version.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Fills a folder, and moves it to `<kits>/<name>/<version>`. It is removed after a failure.
/// Returns the place, also if another process installed the kit meanwhile.
pub(super) async fn install(
    (kits, name, version): (&Path, &str, &str),
    entropy: &Entropy,
    fill: impl AsyncFnOnce(&Path) -> Result<(), KitError>,
) -> Result<PathBuf, KitError> {
    let folder = kits.join(name);
    let place = folder.join(version);
    let stage = folder.join(format!("{UNFINISHED}unpacking-{}", entropy.letters(8)));
    let (kits, made) = (kits.to_owned(), stage.clone());
    blocking(move || {
        make_folder(&kits)?;
        make_folder(&folder)?;
        make_folder(&made)
    })
    .await?;
    let filled = fill(&stage).await;
    blocking(move || {
        let committed = filled.and_then(|()| commit(&stage, &place));
        // Present only after a failure.
        let _ = fs::remove_dir_all(&stage);
        committed.map(|()| place)
    })
    .await
}

/// Renames the finished folder to its place, durably.
fn commit(stage: &Path, place: &Path) -> Result<(), KitError> {
    match fs::rename(stage, place) {
        // Another process installed it meanwhile.
        Err(_) if place.exists() => Ok(()),
        renamed => renamed.map_err(at(stage)),
    }?;
    let parent = place.parent().unwrap_or(place);
    fs::File::open(parent)
        .and_then(|folder| folder.sync_all())
        .map_err(at(parent))
}

/// Creates a folder that all accounts can read, ignoring the umask.
pub(super) fn make_folder(path: &Path) -> Result<(), KitError> {
    files::make_folder(path, OPEN).map_err(at(path))
}

/// Runs a program that prints its version, so that a wrong processor or C library is reported at
/// the installation.
pub(super) async fn probe(command: &mut Command, program: &str) -> Result<(), KitError> {
    command
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let failed = |why: String| KitError::Rejected(format!("{program} does not run: {why}"));
    let status = timeout(PROBE_TIMEOUT, command.status())
        .await
        .map_err(|_| failed("it printed no version in time".to_owned()))?
        .map_err(|error| failed(error.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(status.to_string()))
    }
}

/// Runs blocking file work outside the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KitError> + Send + 'static,
) -> Result<T, KitError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(KitError::Rejected(error.to_string())))
}
