//! The operator's own API, for tools on this machine: what has no place among the operations, because whoever may do it decides
//! over all projects.
//!
//! It answers on a Unix socket and nowhere else: who may open its file is the operator (decision 0063). Errors are those of the
//! operations, bodies are JSON.
//!
//! | Request | Body | Answer |
//! |---|---|---|
//! | `GET /v1/projects/{ref}/upstreams` | | where its services answer: a list of `{service, url, overridden}` |
//! | `PUT /v1/projects/{ref}/upstreams/{service}` | `{"url": "http://…"}` | the same of that service, as it is now |
//! | `DELETE /v1/projects/{ref}/upstreams/{service}` | | the same, as `--upstream` says it |
//! | `GET /v1/projects/{ref}/key-check` | | whether its API keys are checked at the edge: `{enabled, overridden}` |
//! | `PUT /v1/projects/{ref}/key-check` | `{"enabled": true}` | the same, as it is now |
//! | `DELETE /v1/projects/{ref}/key-check` | | the same, as `--edge-check-keys` says it |
//!
//! A change that is answered holds on every node, and is in the organization's audit log.

use std::{
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as Trial,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper::{Method, Request, StatusCode, body::Incoming};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::{
    app::App,
    base::{error::Error, ids::ProjectRef, net::accept::Listen},
    data_plane::{
        clusters::Account,
        service_proxy::{
            key_checks, overrides,
            upstreams::{Named, Service},
        },
    },
    platform::{
        audit::Recorder,
        http,
        http::{Body, Response, client_kind::RejectedRequest, respond, server},
        notifications,
    },
};

/// Connections that wait to be taken.
const BACKLOG: u32 = 64;
/// Longest body of a request, in bytes.
const BODY_MAX: usize = 16 << 10;

/// The listening socket. Its file is there as long as it listens.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: PathBuf,
}

impl Socket {
    /// Listens at `file`, which only the owner may open; whom else is for the operator to say, with the file's mode. What a server
    /// that was killed left there is replaced.
    pub fn bind(file: &Path) -> io::Result<Self> {
        let left = file
            .symlink_metadata()
            .is_ok_and(|found| found.file_type().is_socket());
        if left
            && Trial::connect(file).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        {
            std::fs::remove_file(file)?;
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(file)?;
        // Before it listens: nobody was let in until then.
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            file: file.to_owned(),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // While it still listens: the file of another server, which comes after this one, is left alone.
        if let Err(error) = std::fs::remove_file(&self.file) {
            tracing::debug!(file = %self.file.display(), %error, "the operator's socket was removed already");
        }
    }
}

impl Listen for Socket {
    type Stream = UnixStream;
    /// The user id of who connects.
    type Peer = u32;

    async fn accept(&self) -> io::Result<(UnixStream, u32)> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        Ok((stream, uid))
    }
}

/// Answers until it is stopped.
pub async fn serve(app: App, socket: Socket, stop: server::Stop) {
    let service = move |uid| {
        let (app, name) = (app.clone(), Arc::<str>::from(name(uid)));
        server::service(move |request| answer(app.clone(), name.clone(), request))
    };
    server::serve_local(socket, service, stop).await;
}

/// Who does it, for the audit log.
fn name(uid: u32) -> String {
    let account = Account::of(uid).ok().flatten();
    account.map_or_else(|| format!("user id {uid}"), |account| account.name)
}

async fn answer(app: App, name: Arc<str>, request: Request<Incoming>) -> Response {
    let (parts, body) = request.into_parts();
    let asked = Asked::of(&parts.method, parts.uri.path());
    let operation = asked.as_ref().map_or("", Asked::operation);
    let audit = Recorder::operator(&name, &app.entropy, operation);
    let request_id = audit.request_id().to_owned();
    let outcome = async { asked?.answer(&app, Body::new(body), audit).await };
    outcome.await.unwrap_or_else(|error| {
        respond::error(
            &error,
            &RejectedRequest {
                method: &parts.method,
                uri: &parts.uri,
                request_id: &request_id,
                operation,
                challenge: None,
            },
        )
    })
}

/// What a request wants.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    List(ProjectRef),
    Set(ProjectRef, Service),
    Unset(ProjectRef, Service),
    KeyCheck(ProjectRef),
    SetKeyCheck(ProjectRef),
    UnsetKeyCheck(ProjectRef),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Address {
    url: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Switch {
    enabled: bool,
}

/// Whether the API keys of a project are checked.
#[derive(Serialize)]
struct KeyCheck {
    enabled: bool,
    /// Whether it was set for this project.
    overridden: bool,
}

/// Where a service of a project answers.
#[derive(Serialize)]
struct Told {
    service: &'static str,
    url: Option<String>,
    /// Whether that was said of this project.
    overridden: bool,
}

impl Asked {
    fn of(method: &Method, path: &str) -> Result<Self, Error> {
        let segments: Vec<_> = path.split('/').collect();
        let unknown = || Error::UnknownRoute {
            method: method.to_string(),
            path: path.to_owned(),
        };
        let [
            "",
            "v1",
            "projects",
            project,
            kind @ ("upstreams" | "key-check"),
            rest @ ..,
        ] = segments.as_slice()
        else {
            return Err(unknown());
        };
        let project = project.parse().map_err(|_| Error::NotFound)?;
        let service = |name: &str| {
            name.parse()
                .map_err(|expected| Error::invalid("service", format!("{expected}")))
        };
        match (*kind, method, rest) {
            ("upstreams", &Method::GET, []) => Ok(Self::List(project)),
            ("upstreams", &Method::PUT, [name]) => Ok(Self::Set(project, service(name)?)),
            ("upstreams", &Method::DELETE, [name]) => Ok(Self::Unset(project, service(name)?)),
            ("key-check", &Method::GET, []) => Ok(Self::KeyCheck(project)),
            ("key-check", &Method::PUT, []) => Ok(Self::SetKeyCheck(project)),
            ("key-check", &Method::DELETE, []) => Ok(Self::UnsetKeyCheck(project)),
            _ => Err(unknown()),
        }
    }

    /// What the audit log calls it: the same as the command that does it.
    const fn operation(&self) -> &'static str {
        match self {
            Self::List(_) => "gantry upstream list",
            Self::Set(..) => "gantry upstream set",
            Self::Unset(..) => "gantry upstream unset",
            Self::KeyCheck(_) => "gantry key-check list",
            Self::SetKeyCheck(_) => "gantry key-check set",
            Self::UnsetKeyCheck(_) => "gantry key-check unset",
        }
    }

    async fn answer(self, app: &App, body: Body, audit: Recorder) -> Result<Response, Error> {
        let (project, service, named) = match self {
            Self::List(project) => {
                return Ok(http::output::json(
                    StatusCode::OK,
                    &told(app, &project).await?,
                ));
            }
            Self::Set(project, service) => {
                let Address { url } = http::json::parse(&http::body::read(body, BODY_MAX).await?)?;
                let template = url
                    .parse()
                    .map_err(|expected| Error::invalid("url", format!("{expected}")))?;
                (project, service, Some(Named { service, template }))
            }
            Self::Unset(project, service) => (project, service, None),
            Self::KeyCheck(project) => return key_check(app, &project).await,
            Self::SetKeyCheck(project) => {
                let Switch { enabled } =
                    http::json::parse(&http::body::read(body, BODY_MAX).await?)?;
                return switch_key_check(app, &project, Some(enabled), audit).await;
            }
            Self::UnsetKeyCheck(project) => {
                return switch_key_check(app, &project, None, audit).await;
            }
        };
        overrides::set(
            &app.db,
            &project,
            service,
            named.as_ref(),
            &app.clock,
            audit,
        )
        .await?;
        notifications::settle(&app.db).await?;
        Ok(http::output::json(
            StatusCode::OK,
            &told(app, &project).await?[service as usize],
        ))
    }
}

/// Where each service of a project answers; the place is the service's number.
async fn told(app: &App, project: &ProjectRef) -> Result<[Told; Service::ALL.len()], Error> {
    let own = overrides::of(&app.db, project).await?;
    Ok(Service::ALL.map(|service| {
        let (said, general) = (
            own.get(service),
            app.data_plane_settings.upstreams.get(service),
        );
        Told {
            service: service.name(),
            url: said.or(general).map(ToString::to_string),
            overridden: said.is_some(),
        }
    }))
}

async fn switch_key_check(
    app: &App,
    project: &ProjectRef,
    enabled: Option<bool>,
    audit: Recorder,
) -> Result<Response, Error> {
    key_checks::set(&app.db, project, enabled, &app.clock, audit).await?;
    notifications::settle(&app.db).await?;
    key_check(app, project).await
}

async fn key_check(app: &App, project: &ProjectRef) -> Result<Response, Error> {
    let set = key_checks::of(&app.db, project).await?;
    let told = KeyCheck {
        enabled: set.unwrap_or(app.data_plane_settings.edge.check_keys),
        overridden: set.is_some(),
    };
    Ok(http::output::json(StatusCode::OK, &told))
}
