//! A deployment: files, then the row of the version.

use bytes::Bytes;
use gantry_base::ids::ProjectRef;
use uuid::Uuid;

use super::{
    relative_path::RelativePath,
    run,
    sources::{Sources, VersionFolder},
    versions::{self, FunctionRecord, FunctionSlug, NO_FUNCTION, NewFunctionVersion},
};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// A function as uploaded.
#[derive(Debug)]
pub struct FunctionUpload {
    /// The name in paths.
    pub slug: FunctionSlug,
    /// The display name. Absent: the previous one, or the slug.
    pub name: Option<String>,
    /// Whether requests need a token. Absent: as before, or true.
    pub verify_jwt: Option<bool>,
    /// The first module, as the client names it.
    pub entrypoint: RelativePath,
    /// The import map, as the client names it.
    pub import_map: Option<RelativePath>,
    /// The files.
    pub sources: Sources,
    /// The uploaded bundle with its SHA-256 in hex, if it was one.
    pub bundle: Option<(String, Bytes)>,
    /// Whether the version becomes live.
    pub live: bool,
}

/// Whether the function must exist before a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployRule {
    /// It must not exist.
    Create,
    /// It must exist.
    Update,
    /// It may exist.
    Any,
}

/// Returns the folder of a version as functions and clients see it.
pub fn public_root(project: &ProjectRef, id: Uuid, version: i32) -> String {
    format!("/tmp/user_fn_{project}_{id}_{version}")
}

/// Stores a version with its files, and makes it live if requested.
///
/// Errors: [`Error::Rejected`] if the function exists or the first module does not,
/// [`NO_FUNCTION`], [`Error::Conflict`] if another deployment was faster.
pub async fn deploy(
    context: &ControlContext,
    project: &Project,
    upload: FunctionUpload,
    rule: DeployRule,
    audit: (&Recorder, i16),
) -> Result<FunctionRecord, Error> {
    check_node(context, project).await?;
    let base = versions::base(context, project.id, &upload.slug).await?;
    match rule {
        DeployRule::Create if base.is_live() => {
            return Err(Error::Rejected("Duplicated function slug".into()));
        }
        DeployRule::Update if !base.is_live() => return Err(NO_FUNCTION),
        _ => {}
    }
    let id = base.id_or(context.entropy.uuid());
    let root = public_root(&project.reference, id, base.next_version());
    let entrypoint = upload.sources.find(&upload.entrypoint).ok_or_else(|| {
        let text = format!(
            "Entrypoint path does not exist - {root}/source/{}",
            upload.entrypoint
        );
        Error::Rejected(text.into())
    })?;
    // Clients name the map of an earlier version, which they may not send again.
    let import_map = upload.import_map.as_ref();
    let import_map = import_map.and_then(|path| upload.sources.find(path));
    let deployment = context.entropy.uuid();
    let folder = VersionFolder::of(&context.home, &project.reference, deployment);
    let (kept_name, kept_verify_jwt) = base.kept.clone().unzip();
    let (bundle_sha256, bundle) = upload.bundle.unzip();
    let new = NewFunctionVersion {
        id,
        deployment,
        name: upload
            .name
            .or(kept_name)
            .unwrap_or_else(|| upload.slug.to_string()),
        verify_jwt: upload.verify_jwt.or(kept_verify_jwt).unwrap_or(true),
        slug: upload.slug,
        entrypoint: entrypoint.to_string(),
        import_map: import_map.map(|path| path.to_string()),
        bundle_sha256,
        copied_from: None,
        live: upload.live,
    };
    let (written, sources) = (folder.clone(), upload.sources);
    blocking(move || written.write(&sources, bundle.as_deref())).await?;
    let stored = async {
        run::try_out(context, project, &new, base.next_version()).await?;
        versions::publish(context, project, &base, new, Some(audit)).await
    };
    let published = stored.await;
    run::settle(context, deployment);
    if published.is_err() {
        // Removed later otherwise, with other files without a row.
        let _ = blocking(move || folder.remove()).await;
    }
    published
}

/// Returns the folder with the files of a version.
pub async fn version_folder(
    context: &ControlContext,
    project: &Project,
    record: &FunctionRecord,
) -> Result<VersionFolder, Error> {
    check_node(context, project).await?;
    Ok(VersionFolder::of(
        &context.home,
        &project.reference,
        record.deployment,
    ))
}

/// Checks that the files of a project lie in the data folder of this process.
pub(super) async fn check_node(context: &ControlContext, project: &Project) -> Result<(), Error> {
    let sql = "select node from projects where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading a project's node")?;
    let row = rows.first().ok_or_else(projects::removed)?;
    let node: Option<Uuid> = row.get(0);
    if node.is_none_or(|node| node == context.settings.node) {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: "Another server runs this project; send the request there".into(),
        retry: std::time::Duration::from_mins(1),
    })
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.context("storing a function")?
        .context("storing a function")
}
