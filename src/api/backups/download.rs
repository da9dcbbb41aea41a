//! Download of a backup as an archive that plain PostgreSQL starts from.
//!
//! A request returns a link that is valid for a short time. The archive is a `tar` of a data
//! directory with the write-ahead log up to the end of the backup. `postgres -D` recovers it; no
//! other program is needed.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use http::{HeaderValue, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    api::context::ApiContext,
    control::backups::{
        error::BackupError,
        export::{self, ExportedBackup},
    },
    platform::{
        access::{Access, OauthScope as S, Permission as P, Project, needs},
        error::{Context as _, Error},
        http::{
            Endpoint, Json, Query, Tag, Verb,
            body::{Body, BodyError, Response},
            mount,
            operation_doc::OperationDoc,
            output::{Created, Output},
        },
        rate_limits::STANDARD,
    },
};

/// Endpoints of downloads.
pub static ENDPOINTS: &[&Endpoint] = &[&CREATE_LINK, &DOWNLOAD];

/// Validity of a link.
const LINK_LIFE: TimeDelta = TimeDelta::minutes(15);
/// Time limit of a client that reads nothing.
const STALLED: Duration = Duration::from_mins(2);
/// Parts that are read but not sent yet.
const PARTS_WAITING: usize = 4;

static CREATE_LINK: Endpoint = Endpoint {
    id: "v2-download-project-backup",
    summary: "Download a project's backup",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v2/projects/{ref}/backups/download",
    aliases: &[],
    access: needs(&[&[P::BackupsWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || {
        mount(create_link)
            .without_dry_run()
            .sample(r#"{"data": {"type": "project_backup_file_url", "id": 1}}"#)
    },
};

#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LinkType {
    ProjectBackupFileUrl,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "V2DownloadProjectBackupBody")]
struct LinkEnvelope {
    data: LinkRequest,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct LinkRequest {
    r#type: LinkType,
    /// Number of the backup in the list.
    id: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "V2DownloadProjectBackupResponse")]
struct LinkResponse {
    data: LinkResource,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LinkResource {
    r#type: LinkType,
    id: i64,
    attributes: LinkAttributes,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LinkAttributes {
    /// URL of the archive, valid for 15 minutes.
    file_url: String,
}

/// Returns the mark that proves that a link was made here.
fn mark(context: &ApiContext, project: &str, backup: i64, expires: i64) -> String {
    let what = format!("download of backup {backup} of {project} until {expires}");
    context.settings.sealing.mark(&what)
}

async fn create_link(
    project: Project,
    context: ApiContext,
    Json(request): Json<LinkEnvelope>,
) -> Result<Created<LinkResponse>, Error> {
    let LinkRequest { r#type, id } = request.data;
    let sql = "select status from base_backups where id = $1 and project_id = $2";
    let rows = context.db.query(sql, &[&id, &project.id.0]).await;
    let rows = rows.context("reading a backup")?;
    let row = rows.first().ok_or(Error::Missing("Backup not found"))?;
    if row.get::<_, &str>(0) != "COMPLETED" {
        return Err(Error::Rejected("The backup is not complete".into()));
    }
    let public = context.settings.public_url.as_deref();
    let public = public.ok_or(Error::Unconfigured(
        "Links need the address of this server: the operator has to set --public-url",
    ))?;
    let expires = (context.clock.now() + LINK_LIFE).timestamp();
    let reference = project.reference.as_str();
    let token = mark(&context, reference, id, expires);
    let path = DOWNLOAD.path;
    let file_url =
        format!("{public}{path}?project={reference}&backup={id}&expires={expires}&token={token}");
    Ok(Created(LinkResponse {
        data: LinkResource {
            r#type,
            id,
            attributes: LinkAttributes { file_url },
        },
    }))
}

static DOWNLOAD: Endpoint = Endpoint {
    id: "gantry-download-backup",
    summary: "Download the archive of a backup",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v2/backup-downloads",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(download).sample_query("?project=a&backup=1&expires=0&token=b"),
};

/// The parts of a link.
#[derive(Debug, Deserialize, JsonSchema)]
struct DownloadChoice {
    project: String,
    backup: i64,
    expires: i64,
    token: String,
}

/// 200 with an archive.
struct TarArchive {
    name: String,
    parts: mpsc::Receiver<Result<Bytes, BackupError>>,
}

impl Output for TarArchive {
    fn describe(described: &mut OperationDoc) {
        described.reply_empty(StatusCode::OK);
    }

    fn respond(self) -> Response {
        let parts = futures_util::stream::unfold(self.parts, |mut parts| async move {
            let part = parts.recv().await?;
            // An error cuts the response off, so that the client sees that it is not complete.
            let frame = part.map(Frame::data).map_err(BodyError::from);
            Some((frame, parts))
        });
        let mut response = Response::new(Body::new(StreamBody::new(parts)));
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-tar"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let disposition = format!("attachment; filename=\"{}.tar\"", self.name);
        if let Ok(value) = HeaderValue::try_from(disposition) {
            headers.insert(header::CONTENT_DISPOSITION, value);
        }
        response
    }
}

async fn download(
    context: ApiContext,
    Query(choice): Query<DownloadChoice>,
) -> Result<TarArchive, Error> {
    let expected = mark(&context, &choice.project, choice.backup, choice.expires);
    let until = DateTime::<Utc>::from_timestamp(choice.expires, 0);
    let is_live = until.is_some_and(|until| until >= context.clock.now());
    // Both have a fixed length, and differ in unpredictable places.
    let matches = aws_lc_rs::constant_time::verify_slices_are_equal(
        expected.as_bytes(),
        choice.token.as_bytes(),
    );
    let project: Option<ProjectRef> = choice.project.parse().ok();
    let (true, Ok(()), Some(project)) = (is_live, matches, project) else {
        let text = "The link is not valid any more. Create another one";
        return Err(Error::Rejected(text.into()));
    };
    let sql = "select p.id from projects p join base_backups b on b.project_id = p.id
               where p.ref = $1 and b.id = $2 and b.status = 'COMPLETED' and p.desired <> 'removed'";
    let rows = context
        .db
        .query(sql, &[&project.as_str(), &choice.backup])
        .await;
    let rows = rows.context("reading a backup")?;
    let id = ProjectId(
        rows.first()
            .ok_or(Error::Missing("Backup not found"))?
            .get(0),
    );
    let exported = ExportedBackup::open(&context, id, &project, choice.backup).await;
    let exported = exported.context("reading a backup")?;
    let (sender, parts) = mpsc::channel(PARTS_WAITING);
    tokio::spawn(async move {
        if let Err(error) = export::write(&exported, &sender, STALLED).await {
            // Fails if the client is gone.
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(TarArchive {
        name: format!("{project}-{}", choice.backup),
        parts,
    })
}
