//! Log queries. An error of a customer's statement becomes part of the response; an internal
//! failure is logged.

use std::time::Duration;

use gantry_base::ids::ProjectRef;
use gantry_logs::{Answer, DEFAULT_SQL, Dialect, QueryError, Question};

use super::window::Window;
use crate::{api::context::ApiContext, platform::error::Error};

/// Retry interval sent to clients while log files are unreachable.
const RETRY_AFTER_UNREACHABLE: Duration = Duration::from_secs(10);

/// Runs a customer's statement. Returns its rows or the error of the statement.
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
        .open_store()
        .await?
        .logs
        .query(question(context, project, dialect, sql, window))
        .await;
    match &answer {
        Err(QueryError::Backend(cause)) => {
            tracing::error!(%project, cause, "log query failed");
        }
        Err(QueryError::Unavailable(cause)) => {
            tracing::warn!(%project, cause, "log files are unreachable");
        }
        Err(QueryError::Busy(retry)) => return Err(Error::Busy { retry: *retry }),
        _ => {}
    }
    Ok(answer)
}

/// Runs a statement of Gantry itself, which may read a longer range.
pub(super) async fn count(
    context: &ApiContext,
    project: &ProjectRef,
    sql: String,
    window: Window,
) -> Result<Answer, Error> {
    let answer = context
        .analytics
        .open_store()
        .await?
        .logs
        .query(question(context, project, Dialect::ClickHouse, sql, window))
        .await;
    answer.map_err(|error| match error {
        QueryError::Unavailable(cause) => {
            tracing::warn!(%project, cause, "log files are unreachable");
            Error::Unavailable {
                what: "The files of the logs cannot be read at the moment".into(),
                retry: RETRY_AFTER_UNREACHABLE,
            }
        }
        QueryError::Busy(retry) => Error::Busy { retry },
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
