//! Progress of work that a tool started, for callers that ask for it.

use std::time::Duration;

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use super::{
    arguments::Values,
    client::encoded,
    tool::{ToolContext, ToolResult},
};

/// Longest time for which work is followed. It goes on afterwards.
const WAIT_MAX: Duration = Duration::from_mins(2);
/// Pause between two looks at the work. The caller has 120 requests per minute.
const PAUSE: Duration = Duration::from_secs(2);
/// Name of the last state of the work in the result of a tool.
const STATE: &str = "state";

/// Work that a tool starts and that outlives its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LongWork {
    /// The run that creates the branch of the result.
    Creation,
    /// The run of the result, which changes the branch.
    BranchRun,
    /// The run of the result, which changes the project of the address.
    ParentRun,
    /// The start of a paused project.
    Restore,
}

/// Tools that start work.
const TOOLS: [(&str, LongWork); 5] = [
    ("create_branch", LongWork::Creation),
    ("merge_branch", LongWork::ParentRun),
    ("reset_branch", LongWork::BranchRun),
    ("rebase_branch", LongWork::BranchRun),
    ("restore_project", LongWork::Restore),
];

impl LongWork {
    fn of_tool(name: &str) -> Option<Self> {
        let found = TOOLS.iter().find(|(tool, _)| *tool == name);
        found.map(|(_, work)| *work)
    }

    /// Returns the path of the operation that shows the work. Returns `None` if the caller may not
    /// read it, or if the address does not name the project of a merge.
    async fn path(self, context: &ToolContext, values: &Values, started: &Value) -> Option<String> {
        let run = started.get("workflow_run_id").and_then(Value::as_str);
        match self {
            Self::Creation => {
                let branch = started.get("project_ref").and_then(Value::as_str)?;
                let path = format!("/v1/projects/{}/actions", encoded(branch));
                let runs = context.client.get(&path).await.ok()?;
                let run = runs.get(0)?.get("id").and_then(Value::as_str)?;
                Some(run_path(branch, run))
            }
            Self::BranchRun => {
                let path = format!("/v1/branches/{}", encoded(values.text("branch_id").ok()?));
                let branch = context.client.get(&path).await.ok()?;
                let branch = branch.get("ref").and_then(Value::as_str)?;
                Some(run_path(branch, run?))
            }
            Self::ParentRun => {
                let parent = context.selection.project.as_ref()?;
                Some(run_path(parent.as_str(), run?))
            }
            Self::Restore => {
                let project = encoded(values.text("project_id").ok()?);
                Some(format!("/v1/projects/{project}"))
            }
        }
    }

    fn progress(self, state: &Value) -> WorkProgress {
        match self {
            Self::Creation | Self::BranchRun | Self::ParentRun => WorkProgress::of_run(state),
            Self::Restore => WorkProgress::of_restore(state),
        }
    }
}

fn run_path(project: &str, run: &str) -> String {
    format!("/v1/projects/{}/actions/{}", encoded(project), encoded(run))
}

/// A state of work.
#[derive(Debug, PartialEq, Eq)]
struct WorkProgress {
    /// Number of steps that have ended.
    done: u32,
    /// Number of all steps.
    total: u32,
    /// The step under way, or the end.
    step: String,
    has_ended: bool,
}

impl WorkProgress {
    /// Reads an action run. It ends with its last step, or with one that failed.
    fn of_run(run: &Value) -> Self {
        let steps = run.get("run_steps").and_then(Value::as_array);
        let text = |step: &Value, name: &str| -> String {
            let value = step.get(name).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let mut progress = Self {
            done: 0,
            total: 0,
            step: String::new(),
            has_ended: false,
        };
        for step in steps.into_iter().flatten() {
            progress.total += 1;
            match text(step, "status").as_str() {
                // A paused step is one that the run leaves out.
                "EXITED" | "PAUSED" => progress.done += 1,
                "DEAD" => {
                    progress.step = format!("{} failed", text(step, "name"));
                    progress.has_ended = true;
                    return progress;
                }
                _ if progress.step.is_empty() => progress.step = text(step, "name"),
                _ => {}
            }
        }
        if progress.done == progress.total {
            "finished".clone_into(&mut progress.step);
            progress.has_ended = true;
        }
        progress
    }

    /// Reads a project that is restored.
    fn of_restore(project: &Value) -> Self {
        let status = project.get("status").and_then(Value::as_str);
        let status = status.unwrap_or_default();
        let has_ended = matches!(
            status,
            "ACTIVE_HEALTHY" | "ACTIVE_UNHEALTHY" | "RESTORE_FAILED"
        );
        Self {
            done: u32::from(has_ended),
            total: 1,
            step: status.to_owned(),
            has_ended,
        }
    }
}

/// Sends notifications about the progress of a call.
#[derive(Clone)]
pub(super) struct ProgressReporter {
    request: RequestContext<RoleServer>,
    token: ProgressToken,
}

impl ProgressReporter {
    /// Returns the reporter of a request. Returns `None` if it does not ask for progress.
    pub(super) fn new(request: &RequestContext<RoleServer>) -> Option<Self> {
        let token = request.meta.get_progress_token()?;
        Some(Self {
            request: request.clone(),
            token,
        })
    }

    /// Reports the steps of the work of a tool until it ends, for at most [`WAIT_MAX`], and adds
    /// its last state to the result. A closed connection ends the waiting, not the work.
    pub(super) async fn follow(
        &self,
        tool: &str,
        context: &ToolContext,
        values: &Values,
        result: &mut ToolResult,
    ) {
        let (Some(work), ToolResult::Value(started)) = (LongWork::of_tool(tool), result) else {
            return;
        };
        let mut last = None;
        {
            let reported = self.report(work, context, values, started, &mut last);
            tokio::select! {
                () = self.request.ct.cancelled() => {}
                _ = tokio::time::timeout(WAIT_MAX, reported) => {}
            }
        }
        if let (Some(state), Value::Object(fields)) = (last, started) {
            fields.insert(STATE.to_owned(), state);
        }
    }

    async fn report(
        &self,
        work: LongWork,
        context: &ToolContext,
        values: &Values,
        started: &Value,
        last: &mut Option<Value>,
    ) {
        let Some(path) = work.path(context, values, started).await else {
            return;
        };
        let mut reported = None;
        let mut looks = tokio::time::interval(PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            // The rate limit of the caller ends the waiting, not the work.
            let Ok(state) = context.client.get(&path).await else {
                return;
            };
            let progress = work.progress(&state);
            *last = Some(state);
            // Each notification has to report more than the one before.
            if reported.is_none_or(|done| done < progress.done) {
                reported = Some(progress.done);
                if !self.notify(&progress).await {
                    return;
                }
            }
            if progress.has_ended {
                return;
            }
        }
    }

    /// Sends a notification. Returns whether the client is still there.
    async fn notify(&self, progress: &WorkProgress) -> bool {
        let notification =
            ProgressNotificationParam::new(self.token.clone(), f64::from(progress.done))
                .with_total(f64::from(progress.total))
                .with_message(progress.step.clone());
        let sent = self.request.peer.notify_progress(notification).await;
        sent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::catalog;

    fn run(steps: &[(&str, &str)]) -> WorkProgress {
        let step = |(name, status): &(&str, &str)| json!({"name": name, "status": status});
        let steps: Vec<Value> = steps.iter().map(step).collect();
        WorkProgress::of_run(&json!({ "run_steps": steps }))
    }

    fn expected(done: u32, total: u32, step: &str, has_ended: bool) -> WorkProgress {
        WorkProgress {
            done,
            total,
            step: step.to_owned(),
            has_ended,
        }
    }

    #[test]
    fn runs_end_with_all_steps_or_a_failed_one() {
        let steps = [
            ("clone", "EXITED"),
            ("migrate", "RUNNING"),
            ("seed", "CREATED"),
        ];
        assert_eq!(run(&steps), expected(1, 3, "migrate", false));
        let steps = [("clone", "EXITED"), ("configure", "PAUSED")];
        assert_eq!(run(&steps), expected(2, 2, "finished", true));
        let steps = [
            ("clone", "EXITED"),
            ("migrate", "DEAD"),
            ("seed", "CREATED"),
        ];
        assert_eq!(run(&steps), expected(1, 2, "migrate failed", true));
    }

    #[test]
    fn restores_end_when_the_project_is_settled() {
        for (status, has_ended) in [
            ("INACTIVE", false),
            ("RESTORING", false),
            ("ACTIVE_HEALTHY", true),
            ("RESTORE_FAILED", true),
        ] {
            let progress = WorkProgress::of_restore(&json!({ "status": status }));
            assert_eq!(progress.has_ended, has_ended, "{status}");
        }
    }

    #[test]
    fn tools_that_start_work_exist() {
        for (name, _) in TOOLS {
            let mut tools = catalog::all().iter();
            assert!(tools.any(|tool| tool.name == name), "{name}");
        }
    }
}
