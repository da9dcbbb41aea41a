//! Claims of projects: an owner creates a secret, with which an owner of another organization moves
//! the project there (decision 0179).
//!
//! A project has one claim token at most. It is stored as a digest, expires after `LIFE`, and is
//! used up by the transfer.

use std::{str::FromStr, sync::Arc};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{OrganizationId, ProjectId, ProjectRef, UserId};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::json;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{
    timestamp,
    transfers::{self, Findings, Transfer},
};
use crate::{
    api::{context::ApiContext, path::path_parameters},
    control::projects::{lock, removed},
    platform::{
        access::{
            Organization, Permission as P, Project, Role, User, credential::SecretDigest, pat_only,
        },
        audit::{Chain, Recorder},
        error::{Context, Error},
        http::{Endpoint, Json, Tag, Verb, mount, output::NoContent},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&CREATE, &GET, &DELETE, &PREVIEW, &CLAIM];

/// Lifetime of a claim token.
const LIFE: TimeDelta = TimeDelta::hours(24);
/// Beginning of every claim token.
const PREFIX: &str = "gantry_claim_";

/// The form of a claim token.
const FORM: &str = "expected a claim token: gantry_claim_ and 40 hexadecimal digits";

/// The error for a token that is unknown, expired, used or replaced.
const UNKNOWN: Error = Error::Missing(
    "Project claim not found: the token is wrong, expired or used. Ask for a new one.",
);

/// A claim token without its secret.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ProjectClaimTokenResponse")]
struct ClaimToken {
    token_alias: String,
    expires_at: String,
    created_at: String,
    created_by: Uuid,
}

/// A new claim token. No `Debug`, because of the secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CreateProjectClaimTokenResponse")]
struct NewClaimToken {
    /// Shown once.
    token: String,
    #[serde(flatten)]
    metadata: ClaimToken,
}

static CREATE: Endpoint = Endpoint {
    id: "v1-create-project-claim-token",
    summary: "Create a claim token for a project",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/claim-token",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite, P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(create).destructive("creates a token that moves the project to another organization")
    },
};

async fn create(
    project: Project,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
) -> Result<Json<NewClaimToken>, Error> {
    let doing = "creating a claim token";
    let now = context.clock.now();
    let secret = format!("{PREFIX}{}", hex::encode(context.entropy.bytes::<20>()));
    let metadata = ClaimToken {
        token_alias: masked(&secret),
        expires_at: timestamp(now + LIFE),
        created_at: timestamp(now),
        created_by: user.gotrue_id,
    };
    let digest = SecretDigest::of(&secret);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, &project, doing).await?;
    let sql = "insert into project_claims (project_id, digest, alias, created_by, created_at, expires_at) \
               values ($1, $2, $3, $4, $5, $6) on conflict (project_id) do update set \
               digest = excluded.digest, alias = excluded.alias, created_by = excluded.created_by, \
               created_at = excluded.created_at, expires_at = excluded.expires_at";
    let (alias, expires_at) = (&metadata.token_alias, now + LIFE);
    let digest = digest.as_bytes();
    let written = transaction
        .execute(
            sql,
            &[&project.id.0, &digest, alias, &user.id.0, &now, &expires_at],
        )
        .await;
    written.context(doing)?;
    let after = json!({"alias": alias, "expires_at": expires_at});
    let change = (None, Some(after));
    let created = NewClaimToken {
        token: secret,
        metadata,
    };
    audit.answer(|| Json(&created));
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(Json(created))
}

/// Returns the beginning and the end of a secret.
fn masked(secret: &str) -> String {
    let shown = PREFIX.len() + 4;
    let end = secret.len().saturating_sub(4);
    format!("{}...{}", &secret[..shown], &secret[end..])
}

static GET: Endpoint = Endpoint {
    id: "v1-get-project-claim-token",
    summary: "Get a project's claim token",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/claim-token",
    aliases: &[],
    access: pat_only(&[&[P::ProjectAdminRead]]),
    limit: &STANDARD,
    handler: || mount(get),
};

async fn get(project: Project, context: ApiContext) -> Result<Json<ClaimToken>, Error> {
    let sql = "select p.desired = 'removed', c.alias, c.expires_at, c.created_at, u.gotrue_id from projects p \
               left join (project_claims c join users u on u.id = c.created_by) \
               on c.project_id = p.id and c.expires_at > $2 where p.id = $1";
    let now = context.clock.now();
    let rows = context.db.query(sql, &[&project.id.0, &now]).await;
    let rows = rows.context("reading a claim token")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    if row.get(0) {
        return Err(removed());
    }
    let alias: Option<String> = row.get(1);
    let token_alias = alias.ok_or(Error::Missing(
        "The project has no claim token. Create one with POST at this address.",
    ))?;
    Ok(Json(ClaimToken {
        token_alias,
        expires_at: timestamp(row.get(2)),
        created_at: timestamp(row.get(3)),
        created_by: row.get(4),
    }))
}

static DELETE: Endpoint = Endpoint {
    id: "v1-delete-project-claim-token",
    summary: "Delete a project's claim token",
    tag: Tag::Projects,
    method: Verb::Delete,
    path: "/v1/projects/{ref}/claim-token",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite, P::ProjectAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(delete),
};

async fn delete(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<NoContent, Error> {
    let doing = "deleting a claim token";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, &project, doing).await?;
    let sql = "delete from project_claims where project_id = $1 returning alias";
    let row = transaction.query_opt(sql, &[&project.id.0]).await;
    let row = row.context(doing)?;
    let before = row.map(|row| json!({"alias": row.get::<_, &str>(0)}));
    let now = context.clock.now();
    audit
        .commit(transaction, doing, 204, (before, None), now)
        .await?;
    Ok(NoContent)
}

/// Deletes the claim tokens of these projects.
pub(super) async fn withdraw(transaction: &Transaction<'_>, projects: &[i64]) -> Result<(), Error> {
    let sql = "delete from project_claims where project_id = any($1)";
    let deleted = transaction.execute(sql, &[&projects]).await;
    deleted.context("deleting claim tokens").map(drop)
}

/// The secret of a claim token. A text of another form is no claim token.
struct ClaimSecret(SecretString);

impl FromStr for ClaimSecret {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.strip_prefix(PREFIX).ok_or(())?;
        if digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.into()))
        } else {
            Err(())
        }
    }
}

path_parameters! {
    /// The claim token of the path.
    struct PathClaim(ClaimSecret) from "token", else Error::invalid("token", FORM);
}

impl ClaimSecret {
    fn digest(&self) -> SecretDigest {
        SecretDigest::of(self.0.expose_secret())
    }
}

/// A valid claim with its project.
struct Claim {
    project: Project,
    name: String,
    creator: UserId,
    created_by: Uuid,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

impl Claim {
    async fn find(context: &ApiContext, digest: SecretDigest) -> Result<Self, Error> {
        let sql = "select p.id, p.ref, p.organization_id, p.name, u.id, u.gotrue_id, c.created_at, c.expires_at \
                   from project_claims c join projects p on p.id = c.project_id \
                   join users u on u.id = c.created_by \
                   where c.digest = $1 and c.expires_at > $2 and p.desired <> 'removed'";
        let now = context.clock.now();
        let rows = context.db.query(sql, &[&digest.as_bytes(), &now]).await;
        let rows = rows.context("reading a claim token")?;
        Self::read(rows.first().ok_or(UNKNOWN)?)
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let reference = row.get::<_, &str>(1).parse();
        let project = Project {
            id: ProjectId(row.get(0)),
            reference: reference.context("reading a project's ref")?,
            organization: OrganizationId(row.get(2)),
        };
        Ok(Self {
            project,
            name: row.get(3),
            creator: UserId(row.get(4)),
            created_by: row.get(5),
            created_at: row.get(6),
            expires_at: row.get(7),
        })
    }

    /// Returns the transfer from the creator of the token to the user that claims the project.
    fn transfer<'a>(&'a self, target: &'a Organization, user: &User) -> Transfer<'a> {
        Transfer {
            project: &self.project,
            target: Some(target),
            owner: self.creator,
            recipient: user.id,
            recipient_role: Role::Owner,
        }
    }
}

static PREVIEW: Endpoint = Endpoint {
    id: "v1-get-organization-project-claim",
    summary: "Get a project claim of an organization",
    tag: Tag::Organizations,
    method: Verb::Get,
    path: "/v1/organizations/{slug}/project-claim/{token}",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(preview).read_only(),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OrganizationProjectClaimResponse")]
struct ClaimView {
    project: ClaimedProject,
    preview: ClaimPreview,
    expires_at: String,
    created_at: String,
    created_by: Uuid,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ClaimedProject {
    r#ref: ProjectRef,
    name: String,
}

/// The findings, and what clients of servers with plans expect beside them.
#[derive(Debug, Serialize, JsonSchema)]
struct ClaimPreview {
    #[serde(flatten)]
    findings: Findings,
    members_exceeding_free_project_limit: Vec<MemberLimit>,
    source_subscription_plan: &'static str,
    target_subscription_plan: &'static str,
}

/// A limit of projects of a member. There is none here.
#[derive(Debug, Serialize, JsonSchema)]
struct MemberLimit {
    name: String,
    limit: i64,
}

async fn preview(
    organization: Organization,
    PathClaim(secret): PathClaim,
    context: ApiContext,
    user: User,
) -> Result<Json<ClaimView>, Error> {
    let claim = Claim::find(&context, secret.digest()).await?;
    let findings = transfers::preview(&context, &claim.transfer(&organization, &user)).await?;
    Ok(Json(ClaimView {
        project: ClaimedProject {
            r#ref: claim.project.reference.clone(),
            name: claim.name,
        },
        preview: ClaimPreview {
            findings,
            members_exceeding_free_project_limit: Vec::new(),
            source_subscription_plan: "free",
            target_subscription_plan: "free",
        },
        expires_at: timestamp(claim.expires_at),
        created_at: timestamp(claim.created_at),
        created_by: claim.created_by,
    }))
}

static CLAIM: Endpoint = Endpoint {
    id: "v1-claim-project-for-organization",
    summary: "Claim a project for an organization",
    tag: Tag::Organizations,
    method: Verb::Post,
    path: "/v1/organizations/{slug}/project-claim/{token}",
    aliases: &[],
    access: pat_only(&[&[P::OrganizationAdminWrite]]),
    limit: &STANDARD,
    handler: || mount(accept),
};

async fn accept(
    organization: Organization,
    PathClaim(secret): PathClaim,
    context: ApiContext,
    user: User,
    audit: Arc<Recorder>,
) -> Result<NoContent, Error> {
    let doing = "claiming a project";
    let claim = Claim::find(&context, secret.digest()).await?;
    let transfer = claim.transfer(&organization, &user);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    transfers::lock(&transaction, &transfer).await?;
    // Another request may have used or replaced the token before the rows were locked.
    let sql = "select from project_claims where digest = $1";
    let found = transaction
        .query_opt(sql, &[&secret.digest().as_bytes()])
        .await;
    found.context(doing)?.ok_or(UNKNOWN)?;
    let source = Chain::Organization(claim.project.organization);
    transfers::execute(&context, transaction, &transfer, (&audit, source, 204)).await?;
    Ok(NoContent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_secret_has_prefix_and_40_hex_digits() {
        let good = format!("{PREFIX}{}", "a1".repeat(20));
        assert!(good.parse::<ClaimSecret>().is_ok());
        for bad in [
            String::new(),
            "a1".repeat(20),
            format!("{good}0"),
            format!("{PREFIX}{}", "zz".repeat(20)),
        ] {
            assert!(bad.parse::<ClaimSecret>().is_err(), "{bad}");
        }
    }

    #[test]
    fn masked_secret_shows_its_ends() {
        let secret = format!("{PREFIX}0123456789abcdef");
        assert_eq!(masked(&secret), "gantry_claim_0123...cdef");
    }
}
