//! Asks about a project's lines. What is wrong with a statement is an answer; what is wrong with us is logged.

use std::time::Duration;

use gantry_logs::{Answer, DEFAULT_SQL, Dialect, QueryError, Question};

use super::window::Window;
use crate::{
    api::context::ApiContext,
    base::{error::Error, ids::ProjectRef},
};

/// When to ask again for what is counted, while files cannot be read.
const AWAY: Duration = Duration::from_secs(10);

/// The answer to a customer's statement, or what is wrong with it.
pub(super) async fn ask(
    context: &ApiContext,
    project: &ProjectRef,
    dialect: Dialect,
    sql: Option<&str>,
    window: Window,
) -> Result<Result<Answer, QueryError>, Error> {
    let (dialect, sql) = match sql.map(str::trim).filter(|sql| !sql.is_empty()) {
        Some(sql) => (dialect, sql.to_owned()),
        None => (Dialect::BigQuery, DEFAULT_SQL.to_owned()),
    };
    let answer = context
        .analytics
        .opened()
        .await?
        .logs
        .query(question(context, project, dialect, sql, window))
        .await;
    match &answer {
        Err(QueryError::Backend(cause)) => {
            tracing::error!(%project, cause, "a question about logs could not be answered")
        }
        Err(QueryError::Unavailable(cause)) => {
            tracing::warn!(%project, cause, "files of log lines could not be read")
        }
        _ => {}
    }
    Ok(answer)
}

/// The answer to a statement of ours, which may look back further.
pub(super) async fn count(
    context: &ApiContext,
    project: &ProjectRef,
    sql: String,
    window: Window,
) -> Result<Answer, Error> {
    let answer = context
        .analytics
        .opened()
        .await?
        .logs
        .query(question(context, project, Dialect::ClickHouse, sql, window))
        .await;
    answer.map_err(|error| match error {
        QueryError::Unavailable(cause) => {
            tracing::warn!(%project, cause, "files of log lines could not be read");
            Error::Unavailable {
                what: "The files of the logs cannot be read at the moment".into(),
                retry: AWAY,
            }
        }
        QueryError::Backend(cause) => Error::internal("counting log lines", cause),
        error => Error::internal("counting log lines", error),
    })
}

fn question(
    context: &ApiContext,
    project: &ProjectRef,
    dialect: Dialect,
    sql: String,
    window: Window,
) -> Question {
    let (after, until) = (
        window.start.timestamp_micros(),
        window.end.timestamp_micros(),
    );
    Question {
        project: project.to_string(),
        dialect,
        sql,
        after,
        until,
        now: context.clock.now().timestamp_micros(),
    }
}
