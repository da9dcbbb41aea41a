//! What the projects' servers on this node write into their logs: `postgres_logs`. Lines about the platform's own sessions stay
//! in the servers' files.
//!
//! One process on a data folder reads. How far it came is kept in the same batch as the lines, so that each is there
//! once, wherever the process is killed. Files are looked at twice a second: two calls for a server that wrote nothing.

mod line;
mod reader;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use gantry_logs::{event::Event, store::ReaderOffset};

use self::{
    line::HostFolders,
    reader::{Line, Portion, Position, Reader},
};
use super::{Ending, WRITES_MAX};
use crate::{
    api::context::ApiContext,
    base::{
        error::{Context, Error},
        ids::ProjectRef,
    },
};

/// How soon a line is looked for.
const LOOK: Duration = Duration::from_millis(500);
/// Looks after which files are read although they look as before: times of files are coarse.
const THOROUGH: u64 = 60;
/// Portions of all servers that are in memory at the same time, of a megabyte each at most.
const PORTIONS_MAX: usize = 16;
/// Portions of one server in one look: others come first after that.
const ROUNDS_MAX: usize = 32;

type Readers = BTreeMap<ProjectRef, Reader>;

/// Runs until the server ends, and looks a last time then.
pub(super) async fn run(context: ApiContext, mut ending: Ending) {
    let mut readers = Readers::new();
    for look in 1_u64.. {
        let last = ending.within(LOOK).await;
        if let Err(error) = pass(&context, &mut readers, look % THOROUGH == 0).await {
            tracing::warn!(%error, "the logs of servers could not be read");
        }
        if last {
            return;
        }
    }
}

/// Reads what is new in all logs.
async fn pass(context: &ApiContext, readers: &mut Readers, thorough: bool) -> Result<(), Error> {
    if !context.analytics.reads_servers().await? {
        return Ok(());
    }
    let there = context
        .clusters
        .refs_on_disk()
        .await
        .context("looking for servers")?;
    let known: HashSet<&ProjectRef> = there.iter().collect();
    readers.retain(|project, _| known.contains(project));
    for project in &there {
        if !readers.contains_key(project) {
            let mark = context
                .analytics
                .opened()
                .await?
                .store
                .reader_offset(&mark_name(project));
            let at = mark
                .map(|mark| Position::of_text(&mark.value))
                .unwrap_or_default();
            readers.insert(
                project.clone(),
                Reader::new(context.clusters.data(project), at),
            );
        }
    }
    if thorough {
        readers.values_mut().for_each(Reader::look_again);
    }
    for _ in 0..ROUNDS_MAX {
        let (portions, back) = read(std::mem::take(readers)).await?;
        *readers = back;
        if portions.is_empty() {
            break;
        }
        let keeps = portions
            .into_iter()
            .map(|(project, portion)| keep(context, project, portion));
        let kept: Vec<_> = stream::iter(keeps)
            .buffer_unordered(WRITES_MAX)
            .collect()
            .await;
        for (project, outcome) in kept {
            let behind = outcome.and_then(|next| match readers.get_mut(&project) {
                Some(reader) => reader.kept(next).context("removing old log files"),
                None => Ok(()),
            });
            if let Err(error) = behind {
                tracing::warn!(%project, %error, "the log of a server could not be kept; it is read again");
                readers.remove(&project);
            }
        }
    }
    Ok(())
}

/// The next portion of some servers that have one.
async fn read(mut readers: Readers) -> Result<(Vec<(ProjectRef, Portion)>, Readers), Error> {
    let work = move || {
        let mut portions = Vec::new();
        for (project, reader) in &mut readers {
            if portions.len() == PORTIONS_MAX {
                break;
            }
            match reader.read() {
                Ok(portion) => portions.extend(portion.map(|portion| (project.clone(), portion))),
                // A project that is being removed, most likely.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::debug!(%project, %error, "the log of a server cannot be read")
                }
            }
        }
        (portions, readers)
    };
    tokio::task::spawn_blocking(work)
        .await
        .context("reading the logs of servers")
}

/// Keeps a portion together with how far it reaches.
async fn keep(
    context: &ApiContext,
    project: ProjectRef,
    portion: Portion,
) -> (ProjectRef, Result<Position, Error>) {
    let now = context.clock.now();
    let data = context.clusters.data(&project);
    let sockets = context.clusters.home().socket_dir(project.as_str());
    let folders = HostFolders::new(&[&data, &sockets, context.clusters.home().dir()]);
    let event = |line: Line| -> Option<Event> {
        let id = context.entropy.uuid().to_string();
        match line {
            Line::Whole(bytes) => line::event(id, &project, &bytes, now, &folders),
            Line::TooLong(length) => Some(line::too_long(id, &project, length, now)),
        }
    };
    let read = portion.lines.len();
    let events: Vec<_> = portion.lines.into_iter().filter_map(event).collect();
    let left_out = read - events.len();
    if left_out > 0 {
        tracing::debug!(%project, left_out, "lines of platform sessions stay in the server's log files");
    }
    let mark = ReaderOffset {
        name: mark_name(&project),
        value: portion.next.text(),
    };
    let kept = context
        .analytics
        .keep(&project, events, Some(mark))
        .await
        .map(|()| portion.next);
    (project, kept)
}

fn mark_name(project: &ProjectRef) -> String {
    format!("postgres/{project}")
}

/// How far the log of a server that is gone was read is of no use.
pub(super) fn forgotten(project: &ProjectRef) -> ReaderOffset {
    ReaderOffset {
        name: mark_name(project),
        value: String::new(),
    }
}
