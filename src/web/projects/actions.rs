//! Pause, restore, restart and delete a project. Pausing and deleting require the name of the
//! project as confirmation.

use askama::Template;
use gantry_base::ids::ProjectRef;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::{project::ProjectResponse, show};
use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        form::NoFields,
        page::{Layout, PageResponse, SessionForm, Visitor, page},
        path::PathProject,
        permissions::PermissionCheck,
    },
};

/// Declares a confirmation page.
const fn confirmation(
    id: &'static str,
    path: &'static str,
    handler: fn() -> crate::platform::http::endpoint::MountedHandler,
) -> Endpoint {
    page(id, "Confirm an action", Verb::Get, path, handler)
}

pub(in crate::web) static CONFIRM_PAUSE: Endpoint = confirmation(
    "page-ask-pause-project",
    "/projects/{project}/pause",
    || mount(confirm_pause),
);
pub(in crate::web) static CONFIRM_RESTART: Endpoint = confirmation(
    "page-ask-restart-project",
    "/projects/{project}/restart",
    || mount(confirm_restart),
);
pub(in crate::web) static CONFIRM_DELETE: Endpoint = confirmation(
    "page-ask-delete-project",
    "/projects/{project}/delete",
    || mount(confirm_delete),
);
pub(in crate::web) static PAUSE: Endpoint = page(
    "page-pause-project",
    "Pause a project",
    Verb::Post,
    "/projects/{project}/pause",
    || mount(pause),
);
pub(in crate::web) static RESTART: Endpoint = page(
    "page-restart-project",
    "Restart a project",
    Verb::Post,
    "/projects/{project}/restart",
    || mount(restart),
);
pub(in crate::web) static DELETE: Endpoint = page(
    "page-delete-project",
    "Delete a project",
    Verb::Post,
    "/projects/{project}/delete",
    || mount(delete),
);
pub(in crate::web) static RESTORE: Endpoint = page(
    "page-restore-project",
    "Restore a project",
    Verb::Post,
    "/projects/{project}/restore",
    || mount(restore),
);
pub(in crate::web) static CANCEL: Endpoint = page(
    "page-cancel-restore",
    "Cancel a restore",
    Verb::Post,
    "/projects/{project}/cancel",
    || mount(cancel),
);

/// An action that has to be confirmed.
struct ConfirmedAction {
    /// Last segment of the path of its page, and value of `done` afterwards.
    name: &'static str,
    title: &'static str,
    text: &'static str,
    button: &'static str,
    cancel: &'static str,
    /// Whether the name of the project has to be typed.
    requires_name: bool,
    method: Method,
    /// The path of the operation, below the path of the project.
    operation: &'static str,
}

const PAUSE_ACTION: ConfirmedAction = ConfirmedAction {
    name: "pause",
    title: "Pause this project?",
    text: "The database stops and its connections are closed. The data is kept. You can restore the project at any time.",
    button: "Pause project",
    cancel: "Cancel",
    requires_name: true,
    method: Method::POST,
    operation: "/pause",
};

const RESTART_ACTION: ConfirmedAction = ConfirmedAction {
    name: "restart",
    title: "Restart this project?",
    text: "The database is unavailable for a few seconds. Connections are closed and uncommitted transactions are rolled back.",
    button: "Restart project",
    cancel: "Cancel",
    requires_name: false,
    method: Method::POST,
    operation: "/restart",
};

const DELETE_ACTION: ConfirmedAction = ConfirmedAction {
    name: "delete",
    title: "Delete this project?",
    text: "The database stops and the project disappears from all lists. As long as the operator keeps deleted projects, it can be restored with the API; afterwards its data cannot be brought back.",
    button: "Delete project",
    cancel: "Cancel",
    requires_name: true,
    method: Method::DELETE,
    operation: "",
};

#[derive(Template)]
#[template(path = "project_confirm.html")]
struct ConfirmationPage<'a> {
    layout: Layout,
    project: ProjectResponse,
    action: &'a ConfirmedAction,
    permission: PermissionCheck,
    /// Whether the typed name was wrong.
    wrong_name: bool,
}

fn operation_path(action: &ConfirmedAction, reference: &ProjectRef) -> String {
    format!("/v1/projects/{reference}{}", action.operation)
}

async fn show_confirmation(
    visitor: &Visitor,
    reference: &ProjectRef,
    action: &ConfirmedAction,
    wrong_name: bool,
) -> Result<PageResponse, Error> {
    let project = ProjectResponse::load(visitor, reference).await?;
    let permission = visitor
        .check(action.method.as_str(), &operation_path(action, reference))
        .await?;
    let layout = visitor.layout().at_path(&format!("/projects/{reference}"));
    let page = ConfirmationPage {
        layout,
        project,
        action,
        permission,
        wrong_name,
    };
    PageResponse::form(&page, wrong_name)
}

async fn confirm_pause(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    show_confirmation(&visitor, &reference, &PAUSE_ACTION, false).await
}

async fn confirm_restart(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    show_confirmation(&visitor, &reference, &RESTART_ACTION, false).await
}

async fn confirm_delete(
    visitor: Visitor,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    show_confirmation(&visitor, &reference, &DELETE_ACTION, false).await
}

/// The confirmation form.
#[derive(Deserialize)]
struct ConfirmationForm {
    /// The typed name of the project.
    #[serde(default)]
    name: String,
}

async fn perform_confirmed(
    visitor: Visitor,
    form: ConfirmationForm,
    reference: ProjectRef,
    action: &ConfirmedAction,
) -> Result<PageResponse, Error> {
    if action.requires_name {
        let project = ProjectResponse::load(&visitor, &reference).await?;
        if project.name.trim() != form.name.trim() {
            visitor.skip_audit();
            return show_confirmation(&visitor, &reference, action, true).await;
        }
    }
    perform(
        &visitor,
        &reference,
        action.method.clone(),
        action.operation,
        action.name,
    )
    .await
}

/// Calls the operation. If the status of the project does not permit it, shows the project with the
/// message.
async fn perform(
    visitor: &Visitor,
    reference: &ProjectRef,
    method: Method,
    operation: &str,
    name: &str,
) -> Result<PageResponse, Error> {
    match visitor
        .call::<Value>(
            method,
            &format!("/v1/projects/{reference}{operation}"),
            None,
        )
        .await
    {
        Ok(_) if name == "delete" => PageResponse::redirect("/projects?done=deleted"),
        Ok(_) => PageResponse::redirect(&format!("/projects/{reference}?done={name}")),
        Err(Error::Rejected(text)) => {
            let page = show::load(visitor, reference, false, Some(format!("{text}."))).await?;
            Ok(PageResponse::page(&page)?.status(StatusCode::CONFLICT))
        }
        Err(error) => Err(error),
    }
}

async fn pause(
    visitor: Visitor,
    SessionForm(form): SessionForm<ConfirmationForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    perform_confirmed(visitor, form, reference, &PAUSE_ACTION).await
}

async fn restart(
    visitor: Visitor,
    SessionForm(form): SessionForm<ConfirmationForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    perform_confirmed(visitor, form, reference, &RESTART_ACTION).await
}

async fn delete(
    visitor: Visitor,
    SessionForm(form): SessionForm<ConfirmationForm>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    perform_confirmed(visitor, form, reference, &DELETE_ACTION).await
}

async fn restore(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    perform(&visitor, &reference, Method::POST, "/restore", "restore").await
}

async fn cancel(
    visitor: Visitor,
    _: SessionForm<NoFields>,
    PathProject(reference): PathProject,
) -> Result<PageResponse, Error> {
    perform(
        &visitor,
        &reference,
        Method::POST,
        "/restore/cancel",
        "cancel",
    )
    .await
}
