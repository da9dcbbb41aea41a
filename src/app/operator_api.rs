//! The operator API: JSON operations for local tools that concern all projects.
//!
//! It is served on a Unix socket only. Access to the socket file is the authorization (decision
//! 0063). Errors have the same format as those of the Management API.
//!
//! | Request | Body | Response |
//! |---|---|---|
//! | `GET /v1/projects/{ref}/upstreams` | | upstream URLs of the project: a list of `{service, url, overridden}` |
//! | `PUT /v1/projects/{ref}/upstreams/{service}` | `{"url": "http://…"}` | the new entry of this service |
//! | `DELETE /v1/projects/{ref}/upstreams/{service}` | | the entry of this service, with the URL of `--upstream` |
//! | `GET /v1/projects/{ref}/key-check` | | the API key check of the project: `{enabled, overridden}` |
//! | `PUT /v1/projects/{ref}/key-check` | `{"enabled": true}` | the new setting |
//! | `DELETE /v1/projects/{ref}/key-check` | | the setting of `--edge-check-keys` |
//!
//! A response is sent after every node has applied the change and the audit entry is written to the
//! log of the organization.

use std::{
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream as ProbeStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_base::{ids::ProjectRef, net::accept::Listener};
use gantry_node::{kits::Service, supervisor::Account};
use hyper::{Method, Request, StatusCode, body::Incoming};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::{
    app::App,
    control::operator_settings::{key_checks, upstreams},
    platform::{
        audit::Recorder,
        error::Error,
        http::{self, Body, Response, client_kind::RejectedRequest, respond, server},
        notifications,
    },
    proxy::service_proxy::upstreams::ServiceUpstream,
};

/// Length of the queue of connections that are not accepted yet.
const BACKLOG: u32 = 64;
/// Maximum size of a request body, in bytes.
const BODY_MAX: usize = 16 << 10;

/// The listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: PathBuf,
}

impl Socket {
    /// Listens at `file` with mode 0600. The operator can change the mode to permit other accounts.
    /// A stale file of a killed server is replaced.
    pub fn bind(file: &Path) -> io::Result<Self> {
        let left = file
            .symlink_metadata()
            .is_ok_and(|found| found.file_type().is_socket());
        if left
            && ProbeStream::connect(file)
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        {
            std::fs::remove_file(file)?;
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(file)?;
        // Before `listen`: no connection is accepted with the default mode.
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            file: file.to_owned(),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Removed while the socket still listens, so that the file of a later server is kept.
        if let Err(error) = std::fs::remove_file(&self.file) {
            tracing::debug!(file = %self.file.display(), %error, "operator socket was already removed");
        }
    }
}

impl Listener for Socket {
    type Stream = UnixStream;
    /// User id of the client.
    type Peer = u32;

    async fn accept(&self) -> io::Result<(UnixStream, u32)> {
        let (stream, _) = self.listener.accept().await?;
        let uid = stream.peer_cred()?.uid();
        Ok((stream, uid))
    }
}

/// Serves requests until `shutdown` is cancelled.
pub async fn serve(app: App, socket: Socket, shutdown: CancellationToken) {
    let service = move |uid| {
        let app = app.clone();
        let name = Arc::<str>::from(name(uid));
        server::service(move |request| answer(app.clone(), name.clone(), request))
    };
    server::serve_local(socket, service, shutdown).await;
}

/// Returns the account name of the client, for the audit log.
fn name(uid: u32) -> String {
    let account = Account::of(uid).ok().flatten();
    account.map_or_else(|| format!("user id {uid}"), |account| account.name)
}

async fn answer(app: App, name: Arc<str>, request: Request<Incoming>) -> Response {
    let (parts, body) = request.into_parts();
    let parsed = OperatorRequest::of(&parts.method, parts.uri.path());
    let operation = parsed.as_ref().map_or("", OperatorRequest::operation);
    let audit = Recorder::operator(&name, &app.entropy, operation);
    let request_id = audit.request_id().to_owned();
    let outcome = async { parsed?.answer(&app, Body::new(body), audit).await };
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

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
enum OperatorRequest {
    List(ProjectRef),
    Set(ProjectRef, Service),
    Unset(ProjectRef, Service),
    KeyCheck(ProjectRef),
    SetKeyCheck(ProjectRef),
    UnsetKeyCheck(ProjectRef),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpstreamBody {
    url: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeyCheckBody {
    enabled: bool,
}

/// The API key check of a project.
#[derive(Serialize)]
struct KeyCheckState {
    enabled: bool,
    /// Whether an override for this project applies.
    overridden: bool,
}

/// Upstream URL of a service of a project.
#[derive(Serialize)]
struct UpstreamEntry {
    service: &'static str,
    url: Option<String>,
    /// Whether an override for this project applies.
    overridden: bool,
}

impl OperatorRequest {
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

    /// Returns the name of the operation in the audit log: that of the equivalent command.
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
                    &upstream_entries(app, &project).await?,
                ));
            }
            Self::Set(project, service) => {
                let UpstreamBody { url } =
                    http::json::parse(&http::body::read(body, BODY_MAX).await?)?;
                let template = url
                    .parse()
                    .map_err(|expected| Error::invalid("url", format!("{expected}")))?;
                (
                    project,
                    service,
                    Some(ServiceUpstream { service, template }),
                )
            }
            Self::Unset(project, service) => (project, service, None),
            Self::KeyCheck(project) => return key_check(app, &project).await,
            Self::SetKeyCheck(project) => {
                let KeyCheckBody { enabled } =
                    http::json::parse(&http::body::read(body, BODY_MAX).await?)?;
                return switch_key_check(app, &project, Some(enabled), audit).await;
            }
            Self::UnsetKeyCheck(project) => {
                return switch_key_check(app, &project, None, audit).await;
            }
        };
        upstreams::set(
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
            &upstream_entries(app, &project).await?[service as usize],
        ))
    }
}

/// Returns the upstream URLs of a project, indexed by service number.
async fn upstream_entries(
    app: &App,
    project: &ProjectRef,
) -> Result<[UpstreamEntry; Service::ALL.len()], Error> {
    let own = upstreams::of(&app.db, project).await?;
    Ok(Service::ALL.map(|service| {
        let set = own.get(service);
        let default = app.control_settings.service_proxy.upstreams.get(service);
        UpstreamEntry {
            service: service.name(),
            url: set.or(default).map(ToString::to_string),
            overridden: set.is_some(),
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
    let entry = KeyCheckState {
        enabled: set.unwrap_or(app.control_settings.service_proxy.check_keys),
        overridden: set.is_some(),
    };
    Ok(http::output::json(StatusCode::OK, &entry))
}
