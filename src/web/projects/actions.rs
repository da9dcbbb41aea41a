//! Pausing, restoring, restarting and deleting a project. What takes it away from its users asks for its name first.

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::{Detail, show};
use crate::{
    base::{error::Error, ids::ProjectRef},
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, may::May, named::InProject, page},
};

/// The page that asks.
const fn question(
    id: &'static str,
    path: &'static str,
    handler: fn() -> crate::platform::http::endpoint::MountedHandler,
) -> Endpoint {
    page(id, "Really?", Verb::Get, path, Access::Caller, handler)
}

pub(in crate::web) static ASK_PAUSE: Endpoint = question(
    "page-ask-pause-project",
    "/projects/{project}/pause",
    || mount(ask_pause),
);
pub(in crate::web) static ASK_RESTART: Endpoint = question(
    "page-ask-restart-project",
    "/projects/{project}/restart",
    || mount(ask_restart),
);
pub(in crate::web) static ASK_DELETE: Endpoint = question(
    "page-ask-delete-project",
    "/projects/{project}/delete",
    || mount(ask_delete),
);
pub(in crate::web) static PAUSE: Endpoint = page(
    "page-pause-project",
    "Pause a project",
    Verb::Post,
    "/projects/{project}/pause",
    Access::Caller,
    || mount(pause),
);
pub(in crate::web) static RESTART: Endpoint = page(
    "page-restart-project",
    "Restart a project",
    Verb::Post,
    "/projects/{project}/restart",
    Access::Caller,
    || mount(restart),
);
pub(in crate::web) static DELETE: Endpoint = page(
    "page-delete-project",
    "Delete a project",
    Verb::Post,
    "/projects/{project}/delete",
    Access::Caller,
    || mount(delete),
);
pub(in crate::web) static RESTORE: Endpoint = page(
    "page-restore-project",
    "Restore a project",
    Verb::Post,
    "/projects/{project}/restore",
    Access::Caller,
    || mount(restore),
);
pub(in crate::web) static CANCEL: Endpoint = page(
    "page-cancel-restore",
    "Cancel a restore",
    Verb::Post,
    "/projects/{project}/cancel",
    Access::Caller,
    || mount(cancel),
);

/// What is asked about before it is done.
struct Action {
    /// Last part of its page's path, and the word for what was done.
    word: &'static str,
    title: &'static str,
    text: &'static str,
    button: &'static str,
    keep: &'static str,
    /// Whether the project's name has to be typed.
    typed: bool,
    method: Method,
    /// The operation, below the project's path.
    operation: &'static str,
}

const ASKED_PAUSE: Action = Action {
    word: "pause",
    title: "Pause this project?",
    text: "Its database stops, and whatever uses it is cut off. The data is kept; restoring takes a moment.",
    button: "Pause project",
    keep: "Let it run",
    typed: true,
    method: Method::POST,
    operation: "/pause",
};

const ASKED_RESTART: Action = Action {
    word: "restart",
    title: "Restart this project?",
    text: "Its database is away for a few seconds. Connections are closed, and what was not committed is lost.",
    button: "Restart project",
    keep: "Let it run",
    typed: false,
    method: Method::POST,
    operation: "/restart",
};

const ASKED_DELETE: Action = Action {
    word: "delete",
    title: "Delete this project?",
    text: "Its database and everything in it is removed for good. This cannot be undone.",
    button: "Delete project",
    keep: "Keep it",
    typed: true,
    method: Method::DELETE,
    operation: "",
};

#[derive(Template)]
#[template(path = "project_ask.html")]
struct Question<'a> {
    frame: Frame,
    project: Detail,
    action: &'a Action,
    may: May,
    /// What is wrong with the name that was typed.
    wrong: bool,
}

fn path(action: &Action, reference: &ProjectRef) -> String {
    format!("/v1/projects/{reference}{}", action.operation)
}

async fn ask(
    visitor: &Visitor,
    reference: &ProjectRef,
    action: &Action,
    wrong: bool,
) -> Result<Answer, Error> {
    let project = Detail::of(visitor, reference).await?;
    let may = visitor
        .may(action.method.as_str(), &path(action, reference))
        .await?;
    let frame = visitor.frame().of(&format!("/projects/{reference}"));
    let status = if wrong {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    Ok(Answer::page(&Question {
        frame,
        project,
        action,
        may,
        wrong,
    })?
    .status(status))
}

async fn ask_pause(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    ask(&visitor, &reference, &ASKED_PAUSE, false).await
}

async fn ask_restart(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    ask(&visitor, &reference, &ASKED_RESTART, false).await
}

async fn ask_delete(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    ask(&visitor, &reference, &ASKED_DELETE, false).await
}

/// What is typed to show that one means it.
#[derive(Deserialize)]
struct Sure {
    #[serde(default)]
    name: String,
}

async fn confirmed(
    visitor: Visitor,
    sure: Sure,
    reference: ProjectRef,
    action: &Action,
) -> Result<Answer, Error> {
    if action.typed && Detail::of(&visitor, &reference).await?.name.trim() != sure.name.trim() {
        visitor.only_looks();
        return ask(&visitor, &reference, action, true).await;
    }
    perform(
        &visitor,
        &reference,
        action.method.clone(),
        action.operation,
        action.word,
    )
    .await
}

/// Asks the operation. If the state forbids it, the project's page says so.
async fn perform(
    visitor: &Visitor,
    reference: &ProjectRef,
    method: Method,
    operation: &str,
    word: &str,
) -> Result<Answer, Error> {
    match visitor
        .ask::<Value>(
            method,
            &format!("/v1/projects/{reference}{operation}"),
            None,
        )
        .await
    {
        Ok(_) if word == "delete" => Answer::to("/projects?done=deleted"),
        Ok(_) => Answer::to(&format!("/projects/{reference}?done={word}")),
        Err(Error::Rejected(text)) => {
            let page = show::load(visitor, reference, false, Some(format!("{text}."))).await?;
            Ok(Answer::page(&page)?.status(StatusCode::CONFLICT))
        }
        Err(error) => Err(error),
    }
}

async fn pause(
    visitor: Visitor,
    Form(sure): Form<Sure>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    confirmed(visitor, sure, reference, &ASKED_PAUSE).await
}

async fn restart(
    visitor: Visitor,
    Form(sure): Form<Sure>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    confirmed(visitor, sure, reference, &ASKED_RESTART).await
}

async fn delete(
    visitor: Visitor,
    Form(sure): Form<Sure>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    confirmed(visitor, sure, reference, &ASKED_DELETE).await
}

#[derive(Deserialize)]
struct Nothing {}

async fn restore(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    perform(&visitor, &reference, Method::POST, "/restore", "restore").await
}

async fn cancel(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    perform(
        &visitor,
        &reference,
        Method::POST,
        "/restore/cancel",
        "cancel",
    )
    .await
}
