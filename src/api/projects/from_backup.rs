//! A new project with the data that another one had at a moment in the past.

use std::sync::Arc;

use gantry_base::ids::{OrgSlug, ProjectId, ProjectRef};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use super::{ProjectSummary, duplicate_name, timestamp};
use crate::{
    api::{backups::moment, branches, context::ApiContext},
    control::{
        api_keys,
        backups::target::RestoreTarget,
        projects::{Status, removed, request::secret, verifier},
    },
    platform::{
        access::{
            OauthScope as S, Organization, Permission as P, Project, ResourceName, Subject, User,
            needs,
        },
        audit::{Chain, Change, Recorder},
        db::Param,
        error::{Context, Denial, Error},
        events::{
            EventPayload,
            payloads::{ProjectCreated, ProjectSource},
        },
        http::{Endpoint, Json, Tag, Verb, mount, output::Created},
        names,
        rate_limits::STANDARD,
        tables::Table,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&RESTORE_TO_NEW];

static RESTORE_TO_NEW: Endpoint = Endpoint {
    id: "gantry-restore-to-new-project",
    summary: "Restore a moment of a project into a new project",
    tag: Tag::Gantry,
    method: Verb::Post,
    path: "/v1/projects/{ref}/database/backups/restore-to-new-project",
    aliases: &[],
    access: needs(
        &[&[P::BackupsWrite, P::OrganizationProjectsCreate]],
        S::ProjectsWrite,
    ),
    limit: &STANDARD,
    handler: || {
        mount(restore_to_new).sample(
            r#"{"name": "last-week", "db_pass": "correct horse battery staple", "recovery_time_target_unix": 1735689600}"#,
        )
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RestoreToNewProjectBody")]
struct NewProjectRequest {
    /// Name of the new project.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Password of its role `postgres`.
    #[serde(deserialize_with = "secret")]
    #[schemars(with = "String")]
    db_pass: SecretString,
    /// Organization of the new project. By default that of the restored one.
    organization_slug: Option<OrgSlug>,
    /// Seconds since 1970. All commits up to this time are restored.
    #[schemars(range(min = 0))]
    recovery_time_target_unix: Option<i64>,
    /// Number of a backup in the list, instead of a time.
    id: Option<i64>,
}

async fn restore_to_new(
    project: Project,
    user: User,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(request): Json<NewProjectRequest>,
) -> Result<Created<ProjectSummary>, Error> {
    names::check("name", &request.name, 256)?;
    if !(1..=256).contains(&request.db_pass.expose_secret().len()) {
        return Err(Error::invalid("db_pass", "expected 1 to 256 bytes"));
    }
    let moment = moment::requested(request.recovery_time_target_unix, request.id)?;
    let organization = organization(
        &context,
        &user,
        &project,
        request.organization_slug.as_ref(),
    )
    .await?;
    let target = RestoreTarget::find(&context, &project, moment).await?;
    let new = RestoredProject {
        name: request.name,
        verifier: verifier(request.db_pass).await?,
        organization,
        target,
    };
    Ok(Created(create(&context, &project, new, &audit).await?))
}

/// Returns the organization of the new project. The guard checks the permissions in that of the
/// restored project; in another one they are checked here.
async fn organization(
    context: &ApiContext,
    user: &User,
    project: &Project,
    slug: Option<&OrgSlug>,
) -> Result<Organization, Error> {
    let doing = "looking up an organization";
    let sql = "select slug from organizations where id = $1";
    let rows = context.db.query(sql, &[&project.organization.0]).await;
    let rows = rows.context(doing)?;
    let row = rows.first().ok_or(Error::NotFound)?;
    let own: OrgSlug = row.get::<_, &str>(0).parse().context(doing)?;
    let Some(slug) = slug.filter(|slug| **slug != own) else {
        return Ok(Organization {
            id: project.organization,
            slug: own,
        });
    };
    let name = ResourceName::Organization(slug.clone());
    let found = context.directory.resolve(user, &name).await?;
    let Some((Subject::Organization(organization), roles)) = found else {
        return Err(Error::Missing("Organization not found"));
    };
    let permission = P::OrganizationProjectsCreate;
    let by_token = user.grant.as_ref().is_none_or(|it| it.holds(permission))
        && user.approval.as_ref().is_none_or(|it| it.holds(permission));
    let roles = user
        .approval
        .as_ref()
        .map_or(roles, |approval| approval.effective_roles(roles));
    if !roles.holds(permission) {
        return Err(Error::Forbidden(Denial::Role));
    }
    if !by_token {
        return Err(Error::Forbidden(Denial::Permissions(vec![
            permission.name(),
        ])));
    }
    Ok(organization)
}

/// A validated request.
struct RestoredProject {
    name: String,
    verifier: String,
    organization: Organization,
    target: RestoreTarget,
}

/// Records the new project with its keys and its restore, and wakes the reconciler, which makes its
/// cluster on the node of the restored project.
async fn create(
    context: &ApiContext,
    source: &Project,
    new: RestoredProject,
    audit: &Recorder,
) -> Result<ProjectSummary, Error> {
    let doing = "creating a project of a backup";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let reference = ProjectRef::generate(&context.entropy);
    // Roles and schemas of the platform are those of the backup until its first start.
    let sql = "insert into projects (ref, organization_id, name, region, instance_size, engine, release_channel, node, desired, status, \
               password_verifier, not_before, created_at, updated_at, grants, new_table_grants, \
               settings, outdated) \
               select $2, $3, $4, region, instance_size, engine, release_channel, node, \
               'active', 'COMING_UP', \
               $5, $6, $6, $6, $7, new_table_grants, settings, true \
               from projects where id = $1 and desired <> 'removed' for share returning id, region";
    let params: [Param<'_>; 7] = [
        &source.id.0,
        &reference.as_str(),
        &new.organization.id.0,
        &new.name,
        &new.verifier,
        &now,
        &context.driver.platform_version(),
    ];
    let row = transaction.query_opt(sql, &params).await;
    let row = row.map_err(|error| duplicate_name(error, &new.name))?;
    let row = row.ok_or_else(removed)?;
    let id = ProjectId(row.get(0));
    api_keys::create_initial(context, &transaction, id, now).await?;
    for sql in branches::FOLLOWING {
        let copied = transaction.execute(*sql, &[&source.id.0, &id.0]).await;
        copied.context(doing)?;
    }
    let (time, position, archive) = new.target.columns();
    let sql = "insert into restores (project_id, source_id, target_time, target_lsn, archive_id, requested_at) values ($1, $2, $3, $4, $5, $6)";
    let params: [Param<'_>; 6] = [&id.0, &source.id.0, &time, &position, &archive, &now];
    transaction.execute(sql, &params).await.context(doing)?;
    let after = json!({"ref": reference, "name": new.name, "restored_from": source.reference, "restored_to": time, "position": position});
    if new.organization.id != source.organization {
        let chain = Chain::Organization(new.organization.id);
        audit
            .write_elsewhere(&transaction, chain, after.clone(), now)
            .await?;
    }
    let event = ProjectCreated {
        source: Some(ProjectSource::Clone {
            project_ref: source.reference.to_string(),
        }),
    };
    let event = event.about_ref(new.organization.id, &reference);
    let change = Change::new((None, Some(after)), [event]);
    let created = ProjectSummary {
        id: reference.clone(),
        reference,
        organization_id: new.organization.slug.clone(),
        organization_slug: new.organization.slug,
        name: new.name,
        region: row.get(1),
        created_at: timestamp(now),
        status: Status::ComingUp,
    };
    audit.answer(|| Created(&created));
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::Projects);
    context.reconciler.wake();
    Ok(created)
}
