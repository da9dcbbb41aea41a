//! `gantry node move`, `drain`, `moves` and `cancel-move`: moves of projects between nodes.

use std::{collections::BTreeMap, time::Duration};

use gantry_base::{clock::Clock, ids::ProjectRef};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::{admin::CommandOptions, control::OpenControl, node::unknown};
use crate::{
    control::fleet::moves::{self, MoveStep, ProjectMove},
    platform::db::Db,
};

/// Interval of looking at the moves that a command waits for.
const LOOK: Duration = Duration::from_millis(250);
/// Time for which a command waits.
const PATIENCE: Duration = Duration::from_hours(6);

/// The outcome of a command that requests moves.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    moves: Vec<ProjectMove>,
    /// Projects that stay, with the reason.
    staying: Vec<(String, String)>,
}

pub(super) async fn request(
    reference: &ProjectRef,
    to: &str,
    waits: bool,
    common: &CommandOptions,
) -> anyhow::Result<()> {
    let moves = OpenControl::with(&common.control, async |db| {
        let now = Clock::system().now();
        let requested = moves::request(db, reference, to, now).await;
        let requested = requested.map_err(|error| unknown(error, to))?;
        let ids: Vec<i64> = requested.iter().map(|one| one.id).collect();
        follow(db, &ids, waits, common).await
    })
    .await?;
    let staying = Vec::new();
    report(&Outcome { moves, staying }, common)
}

pub(super) async fn drain(name: &str, waits: bool, common: &CommandOptions) -> anyhow::Result<()> {
    let outcome = OpenControl::with(&common.control, async |db| {
        let drained = moves::drain(db, name, Clock::system().now()).await;
        let drained = drained.map_err(|error| unknown(error, name))?;
        // With those of an earlier command that was interrupted.
        let open = moves::open_from(db, name).await?;
        let moves = follow(db, &open, waits, common).await?;
        let staying = drained.staying;
        Ok(Outcome { moves, staying })
    })
    .await?;
    if outcome.moves.is_empty() && outcome.staying.is_empty() {
        return common
            .output
            .print(&outcome, || format!("{name} holds no project."));
    }
    report(&outcome, common)
}

pub(super) async fn list(common: &CommandOptions) -> anyhow::Result<()> {
    let listed = OpenControl::with(&common.control, async |db| Ok(moves::list(db).await?)).await?;
    common.output.print(&listed, || {
        if listed.is_empty() {
            return "No project was moved.".to_owned();
        }
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

pub(super) async fn cancel(reference: &ProjectRef, common: &CommandOptions) -> anyhow::Result<()> {
    OpenControl::with(&common.control, async |db| {
        let cancelled = moves::cancel(db, reference, Clock::system().now()).await;
        cancelled.map_err(|error| unknown(error, reference.as_str()))
    })
    .await?;
    let value = json!({ "ref": reference, "cancelled": true });
    common.output.print(&value, || {
        format!("Cancelled the move of {reference}; it stays where it is.")
    })
}

/// Waits until the moves have ended, and prints each step to standard error. The moves continue
/// without the command.
async fn follow(
    db: &Db,
    ids: &[i64],
    waits: bool,
    common: &CommandOptions,
) -> anyhow::Result<Vec<ProjectMove>> {
    let mut shown: BTreeMap<i64, (MoveStep, Option<String>)> = BTreeMap::new();
    let looks = PATIENCE.as_millis() / LOOK.as_millis();
    for _ in 0..looks {
        let listed = moves::find(db, ids).await?;
        for one in &listed {
            let state = (one.step, one.error.clone());
            if waits && shown.get(&one.id) != Some(&state) && common.output.is_text() {
                anstream::eprintln!("{}", line(one));
                shown.insert(one.id, state);
            }
        }
        if !waits || listed.iter().all(has_settled) {
            return Ok(listed);
        }
        sleep(LOOK).await;
    }
    anyhow::bail!("the moves take longer than six hours; `gantry node moves` shows them")
}

/// Whether a move needs no waiting: the copy of a paused project is kept until it is resumed.
fn has_settled(one: &ProjectMove) -> bool {
    one.step.is_end() || (one.paused && one.step == MoveStep::Restoring)
}

fn report(outcome: &Outcome, common: &CommandOptions) -> anyhow::Result<()> {
    common.output.print(outcome, || {
        let moves = outcome.moves.iter().map(line);
        let staying = outcome.staying.iter();
        let staying = staying.map(|(reference, reason)| format!("{reference}  stays: {reason}"));
        moves.chain(staying).collect::<Vec<_>>().join("\n")
    })?;
    let failed = |one: &ProjectMove| matches!(one.step, MoveStep::Failed | MoveStep::Cancelled);
    let are_all_moved = outcome.staying.is_empty() && !outcome.moves.iter().any(failed);
    anyhow::ensure!(are_all_moved, "not every project was moved");
    Ok(())
}

fn line(one: &ProjectMove) -> String {
    let ProjectMove {
        reference,
        from,
        to,
        step,
        ..
    } = one;
    let step = match step {
        MoveStep::Restoring if one.paused => {
            format!("moved; it is paused, and {from} keeps its copy until it is resumed")
        }
        MoveStep::Done => "moved".to_owned(),
        step => step.name().replace('_', " "),
    };
    let error = one.error.as_ref();
    let error = error.map_or_else(String::new, |error| format!(": {error}"));
    format!("{reference}  {from} -> {to}  {step}{error}")
}
