//! Starts and stops the deliveries of this process: one worker for each drain and open store.
//!
//! A store of lines is open in one process only, by a lock on its folder, so each line is delivered
//! by one process at a time. Other processes on the control database deliver the lines of their own
//! stores.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use gantry_base::ids::ProjectRef;
use gantry_logs::store::Store;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    drains::{LogDrain, read},
    metrics::DrainKey,
    positions::Positions,
    worker::{Lanes, Worker},
};
use crate::{
    api::context::ApiContext,
    platform::error::{Context, Error},
};

/// Interval of passes without a notification.
const INTERVAL: Duration = Duration::from_secs(30);
/// Delay after a failed pass.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of drains of a control database.
const DRAINS_MAX: i64 = 20_000;
/// Concurrent requests to targets that work, and to targets that failed last.
const SENDS_MAX: usize = 64;
const RETRIES_MAX: usize = 32;
/// Number of passes without a drain after which a tail is closed. A creation opens the tail before
/// its drain is visible.
const ABSENT_PASSES_MAX: u32 = 2;

/// The workers of this process.
struct Workers {
    tasks: JoinSet<()>,
    running: HashMap<DrainKey, (i64, AbortHandle)>,
    lanes: Arc<Lanes>,
    positions: Arc<Positions>,
    /// Passes in which a project with an open tail had no drain.
    absent: HashMap<String, u32>,
}

/// Runs the deliveries. Never returns.
pub async fn run(context: ApiContext) {
    let mut workers = Workers {
        tasks: JoinSet::new(),
        running: HashMap::new(),
        lanes: Arc::new(Lanes {
            working: Semaphore::new(SENDS_MAX),
            failing: Semaphore::new(RETRIES_MAX),
        }),
        positions: Arc::default(),
        absent: HashMap::new(),
    };
    loop {
        let pause = match workers.pass(&context).await {
            Ok(()) => INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "reading the log drains failed; retrying");
                RETRY
            }
        };
        // A timeout starts the next pass as well.
        let _ = timeout(pause, context.drains.wake.notified()).await;
    }
}

/// Reads the drains of all projects.
async fn drains(context: &ApiContext) -> Result<Vec<(ProjectRef, LogDrain)>, Error> {
    let doing = "reading the log drains";
    let sql = "select d.id, d.name, d.description, d.backend_type, d.config, d.revision, \
               d.created_at, p.ref from log_drains d join projects p on p.id = d.project_id \
               where p.desired <> 'removed' \
               order by d.created_at, d.id limit $1";
    let rows = context.db.query(sql, &[&DRAINS_MAX]).await.context(doing)?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let project: ProjectRef = row.get::<_, &str>(7).parse().context(doing)?;
        match read(row, &context.settings.sealing) {
            Ok(drain) => found.push((project, drain)),
            // One damaged row does not stop the others.
            Err(error) => tracing::error!(%project, %error, "a log drain cannot be read"),
        }
    }
    Ok(found)
}

impl Workers {
    async fn pass(&mut self, context: &ApiContext) -> Result<(), Error> {
        // Reaps workers that ended.
        while self.tasks.try_join_next().is_some() {}
        let drains = drains(context).await?;
        if drains.is_empty() && self.running.is_empty() && !context.analytics.is_open().await {
            return Ok(());
        }
        let stores = context.analytics.stores().await?;
        self.positions.set(&drains, &stores);
        let mut kept = HashSet::new();
        for (project, drain) in &drains {
            for store in &stores {
                let key = (drain.id, store.node().to_owned());
                kept.insert(key.clone());
                self.start(context, key, (project, drain), store);
            }
        }
        self.running.retain(|key, (_, task)| {
            let keep = kept.contains(key);
            if !keep {
                task.abort();
            }
            keep
        });
        context.drains.metrics.retain(|key| kept.contains(key));
        self.close_tails(&drains, &stores).await;
        Ok(())
    }

    /// Starts the worker of a drain, unless it runs with the latest settings.
    fn start(
        &mut self,
        context: &ApiContext,
        key: DrainKey,
        (project, drain): (&ProjectRef, &LogDrain),
        store: &Arc<Store>,
    ) {
        if let Some((revision, task)) = self.running.get(&key) {
            if *revision == drain.revision && !task.is_finished() {
                return;
            }
            task.abort();
        }
        let worker = Worker {
            context: context.clone(),
            project: project.clone(),
            drain: drain.clone(),
            store: Arc::downgrade(store),
            store_name: key.1.clone(),
            lanes: self.lanes.clone(),
            positions: self.positions.clone(),
            metrics: context.drains.metrics.clone(),
        };
        let task = self.tasks.spawn(worker.run());
        self.running.insert(key, (drain.revision, task));
    }

    /// Closes the tails of projects that have no drain any more.
    async fn close_tails(&mut self, drains: &[(ProjectRef, LogDrain)], stores: &[Arc<Store>]) {
        let projects: HashSet<&str> = drains.iter().map(|(project, _)| project.as_str()).collect();
        let mut absent = HashMap::new();
        for store in stores {
            for project in store.tails().await {
                if projects.contains(project.as_str()) {
                    continue;
                }
                let passes = self.absent.get(&project).copied().unwrap_or(0) + 1;
                if passes <= ABSENT_PASSES_MAX {
                    absent.insert(project, passes);
                } else if let Err(error) = store.close_tail(&project).await {
                    tracing::debug!(project, %error, "spooled log lines cannot be deleted yet");
                }
            }
        }
        self.absent = absent;
    }
}
