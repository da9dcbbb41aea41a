//! The end of a recovery: the identity and the log of the stopped cluster.

use std::{fs, path::Path};

use gantry_base::clock::Entropy;

use super::rebuild::TimelineFork;
use crate::{
    background::blocking,
    clusters::{
        home,
        identity::{self, ControlState, SystemId},
    },
    error::{At, ClusterError, Result},
    files,
};

/// Size of a history file at most, in bytes.
const HISTORY_BYTES_MAX: u64 = 1 << 20;

/// Completes a stopped cluster with a new system identifier.
pub(in crate::clusters) async fn complete(place: &Path, entropy: &Entropy) -> Result<()> {
    let id = SystemId::generate(entropy);
    let place = place.to_owned();
    blocking(move || finish(&place, id)).await
}

/// Removes the traces of a recovery from a stopped cluster, gives it its identity, and makes it
/// durable.
fn finish(place: &Path, id: SystemId) -> Result<()> {
    let data = place.join("data");
    remove_traces(place)?;
    remove_from_log(&data, |name| {
        name.ends_with(".history") || name.ends_with(".partial")
    })?;
    identity::forget_wal(&data)?;
    identity::assign(&data, id)?;
    files::sync_fs(place)
}

/// Removes the traces of a recovery from a stopped cluster except for the log of its timeline, and
/// makes it durable. Returns the begin of the timeline.
pub(super) fn keep_log(place: &Path) -> Result<TimelineFork> {
    let data = place.join("data");
    let control = data.join("global/pg_control");
    let content = fs::read(&control).at("reading", &control)?;
    let damaged = |what: &str| ClusterError::Recovery(format!("{what} cannot be read"));
    let state = ControlState::read(&content).ok_or_else(|| damaged("the control file"))?;
    let timeline = format!("{:08X}", state.timeline);
    let history = data.join("pg_wal").join(format!("{timeline}.history"));
    let text = files::read_bounded(&history, HISTORY_BYTES_MAX).at("reading", &history)?;
    let at = end_in_history(&text).ok_or_else(|| damaged("the history of the timeline"))?;
    remove_traces(place)?;
    remove_from_log(&data, |name| !name.starts_with(&timeline))?;
    files::sync_fs(place)?;
    Ok(TimelineFork {
        timeline: state.timeline,
        at,
    })
}

/// Returns the position in the last line of a history file: `TIMELINE\tPOSITION\tREASON`.
fn end_in_history(text: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::trim);
    let last = lines.rfind(|line| !line.is_empty() && !line.starts_with('#'))?;
    let (high, low) = last.split('\t').nth(1)?.split_once('/')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some((number(high)? << 32) | number(low)?)
}

/// Removes the settings and the output of a recovery.
fn remove_traces(place: &Path) -> Result<()> {
    let data = place.join("data");
    files::remove_file(&data.join(home::OVERRIDES))?;
    files::remove_tree(&data.join("log"))?;
    files::remove_file(&place.join("start.log"))
}

/// Removes files of the log, and the status of all.
fn remove_from_log(data: &Path, is_removed: impl Fn(&str) -> bool) -> Result<()> {
    let wal = data.join("pg_wal");
    for entry in fs::read_dir(&wal).at("listing", &wal)? {
        let entry = entry.at("listing", &wal)?;
        let is_file = entry.file_type().at("reading", &wal)?.is_file();
        if is_file && is_removed(&entry.file_name().to_string_lossy()) {
            files::remove_file(&entry.path())?;
        }
    }
    let status = wal.join("archive_status");
    for entry in fs::read_dir(&status).at("listing", &status)? {
        files::remove_file(&entry.at("listing", &status)?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_of_a_history_has_the_begin_of_the_timeline() {
        let text = "1\t0/150\ta restore\n\n2\tA/3000028\tafter LSN A/2FFFFF0\n";
        assert_eq!(end_in_history(text), Some(0xA_0300_0028));
        for text in ["", "1", "1\t2", "1\tx/y\tz", "# 1\t0/1"] {
            assert_eq!(end_in_history(text), None, "{text:?}");
        }
    }
}
