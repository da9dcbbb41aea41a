//! Logs of project servers on this node: `postgres_logs`. Lines of platform sessions stay in the
//! server's files.
//!
//! One process per data folder reads. The reader offset is stored in the same batch as the lines,
//! so a crash neither loses nor repeats lines. Files are polled twice a second, with two system
//! calls for an idle server.

mod line;
mod reader;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use gantry_base::ids::ProjectRef;
use gantry_logs::event::Event;

use self::{
    line::HostFolders,
    reader::{Line, Portion, Position, Reader},
};
use super::analytics::{ShutdownSignal, WRITES_MAX, reader_offset, reader_offset_name};
use crate::{
    api::context::ApiContext,
    platform::error::{Context, Error},
};

/// Polling interval.
const LOOK: Duration = Duration::from_millis(500);
/// Number of polls after which unchanged files are read anyway, because file times are coarse.
const THOROUGH: u64 = 60;
/// Maximum number of chunks in memory over all servers. A chunk is at most a megabyte.
const PORTIONS_MAX: usize = 16;
/// Maximum number of chunks per server and poll, so that other servers are not delayed.
const ROUNDS_MAX: usize = 32;

type Readers = BTreeMap<ProjectRef, Reader>;

/// Polls until shutdown, and once more then.
pub(super) async fn run(context: ApiContext, mut shutdown: ShutdownSignal) {
    let mut readers = Readers::new();
    for look in 1_u64.. {
        let last = shutdown.within(LOOK).await;
        if let Err(error) = pass(&context, &mut readers, look % THOROUGH == 0).await {
            tracing::warn!(%error, "PostgreSQL logs could not be read");
        }
        if last {
            return;
        }
    }
}

/// Reads new lines of all servers.
async fn pass(context: &ApiContext, readers: &mut Readers, thorough: bool) -> Result<(), Error> {
    if !context.analytics.reads_servers().await? {
        return Ok(());
    }
    let there = context.driver.list().await.context("looking for servers")?;
    let known: HashSet<&ProjectRef> = there.iter().collect();
    readers.retain(|project, _| known.contains(project));
    for project in &there {
        if !readers.contains_key(project) {
            let offset = context
                .analytics
                .open_store()
                .await?
                .store
                .reader_offset(&reader_offset_name(project));
            let at = offset
                .map(|offset| Position::of_text(&offset.value))
                .unwrap_or_default();
            let data = context.home.data_directory(project);
            readers.insert(project.clone(), Reader::new(data, at));
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
        let appends = portions
            .into_iter()
            .map(|(project, portion)| append(context, project, portion));
        let appended: Vec<_> = stream::iter(appends)
            .buffer_unordered(WRITES_MAX)
            .collect()
            .await;
        for (project, outcome) in appended {
            let behind = outcome.and_then(|next| match readers.get_mut(&project) {
                Some(reader) => reader.advance(next).context("removing old log files"),
                None => Ok(()),
            });
            if let Err(error) = behind {
                tracing::warn!(%project, %error, "PostgreSQL log lines could not be stored; retrying");
                readers.remove(&project);
            }
        }
    }
    Ok(())
}

/// Returns the next chunk of each server that has one.
async fn read(mut readers: Readers) -> Result<(Vec<(ProjectRef, Portion)>, Readers), Error> {
    let work = move || {
        let mut portions = Vec::new();
        for (project, reader) in &mut readers {
            if portions.len() == PORTIONS_MAX {
                break;
            }
            match reader.read() {
                Ok(portion) => portions.extend(portion.map(|portion| (project.clone(), portion))),
                // The project is probably being removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::debug!(%project, %error, "PostgreSQL log cannot be read");
                }
            }
        }
        (portions, readers)
    };
    tokio::task::spawn_blocking(work)
        .await
        .context("reading the logs of servers")
}

/// Appends a chunk together with its reader offset.
async fn append(
    context: &ApiContext,
    project: ProjectRef,
    portion: Portion,
) -> (ProjectRef, Result<Position, Error>) {
    let now = context.clock.now();
    let data = context.home.data_directory(&project);
    let sockets = context.home.socket_dir(project.as_str());
    let folders = HostFolders::new(&[&data, &sockets, context.home.dir()]);
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
        tracing::debug!(%project, left_out, "log lines of platform sessions skipped");
    }
    let offset = reader_offset(&project, portion.next.text());
    let appended = context
        .analytics
        .append(&project, events, Some(offset))
        .await
        .map(|()| portion.next);
    (project, appended)
}
