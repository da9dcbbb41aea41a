//! Operations on branches.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    branch_row::{BranchStatus, SchemaSource, find},
    create::{self, NewBranch},
    lifecycle,
    lifecycle::BranchPatch,
    password,
    runs::RunKind,
    target::{BranchName, BranchTarget},
    view::{BranchView, by_name, list},
};
use crate::{
    api::{context::ApiContext, projects},
    control::{
        api_keys,
        database_session::OWNER,
        projects::{InstanceSize, Status},
        services::functions::secrets::NewSecret,
    },
    platform::{
        access::{
            Access, AnyOf, Caller, CallerRelation, Case, OauthScope as S, Permission as P, Project,
            RequestView, User, decide, needs,
        },
        audit::Recorder,
        error::Error,
        http::{
            Endpoint, Json, Output, Query, Tag, Verb, mount,
            output::{Created, OkEmpty},
        },
        names,
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[
    &LIST, &CREATE, &GET, &DISABLE, &CONFIG, &UPDATE, &DELETE, &MERGE, &PUSH, &RESET, &RESTORE,
];

/// Maximum length of a branch's name and of its Git branch, in characters.
pub(super) const NAME_MAX: usize = 200;
/// Maximum length of a URL, in bytes.
const URL_MAX: usize = 2000;

/// A branch that contains production data requires the permissions for production.
const BY_DATA: &[Case] = &[
    Case {
        when: "`with_data` is true",
        applies: |asked| asked.body().is_none_or(|body: DataChoice| body.with_data),
        permissions: AnyOf(&[&[P::BranchingProductionCreate]]),
    },
    Case::otherwise(AnyOf(&[&[P::BranchingDevelopmentCreate]])),
];

#[derive(Deserialize)]
struct DataChoice {
    #[serde(default)]
    with_data: bool,
}

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-branches",
    summary: "List a project's branches",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/projects/{ref}/branches",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentRead],
            &[P::BranchingProductionRead],
        ],
        S::EnvironmentRead,
    ),
    limit: &STANDARD,
    handler: || mount(list_branches),
};

async fn list_branches(
    project: Project,
    context: ApiContext,
) -> Result<Json<Vec<BranchView>>, Error> {
    Ok(Json(list(&context, &project).await?))
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-a-branch",
    summary: "Create a branch",
    tag: Tag::Environments,
    method: Verb::Post,
    path: "/v1/projects/{ref}/branches",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentCreate],
            &[P::BranchingProductionCreate],
        ],
        S::EnvironmentWrite,
    )
    .by_case(BY_DATA),
    limit: &STANDARD,
    handler: || mount(create).sample(r#"{"branch_name": "develop"}"#),
};

/// No `Debug`, because it contains secrets.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "CreateBranchBody")]
struct CreateBranchRequest {
    #[schemars(length(min = 1, max = 200))]
    branch_name: String,
    #[serde(default)]
    git_branch: Option<String>,
    #[serde(default)]
    is_default: bool,
    #[serde(default)]
    persistent: bool,
    /// Accepted and ignored: a branch is on the machine of its parent.
    #[expect(dead_code, reason = "accepted from clients")]
    region: Option<String>,
    desired_instance_size: Option<InstanceSize>,
    /// Accepted and ignored: a branch has the release of its parent.
    #[expect(dead_code, reason = "accepted from clients")]
    release_channel: Option<String>,
    postgres_engine: Option<String>,
    /// Secrets of the branch's functions: values by name.
    secrets: Option<BTreeMap<String, String>>,
    /// Copy the data of the parent, too.
    #[serde(default)]
    with_data: bool,
    /// Where a branch without data has its schema from.
    #[serde(default)]
    #[schemars(extend("x-gantry" = true))]
    schema_source: SchemaSource,
    /// URL that gets a `POST` request after each run of the branch.
    notify_url: Option<String>,
    /// Time at which the branch is deleted: in the next 365 days. Not for a persistent branch. The
    /// default is the server's.
    #[schemars(extend("x-gantry" = true))]
    expires_at: Option<DateTime<Utc>>,
}

impl CreateBranchRequest {
    fn check(self) -> Result<NewBranch, Error> {
        names::check("branch_name", &self.branch_name, NAME_MAX)?;
        check_git_branch(self.git_branch.as_deref())?;
        check_url(self.notify_url.as_deref())?;
        let secret = |(name, value): (String, String)| NewSecret {
            name,
            value: value.into(),
        };
        let secrets = self.secrets.unwrap_or_default();
        Ok(NewBranch {
            name: self.branch_name,
            git_branch: self.git_branch.filter(|name| !name.is_empty()),
            is_default: self.is_default,
            persistent: self.persistent,
            with_data: self.with_data,
            schema_source: self.schema_source,
            size: self.desired_instance_size,
            engine: self.postgres_engine,
            notify_url: self.notify_url.filter(|url| !url.is_empty()),
            expires_at: self.expires_at,
            secrets: secrets.into_iter().map(secret).collect(),
        })
    }
}

pub(super) fn check_git_branch(name: Option<&str>) -> Result<(), Error> {
    match name {
        Some(name) if !name.is_empty() => names::check("git_branch", name, NAME_MAX),
        _ => Ok(()),
    }
}

pub(super) fn check_url(url: Option<&str>) -> Result<(), Error> {
    let Some(url) = url else { return Ok(()) };
    let is_http =
        |url: url::Url| matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    let valid = url.is_empty() || (url.len() <= URL_MAX && url::Url::parse(url).is_ok_and(is_http));
    if valid {
        Ok(())
    } else {
        Err(Error::invalid("notify_url", "expected an HTTP URL"))
    }
}

async fn create(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<CreateBranchRequest>,
) -> Result<Created<BranchView>, Error> {
    let new = request.check()?;
    audit.answer_with(|branch: &BranchView| Created(branch).respond());
    let branch = create::create(&context, &project, new, &audit).await?;
    Ok(Created(branch))
}

static GET: Endpoint = Endpoint {
    id: "v1-get-a-branch",
    summary: "Get a branch by its name",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/projects/{ref}/branches/{name}",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentRead],
            &[P::BranchingProductionRead],
        ],
        S::EnvironmentRead,
    ),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(
    project: Project,
    context: ApiContext,
    BranchName(name): BranchName,
) -> Result<Json<BranchView>, Error> {
    Ok(Json(by_name(&context, &project, &name).await?))
}

static DISABLE: Endpoint = Endpoint {
    id: "v1-disable-preview-branching",
    summary: "Disable preview branching",
    tag: Tag::Environments,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/branches",
    aliases: &[],
    access: needs(&[&[P::BranchingProductionDelete]], S::EnvironmentWrite),
    limit: &STANDARD,
    handler: || mount(disable).destructive("deletes all branches of the project"),
};

async fn disable(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<OkEmpty, Error> {
    lifecycle::disable(&context, &project, &audit).await?;
    Ok(OkEmpty)
}

static CONFIG: Endpoint = Endpoint {
    id: "v1-get-a-branch-config",
    summary: "Get a branch's configuration",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/branches/{branch_id_or_ref}",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentRead],
            &[P::BranchingProductionRead],
        ],
        S::EnvironmentRead,
    ),
    limit: &STANDARD,
    handler: || mount(config),
};

/// The access that the login of a branch needs.
static LOGIN: Access = needs(
    &[
        &[P::BranchingDevelopmentWrite],
        &[P::BranchingProductionWrite],
    ],
    S::EnvironmentWrite,
);

/// The access that the JWT secret of a project needs.
static JWT_SECRET: Access = needs(
    &[&[P::DataApiConfigRead, P::DataApiConfigSecretRead]],
    S::RestRead,
);

/// A branch's project and its database. No `Debug`, because it contains secrets.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BranchDetailResponse")]
struct BranchConfig {
    #[serde(rename = "ref")]
    reference: String,
    postgres_version: String,
    postgres_engine: String,
    release_channel: String,
    status: Status,
    db_host: String,
    db_port: u16,
    /// Role of the owner of the database, if the caller may change the branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    db_user: Option<&'static str>,
    /// Generated password of that role. Absent after the owner set another one: that is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    db_pass: Option<String>,
    /// The secret that signs legacy keys, if the caller may also read that of a project.
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_secret: Option<String>,
}

async fn config(
    project: Project,
    context: ApiContext,
    target: BranchTarget,
    user: User,
    relation: CallerRelation,
) -> Result<Json<BranchConfig>, Error> {
    let branch = find(&context, &project, &target).await?;
    let detail = projects::database_of(&context, &branch.project).await?;
    let caller = Caller::User(user.into());
    let may = |access: &Access| decide(&caller, access, &RequestView::default(), relation).is_ok();
    let can_log_in = may(&LOGIN);
    // The keys of a paused project cannot be read, but its status can.
    let has_keys = branch.project_status.goal() == Status::ActiveHealthy;
    let jwt_secret = if has_keys && can_log_in && may(&JWT_SECRET) {
        let secret = api_keys::jwt_secret(&context, &branch.project).await?;
        Some(secret.expose_secret().to_owned())
    } else {
        None
    };
    let db_pass = if can_log_in {
        password::open(&context, &branch).await?
    } else {
        None
    };
    Ok(Json(BranchConfig {
        reference: branch.project.reference.to_string(),
        postgres_version: detail.version,
        postgres_engine: detail.postgres_engine,
        release_channel: detail.release_channel,
        status: branch.project_status,
        db_host: detail.host,
        db_port: 5432,
        db_user: can_log_in.then_some(OWNER),
        db_pass: db_pass.map(|password| password.expose_secret().to_owned()),
        jwt_secret,
    }))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-update-a-branch-config",
    summary: "Update a branch's configuration",
    tag: Tag::Environments,
    method: Verb::Patch,
    path: "/v1/branches/{branch_id_or_ref}",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentWrite],
            &[P::BranchingProductionWrite],
        ],
        S::EnvironmentWrite,
    ),
    limit: &STANDARD,
    handler: || mount(update).sample(r#"{"persistent": true}"#),
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateBranchBody")]
struct UpdateBranchRequest {
    #[schemars(length(min = 1, max = 200))]
    branch_name: Option<String>,
    /// An empty text detaches the branch.
    git_branch: Option<String>,
    /// Accepted and ignored.
    #[schemars(extend("deprecated" = true))]
    #[expect(dead_code, reason = "accepted from older clients")]
    reset_on_push: Option<bool>,
    persistent: Option<bool>,
    status: Option<BranchStatus>,
    request_review: Option<bool>,
    /// An empty text removes it.
    notify_url: Option<String>,
    /// Time at which the branch is deleted: in the next 365 days. Not for a persistent branch.
    #[schemars(extend("x-gantry" = true))]
    expires_at: Option<DateTime<Utc>>,
    /// Where a branch without data gets its schema from at its next reset.
    #[schemars(extend("x-gantry" = true))]
    schema_source: Option<SchemaSource>,
}

async fn update(
    project: Project,
    context: ApiContext,
    target: BranchTarget,
    audit: Arc<Recorder>,
    Json(request): Json<UpdateBranchRequest>,
) -> Result<Json<BranchView>, Error> {
    if let Some(name) = &request.branch_name {
        names::check("branch_name", name, NAME_MAX)?;
    }
    check_git_branch(request.git_branch.as_deref())?;
    check_url(request.notify_url.as_deref())?;
    let patch = BranchPatch {
        name: request.branch_name,
        git_branch: request.git_branch,
        persistent: request.persistent,
        status: request.status,
        request_review: request.request_review,
        notify_url: request.notify_url,
        expires_at: request.expires_at,
        schema_source: request.schema_source,
    };
    let branch = lifecycle::update(&context, &project, &target, patch, &audit).await?;
    Ok(Json(branch))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-a-branch",
    summary: "Delete a branch",
    tag: Tag::Environments,
    method: Verb::Delete,
    path: "/v1/branches/{branch_id_or_ref}",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentDelete],
            &[P::BranchingProductionDelete],
        ],
        S::EnvironmentWrite,
    ),
    limit: &STANDARD,
    handler: || mount(delete),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct DeleteQuery {
    /// Delete at once. Otherwise the branch is deleted after an hour, until which it can be
    /// restored.
    #[serde(default = "DeleteQuery::force")]
    force: bool,
}

impl DeleteQuery {
    fn force() -> bool {
        true
    }
}

/// The response of a call without other content.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchDeleteResponse")]
pub(super) struct OkMessage {
    pub(super) message: &'static str,
}

async fn delete(
    project: Project,
    context: ApiContext,
    target: BranchTarget,
    audit: Arc<Recorder>,
    Query(query): Query<DeleteQuery>,
) -> Result<Json<OkMessage>, Error> {
    let done = || Json(OkMessage { message: "ok" });
    audit.answer(done);
    lifecycle::delete(&context, &project, &target, query.force, &audit).await?;
    Ok(done())
}

/// The body of an action. An absent version is the newest.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "BranchActionBody")]
struct ActionRequest {
    #[serde(default)]
    migration_version: Option<String>,
}

/// The run that an action has begun.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchUpdateResponse")]
struct StartedRun {
    workflow_run_id: String,
    message: &'static str,
}

impl StartedRun {
    fn new(run: String) -> Created<Self> {
        Created(Self {
            workflow_run_id: run,
            message: "ok",
        })
    }
}

macro_rules! actions {
    ($(
        $name:ident $handler:ident $kind:ident $path:literal $id:literal $summary:literal
        $(, $destructive:literal)?;
    )*) => {
        $(
            static $name: Endpoint = Endpoint {
                id: $id,
                summary: $summary,
                tag: Tag::Environments,
                method: Verb::Post,
                path: $path,
                aliases: &[],
                access: needs(
                    &[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]],
                    S::EnvironmentWrite,
                ),
                limit: &STANDARD,
                handler: || mount($handler)$(.destructive($destructive))?.sample("{}"),
            };

            async fn $handler(
                project: Project,
                context: ApiContext,
                target: BranchTarget,
                audit: Arc<Recorder>,
                Json(request): Json<ActionRequest>,
            ) -> Result<Created<StartedRun>, Error> {
                let version = request.migration_version.filter(|version| !version.is_empty());
                let kind = RunKind::$kind;
                audit.answer_with(|run: &String| StartedRun::new(run.clone()).respond());
                let run = lifecycle::begin_run(&context, &project, &target, kind, version, &audit);
                Ok(StartedRun::new(run.await?))
            }
        )*
    };
}

actions! {
    MERGE merge Merge "/v1/branches/{branch_id_or_ref}/merge" "v1-merge-a-branch" "Merge a branch", "merges a branch into the project";
    PUSH push Push "/v1/branches/{branch_id_or_ref}/push" "v1-push-a-branch" "Push a branch";
    RESET reset Reset "/v1/branches/{branch_id_or_ref}/reset" "v1-reset-a-branch" "Reset a branch";
}

static RESTORE: Endpoint = Endpoint {
    id: "v1-restore-a-branch",
    summary: "Restore a branch",
    tag: Tag::Environments,
    method: Verb::Post,
    path: "/v1/branches/{branch_id_or_ref}/restore",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentWrite],
            &[P::BranchingProductionWrite],
        ],
        S::EnvironmentWrite,
    ),
    limit: &STANDARD,
    handler: || mount(restore),
};

/// The response of restoring a branch.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "BranchRestoreResponse")]
struct RestoreMessage {
    message: &'static str,
}

async fn restore(
    project: Project,
    context: ApiContext,
    target: BranchTarget,
    audit: Arc<Recorder>,
) -> Result<Json<RestoreMessage>, Error> {
    let done = || {
        Json(RestoreMessage {
            message: "Branch restoration initiated",
        })
    };
    audit.answer(done);
    lifecycle::restore(&context, &project, &target, &audit).await?;
    Ok(done())
}
