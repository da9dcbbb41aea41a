//! Calls that databases make with the extension `pg_net`: HTTP requests of SQL, triggers and jobs.
//!
//! Servers of projects reach no network. The bundled extension queues a request as a row, and a
//! sender of this process, outside of the sandbox, sends it and stores the response (decision
//! 0180).
//!
//! - `run` starts a sender for each running project of this node that has the extension.
//! - `sender` reads, sends and stores the calls of one project; `queue` has its statements.
//! - `receivers` leaves places to calls of others when a receiver does not answer.
//! - `call_log` has the calls that ended, for the logs of the project.
//! - `call` checks a request, `send` sends it, `answer` is the row of its response.

mod answer;
mod call;
pub mod call_log;
mod queue;
mod receivers;
mod send;
mod sender;
pub mod state;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use gantry_base::ids::{ProjectId, ProjectRef};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use self::{answer::CallAnswer, queue::CallQueue, sender::Sender};
use crate::{
    control::{context::ControlContext, database_session::ConnectTarget},
    platform::error::{Context, Error},
};

/// Interval of passes over the running projects.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of opening a session and looking for the extension.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Passes between two searches in a database that is not used.
const UNUSED_PASSES: u64 = 30;
/// Passes with a search after a use: `create extension` may follow long after the login.
const USED_PASSES: u32 = 3;
/// Longest pause after failures, in passes.
const FAILED_PASSES_MAX: u64 = 64;

/// The end of the task of a project.
enum SenderEnd {
    /// The database does not have the extension.
    Absent,
    /// The session ended, or the tables could not be used. Has responses that are not stored, and
    /// whether requests were removed from the queue.
    Failed(Vec<CallAnswer>, bool),
}

/// A running project.
#[derive(Default)]
struct RunningProject {
    task: Option<AbortHandle>,
    /// Pass of the next search.
    next_pass: u64,
    /// Further passes with a search because of a use.
    searches: u32,
    /// Failures since a request was removed from the queue.
    failures: u32,
    unstored: Vec<CallAnswer>,
}

impl Drop for RunningProject {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl RunningProject {
    fn is_served(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }

    /// Returns whether the database is searched for the extension in a pass.
    fn is_due(&mut self, pass: u64, used: bool) -> bool {
        if self.is_served() {
            return false;
        }
        if self.failures > 0 {
            return pass >= self.next_pass;
        }
        if used {
            self.searches = USED_PASSES;
        }
        let is_used = self.searches > 0;
        self.searches = self.searches.saturating_sub(1);
        is_used || pass >= self.next_pass
    }

    fn end(&mut self, pass: u64, end: SenderEnd) {
        self.task = None;
        match end {
            SenderEnd::Absent => {
                self.failures = 0;
                self.next_pass = pass + UNUSED_PASSES;
            }
            SenderEnd::Failed(unstored, has_removed) => {
                self.failures = if has_removed { 1 } else { self.failures + 1 };
                let pause = 1_u64 << (self.failures - 1).min(6);
                self.next_pass = pass + pause.min(FAILED_PASSES_MAX);
                self.unstored = unstored;
            }
        }
    }
}

/// The senders of this node.
#[derive(Default)]
struct Senders {
    pass: u64,
    projects: HashMap<ProjectId, RunningProject>,
    tasks: JoinSet<(ProjectId, SenderEnd)>,
}

/// Keeps senders for the running projects of this node. Dropping the future ends them.
pub async fn run(context: ControlContext) {
    let mut senders = Senders::default();
    loop {
        if let Err(error) = pass(&context, &mut senders).await {
            tracing::warn!(%error, "cannot search for calls of databases");
        }
        // A call for an earlier pass is also a use of all projects.
        let woken = timeout(PASS_INTERVAL, context.database_calls.pass.notified());
        if woken.await.is_ok() {
            for project in senders.projects.values_mut() {
                project.next_pass = 0;
            }
        }
    }
}

/// Starts senders of projects that run, and ends those of others.
async fn pass(context: &ControlContext, senders: &mut Senders) -> Result<(), Error> {
    senders.pass += 1;
    let pass = senders.pass;
    while let Some(ended) = senders.tasks.try_join_next() {
        let Ok((id, end)) = ended else { continue };
        context.database_calls.set_busy(id, false);
        if let Some(project) = senders.projects.get_mut(&id) {
            project.end(pass, end);
        }
    }
    let used = context.database_calls.take_used();
    if !context.lease.leads() {
        for (id, _) in senders.projects.drain() {
            context.database_calls.set_busy(id, false);
        }
        return Ok(());
    }
    let running = running(context).await?;
    let ids: HashSet<ProjectId> = running.iter().map(|(id, _)| *id).collect();
    senders.projects.retain(|id, _| {
        let runs = ids.contains(id);
        if !runs {
            context.database_calls.set_busy(*id, false);
        }
        runs
    });
    for (id, reference) in running {
        let project = senders.projects.entry(id).or_default();
        if project.is_due(pass, used.contains(&id)) {
            let unstored = std::mem::take(&mut project.unstored);
            let serving = serve(context.clone(), id, reference, unstored);
            project.task = Some(senders.tasks.spawn(serving));
        }
    }
    Ok(())
}

/// Returns the projects of this node that have a running server.
async fn running(context: &ControlContext) -> Result<Vec<(ProjectId, ProjectRef)>, Error> {
    let doing = "reading running projects";
    let sql = "select id, ref from projects \
               where node = $1 and status = 'ACTIVE_HEALTHY' and desired = 'active' and not asleep";
    let rows = context.db.query(sql, &[&context.settings.node]).await;
    let mut projects = Vec::new();
    for row in &rows.context(doing)? {
        let reference = row.get::<_, &str>(1).parse().context(doing)?;
        projects.push((ProjectId(row.get(0)), reference));
    }
    Ok(projects)
}

/// Sends the calls of a project, if its database has the extension.
async fn serve(
    context: ControlContext,
    id: ProjectId,
    project: ProjectRef,
    unstored: Vec<CallAnswer>,
) -> (ProjectId, SenderEnd) {
    let target = ConnectTarget::new(context.driver.socket(&project));
    let opened = {
        // A server that does not answer delays the search in others by the timeout at most.
        let _place = context.database_calls.checks.acquire().await;
        timeout(CHECK_TIMEOUT, CallQueue::open(&target)).await
    };
    let end = match opened {
        Ok(Ok(Some(queue))) => {
            let mut sender = Sender::new(&context, (id, &project), queue, unstored);
            if let Err(error) = sender.run().await {
                log_end(&project, &error);
            }
            SenderEnd::Failed(std::mem::take(&mut sender.unstored), sender.removed > 0)
        }
        Ok(Ok(None)) => SenderEnd::Absent,
        Ok(Err(_)) | Err(_) => SenderEnd::Failed(unstored, false),
    };
    (id, end)
}

/// Logs why a sender ended. Messages of the server are the tenant's, and are left out.
fn log_end(project: &ProjectRef, error: &Error) {
    let why = match error {
        Error::DatabaseUnreachable => "the session ended",
        Error::Rejected(_) => "requests stay in the queue",
        _ => "the tables of the extension cannot be used",
    };
    tracing::debug!(%project, why, "calls of a database are not sent; retrying");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_database_is_searched_rarely_and_a_used_one_in_each_pass() {
        let mut project = RunningProject::default();
        assert!(project.is_due(1, false));
        project.end(1, SenderEnd::Absent);
        assert!(!project.is_due(2, false));
        for pass in 3..6 {
            assert!(project.is_due(pass, pass == 3), "{pass}");
        }
        assert!(!project.is_due(6, false));
        assert!(project.is_due(1 + UNUSED_PASSES, false));
    }

    #[test]
    fn pause_grows_with_failures_and_a_use_does_not_shorten_it() {
        let mut project = RunningProject::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            project.end(0, SenderEnd::Failed(Vec::new(), false));
            pauses.push(project.next_pass);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
        assert!(!project.is_due(63, true) && project.is_due(64, false));
        project.end(0, SenderEnd::Failed(Vec::new(), true));
        assert_eq!(project.next_pass, 1);
    }
}
