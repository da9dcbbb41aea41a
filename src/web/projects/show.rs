//! One project: its state, how to connect, its keys, and what can be done with it.

use askama::Template;
use serde::Deserialize;

use super::{Detail, hostname::Hostname};
use crate::{
    base::{error::Error, ids::ProjectRef},
    data_plane::projects::{Command, Status},
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, may::May, named::InProject, page, words::Moment},
};

pub(in crate::web) static SHOW: Endpoint = page(
    "page-project",
    "A project",
    Verb::Get,
    "/projects/{project}",
    Access::Caller,
    || mount(show),
);
pub(in crate::web) static KEYS: Endpoint = page(
    "page-show-keys",
    "Show a project's API keys",
    Verb::Post,
    "/projects/{project}/keys",
    Access::Caller,
    || mount(show_keys),
);

/// Where clients of PostgreSQL connect.
#[derive(Deserialize)]
struct Pooler {
    db_port: u16,
    connection_string: String,
}

struct Strings {
    direct: String,
    shared: String,
}

/// An API key; in clear only if that was asked for.
#[derive(Deserialize)]
struct Key {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "api_key")]
    text: String,
}

#[derive(Deserialize)]
struct ServiceHealth {
    error: Option<String>,
}

#[derive(Template)]
#[template(path = "project.html")]
pub(super) struct Page {
    frame: Frame,
    project: Detail,
    created: Moment,
    /// Why it is not well.
    cause: Option<String>,
    may_connect: May,
    strings: Option<Strings>,
    may_see_keys: May,
    may_reveal_keys: May,
    keys: Vec<Key>,
    revealed: bool,
    /// Pages about what it logs, by the last part of their paths, that would show something.
    watch: Vec<(&'static str, &'static str)>,
    hostname: Option<Hostname>,
    may: May,
    problem: Option<String>,
}

impl Page {
    /// Whether it has to be looked at again soon.
    fn moves(&self) -> bool {
        !self.project.status.is_settled()
    }

    fn can(&self, action: &str) -> bool {
        let command = match action {
            "pause" => Command::Pause,
            "restore" => Command::Restore,
            "cancel" => Command::CancelRestore,
            _ => Command::Restart,
        };
        command.fits(self.project.status)
    }

    fn can_be_deleted(&self) -> bool {
        !matches!(
            self.project.status,
            Status::Pausing | Status::GoingDown | Status::Removed
        )
    }

    fn leaves(&self) -> bool {
        matches!(self.project.status, Status::GoingDown | Status::Removed)
    }
}

async fn show(visitor: Visitor, InProject(reference): InProject) -> Result<Answer, Error> {
    Answer::page(&load(&visitor, &reference, false, None).await?)
}

#[derive(Deserialize)]
struct Nothing {}

/// Shows them in this very answer, which has no address of its own.
async fn show_keys(
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
    InProject(reference): InProject,
) -> Result<Answer, Error> {
    let mut page = load(&visitor, &reference, true, None).await?;
    page.frame = page.frame.of(&format!("/projects/{reference}"));
    Answer::page(&page)
}

/// The page, with `problem` if something was just refused.
pub(super) async fn load(
    visitor: &Visitor,
    reference: &ProjectRef,
    reveal: bool,
    problem: Option<String>,
) -> Result<Page, Error> {
    let project = Detail::of(visitor, reference).await?;
    let at = |rest: &str| format!("/v1/projects/{reference}{rest}");
    let may_connect = visitor.may("GET", &at("/config/database/pooler")).await?;
    let may_see_keys = visitor.may("GET", &at("/api-keys")).await?;
    let may_reveal_keys = visitor
        .may_query("GET", &at("/api-keys"), "reveal=true")
        .await?;
    let may = visitor.may("DELETE", &at("")).await?;
    let created = Moment::new(project.created_at, visitor.context.clock.now());
    let mut page = Page {
        frame: visitor.frame(),
        created,
        cause: None,
        may_connect,
        strings: None,
        may_see_keys,
        may_reveal_keys,
        keys: Vec::new(),
        revealed: reveal,
        watch: watch(visitor, reference).await?,
        hostname: None,
        may,
        problem,
        project,
    };
    if page.leaves() {
        return Ok(page);
    }
    if page.project.state().1 == "bad" && visitor.may("GET", &at("/health")).await?.yes() {
        page.cause = unless_rejected(
            visitor
                .get::<Vec<ServiceHealth>>(&at("/health?services=db&timeout_ms=500"))
                .await,
        )?
        .and_then(|services| services.into_iter().find_map(|service| service.error));
    }
    if page.may_connect.yes() {
        let poolers = unless_rejected(
            visitor
                .get::<Vec<Pooler>>(&at("/config/database/pooler"))
                .await,
        )?
        .unwrap_or_default();
        page.strings = poolers.into_iter().next().map(|pooler| Strings {
            direct: format!(
                "postgresql://postgres:[YOUR-PASSWORD]@{}:{}/postgres",
                page.project.database.host, pooler.db_port
            ),
            shared: pooler.connection_string,
        });
    }
    if page.may_see_keys.yes() {
        let path = at(if reveal {
            "/api-keys?reveal=true"
        } else {
            "/api-keys"
        });
        page.keys = unless_rejected(visitor.get(&path).await)?.unwrap_or_default();
    }
    let path = at("/config/custom-hostname");
    if visitor.may("GET", &path).await?.yes() {
        page.hostname = unless_rejected(visitor.get(&path).await)?;
    }
    Ok(page)
}

/// Where the visitor may see something of what the project logs.
async fn watch(
    visitor: &Visitor,
    reference: &ProjectRef,
) -> Result<Vec<(&'static str, &'static str)>, Error> {
    let mut found = Vec::new();
    for (page, said, operation) in [
        ("logs", "Logs", "endpoints/logs"),
        ("usage", "Usage", "endpoints/usage.api-counts"),
        ("ingest-keys", "Ingest keys", "ingest-keys"),
    ] {
        if visitor
            .may(
                "GET",
                &format!("/v1/projects/{reference}/analytics/{operation}"),
            )
            .await?
            .yes()
        {
            found.push((page, said));
        }
    }
    Ok(found)
}

/// What an operation answers, or nothing where the project's state forbids it: that is shown anyway.
fn unless_rejected<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Rejected(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
