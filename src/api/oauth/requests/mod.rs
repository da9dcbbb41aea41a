//! Authorization requests: validation, consent and the redirect back to the application.
//!
//! Errors are redirected only to a registered URI; before it is validated, they are returned to the
//! browser.

pub mod operations;

use chrono::{DateTime, Utc};
use gantry_base::ids::{ApplicationId, OrgSlug, ProjectRef, UserId};
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    GeneratedSecret, REQUEST_LIFETIME, applications,
    applications::{Application, ProjectSelection},
    grants,
    parameters::OAuthParameters,
    pkce::PkceChallenge,
    redirect,
};
use crate::{
    api::{context::ApiContext, projects},
    platform::{
        access::{EffectiveRoles, Organization, Role, Scopes, audience, credential::SecretDigest},
        audit::Recorder,
        db::Db,
        error::{Context, Error, oauth_error, unknown_client},
        tables::Table,
    },
};

/// Maximum length of `state` in bytes.
const STATE_MAX: usize = 2_048;

/// The outcome of an authorization request.
#[derive(Debug)]
pub enum AuthorizationOutcome {
    /// The request is stored under this id and waits for consent.
    Pending(Uuid),
    /// The request is invalid. The URI redirects to the application with the error.
    Rejected(String),
}

/// Validates and stores an authorization request. An `Err` must be shown to the user: the redirect
/// URI is not trusted yet.
pub async fn begin(
    context: &ApiContext,
    fields: Result<OAuthParameters, Error>,
    issuer: &str,
    project: Option<&ProjectRef>,
) -> Result<AuthorizationOutcome, Error> {
    let fields = fields?;
    let unknown = || unknown_client("Unrecognized client_id");
    let client_id = fields
        .get("client_id")
        .ok_or_else(|| unknown_client("Required parameter: client_id"))?;
    let client_id = Uuid::try_parse(client_id).map_err(|_| unknown())?;
    let application = applications::by_client_id(&context.db, client_id)
        .await?
        .ok_or_else(unknown)?;
    let address = fields.required("redirect_uri")?;
    if !redirect::is_registered(&application.redirect_uris, address, application.public) {
        return Err(oauth_error(
            "invalid_request",
            "redirect_uri is not registered for this application.",
        ));
    }
    let state = fields.get("state");
    let outcome = match AuthorizationParameters::read(&fields, &application, issuer) {
        Ok(parameters) => Ok(insert(
            context,
            &application,
            address,
            state,
            &parameters,
            issuer,
            project,
        )
        .await?),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(id) => Ok(AuthorizationOutcome::Pending(id)),
        Err(Error::OAuth(fault)) => {
            let mut answer = vec![
                ("error", fault.error),
                ("error_description", &fault.description),
                ("iss", issuer),
            ];
            // An overlong state is not returned.
            answer.extend(
                state
                    .filter(|state| state.len() <= STATE_MAX)
                    .map(|state| ("state", state)),
            );
            Ok(AuthorizationOutcome::Rejected(redirect::with_query(
                address, &answer,
            )))
        }
        Err(other) => Err(other),
    }
}

/// The parameters of a request, validated after its redirect URI.
struct AuthorizationParameters {
    scopes: Scopes,
    challenge: Option<PkceChallenge>,
    resource: Option<String>,
    organization: Option<String>,
}

impl AuthorizationParameters {
    fn read(
        fields: &OAuthParameters,
        application: &Application,
        issuer: &str,
    ) -> Result<Self, Error> {
        for (field, error) in [
            ("request", "request_not_supported"),
            ("request_uri", "request_uri_not_supported"),
        ] {
            if fields.has(field) {
                return Err(oauth_error(error, "Request objects are not supported."));
            }
        }
        if fields
            .get("state")
            .is_some_and(|state| state.len() > STATE_MAX)
        {
            return Err(oauth_error("invalid_request", "state is too long."));
        }
        match fields.get("response_type") {
            Some("code") => {}
            None => {
                return Err(oauth_error(
                    "invalid_request",
                    "Required parameter: response_type",
                ));
            }
            Some(_) => {
                return Err(oauth_error(
                    "unsupported_response_type",
                    "The response_type must be code.",
                ));
            }
        }
        if !matches!(fields.get("response_mode"), None | Some("query")) {
            return Err(oauth_error(
                "invalid_request",
                "The response_mode must be query.",
            ));
        }
        let challenge = PkceChallenge::parse(
            fields.get("code_challenge"),
            fields.get("code_challenge_method"),
        )?;
        if challenge.is_none() && application.needs_challenge() {
            return Err(oauth_error(
                "invalid_request",
                "This application must send a code_challenge.",
            ));
        }
        let organization = fields
            .get("organization_slug")
            .filter(|slug| slug.parse::<OrgSlug>().is_ok())
            .map(str::to_owned);
        let resource = fields
            .get("resource")
            .map(|resource| audience::check(resource, issuer))
            .transpose()?;
        Ok(Self {
            scopes: requested_scopes(fields.get("scope"), application.scopes)?,
            challenge,
            resource,
            organization,
        })
    }
}

/// Rejects an empty set of scopes, because a grant without scopes permits nothing.
fn non_empty(scopes: Scopes) -> Result<Scopes, Error> {
    if scopes.is_empty() {
        return Err(oauth_error(
            "invalid_scope",
            "None of these scopes is registered for this application.",
        ));
    }
    Ok(scopes)
}

/// Returns the requested scopes that are registered: all registered ones by default.
fn requested_scopes(scope: Option<&str>, registered: Scopes) -> Result<Scopes, Error> {
    let Some(text) = scope.filter(|text| *text != "all") else {
        return non_empty(registered);
    };
    non_empty(Scopes::named(text.split(' ')).and(registered))
}

async fn insert(
    context: &ApiContext,
    application: &Application,
    address: &str,
    state: Option<&str>,
    parameters: &AuthorizationParameters,
    issuer: &str,
    project: Option<&ProjectRef>,
) -> Result<Uuid, Error> {
    let id = context.entropy.uuid();
    let sql = "insert into oauth_requests (id, application_id, redirect_uri, state, scopes, challenge, resource, organization_slug, \
               project_ref, issuer, created_at) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let row: [crate::platform::db::Param<'_>; 11] = [
        &id,
        &application.id.0,
        &address,
        &state,
        &parameters.scopes.names(),
        &parameters.challenge.as_ref().map(PkceChallenge::as_bytes),
        &parameters.resource,
        &parameters.organization,
        &project.map(ProjectRef::as_str),
        &issuer,
        &context.clock.now(),
    ];
    context
        .db
        .query(sql, &row)
        .await
        .context("storing an authorization request")?;
    Ok(id)
}

/// An authorization request that is not expired.
#[derive(Debug)]
pub struct AuthorizationRequest {
    /// Id in URLs of pages.
    pub id: Uuid,
    /// The requesting application.
    pub application: Application,
    /// The redirect URI.
    pub redirect_uri: String,
    /// The requested scopes that the application still has.
    pub scopes: Scopes,
    /// Slug of the suggested organization.
    pub organization: Option<String>,
    /// Ref of the suggested project.
    pub project: Option<String>,
    /// Expiry time.
    pub expires_at: DateTime<Utc>,
    /// Time of approval; `None` if the request is pending or denied.
    pub approved_at: Option<DateTime<Utc>>,
    /// Whether the request was approved or denied.
    pub done: bool,
    state: Option<String>,
    challenge: Option<Vec<u8>>,
    resource: Option<String>,
    issuer: String,
    /// Digest of the browser session that claimed the request.
    session: Option<Vec<u8>>,
}

async fn read(db: &Db, row: &Row) -> Result<AuthorizationRequest, Error> {
    let application = applications::by_id(db, ApplicationId(row.get(1)))
        .await?
        .ok_or(Error::NotFound)?;
    Ok(AuthorizationRequest {
        id: row.get(0),
        redirect_uri: row.get(2),
        scopes: Scopes::named(row.get::<_, Vec<&str>>(3)).and(application.scopes),
        organization: row.get(4),
        project: row.get(5),
        expires_at: row.get::<_, DateTime<Utc>>(6) + REQUEST_LIFETIME,
        approved_at: row.get(7),
        done: row.get(8),
        state: row.get(9),
        challenge: row.get(10),
        resource: row.get(11),
        issuer: row.get(12),
        session: row.get(13),
        application,
    })
}

/// Returns a request that is not expired, pending or not.
pub async fn find(db: &Db, id: Uuid, now: DateTime<Utc>) -> Result<AuthorizationRequest, Error> {
    let sql = "select id, application_id, redirect_uri, scopes, organization_slug, project_ref, created_at, approved_at, done_at is not null, \
               state, challenge, resource, issuer, session from oauth_requests where id = $1 and created_at > $2";
    let rows = db
        .query(sql, &[&id, &(now - REQUEST_LIFETIME)])
        .await
        .context("reading an authorization request")?;
    read(db, rows.first().ok_or(Error::NotFound)?).await
}

/// Returns a request and claims it for a browser session: only the first session can answer it. A
/// request claimed by another session is reported as not found.
pub async fn claim_for_session(
    db: &Db,
    id: Uuid,
    session: &SecretDigest,
    now: DateTime<Utc>,
) -> Result<AuthorizationRequest, Error> {
    let sql = "update oauth_requests set session = $2 where id = $1 and created_at > $3 and (session is null or session = $2) returning id";
    let rows = db
        .query(sql, &[&id, &session.as_bytes(), &(now - REQUEST_LIFETIME)])
        .await
        .context("claiming an authorization request")?;
    if rows.is_empty() {
        return Err(Error::NotFound);
    }
    find(db, id, now).await
}

/// Releases a request claimed by this browser session, so that another account can answer it.
pub async fn release(db: &Db, id: Uuid, session: &SecretDigest) -> Result<(), Error> {
    let sql = "update oauth_requests set session = null where id = $1 and session = $2 and done_at is null";
    db.query(sql, &[&id, &session.as_bytes()])
        .await
        .context("releasing an authorization request")
        .map(drop)
}

/// Error message for a request without scopes that the application still has.
pub const NO_SCOPES_LEFT: &str = "The application no longer has any of the scopes that it asked for, so there is nothing to allow. \
                                Go back to it and begin again";

/// A member's choice at consent.
#[derive(Debug)]
pub struct ConsentChoice<'a> {
    /// The organization.
    pub organization: &'a Organization,
    /// The member's roles there.
    pub roles: EffectiveRoles,
    /// The selected projects; `None` means all current and future projects.
    pub projects: Option<Vec<ProjectRef>>,
}

/// The party that answers a request. Pages claim the request for their browser session first; an
/// API token has no session, so it cannot answer a request that a browser claimed.
#[derive(Debug, Clone, Copy)]
pub struct Respondent {
    /// The member.
    pub user: UserId,
    /// Whether the answer comes from a page of this server.
    pub from_browser: bool,
}

impl AuthorizationRequest {
    fn check_answerable(&self, respondent: Respondent) -> Result<(), Error> {
        if self.done || self.session.is_some() != respondent.from_browser {
            return Err(Error::Rejected(
                "The request was already answered, or another browser session answers it".into(),
            ));
        }
        Ok(())
    }

    fn redirect_with(&self, parameters: &[(&str, &str)]) -> String {
        let mut all = parameters.to_vec();
        all.extend(self.state.as_deref().map(|state| ("state", state)));
        all.push(("iss", &self.issuer));
        redirect::with_query(&self.redirect_uri, &all)
    }
}

/// Approves a request. Returns the redirect URI with the code.
pub async fn approve(
    context: &ApiContext,
    request: &AuthorizationRequest,
    respondent: Respondent,
    choice: ConsentChoice<'_>,
    audit: &Recorder,
) -> Result<String, Error> {
    let doing = "approving an authorization request";
    request.check_answerable(respondent)?;
    check_role(&request.application, choice.roles)?;
    if request.scopes.is_empty() {
        return Err(Error::Rejected(NO_SCOPES_LEFT.into()));
    }
    let projects = selected_projects(context, request, respondent.user, &choice).await?;
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Only one of several concurrent answers succeeds.
    let sql = "update oauth_requests set done_at = $2, approved_at = $2 where id = $1 and done_at is null and created_at > $3 returning id";
    let taken = transaction
        .query_opt(sql, &[&request.id, &now, &(now - REQUEST_LIFETIME)])
        .await
        .context(doing)?;
    taken
        .ok_or_else(|| Error::Rejected("The request was already answered, or is expired".into()))?;
    // The shared lock serializes this with the deletion of the application, which revokes all
    // grants.
    let sql = "select 1 from oauth_applications where id = $1 and deleted_at is null for share";
    transaction
        .query_opt(sql, &[&request.application.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    // The shared lock serializes this with the removal of the member.
    let sql = "select 1 from members where organization_id = $1 and user_id = $2 for share";
    let member = transaction
        .query_opt(sql, &[&choice.organization.id.0, &respondent.user.0])
        .await
        .context(doing)?;
    member.ok_or(Error::NotFound)?;
    let grant = grants::NewGrant {
        application: request.application.id,
        user: respondent.user,
        organization: choice.organization.id,
        projects: projects
            .as_ref()
            .map(|projects| projects.iter().map(|id| id.0).collect()),
        scopes: request.scopes,
        resource: request.resource.clone(),
        acts_as: choice.roles.organization,
    };
    let id = grants::insert(&transaction, &grant, now).await?;
    let code = GeneratedSecret::code(&context.entropy);
    let sql = "insert into oauth_codes (digest, grant_id, redirect_uri, challenge, created_at) values ($1, $2, $3, $4, $5)";
    transaction
        .execute(
            sql,
            &[
                &code.digest().as_bytes(),
                &id.0,
                &request.redirect_uri,
                &request.challenge,
                &now,
            ],
        )
        .await
        .context(doing)?;
    let after = json!({
        "approval": id.0, "application": request.application.client_id, "name": request.application.name,
        "organization": choice.organization.slug, "projects": choice.projects, "scopes": request.scopes.names(),
    });
    let change = (None, Some(after));
    let url = request.redirect_with(&[("code", code.expose())]);
    audit.result(&url);
    audit.commit(transaction, doing, 201, change, now).await?;
    context.table_changed(Table::OauthGrants);
    Ok(url)
}

/// An application that is not bound to a member's role keeps the granted access for the whole
/// organization, so only administrators can grant it.
fn check_role(application: &Application, roles: EffectiveRoles) -> Result<(), Error> {
    let lacks = !application.bound_to_user && roles.organization < Role::Administrator;
    if lacks {
        Err(Error::Forbidden(crate::platform::error::Denial::Role))
    } else {
        Ok(())
    }
}

/// Returns the row ids of the selected projects, if the application permits the selection.
async fn selected_projects(
    context: &ApiContext,
    request: &AuthorizationRequest,
    user: UserId,
    choice: &ConsentChoice<'_>,
) -> Result<Option<Vec<gantry_base::ids::ProjectId>>, Error> {
    let Some(selected) = &choice.projects else {
        return match request.application.selection {
            ProjectSelection::Required => Err(Error::invalid(
                "project_refs",
                "choose at least one project",
            )),
            ProjectSelection::Off | ProjectSelection::Optional => Ok(None),
        };
    };
    if request.application.selection == ProjectSelection::Off {
        return Err(Error::invalid(
            "project_refs",
            "this application takes the whole organization",
        ));
    }
    if !(1..=100).contains(&selected.len()) {
        return Err(Error::invalid("project_refs", "expected 1 to 100"));
    }
    let found = projects::of_member(&context.db, user, &selected.iter().cloned().collect()).await?;
    let here = |reference: &ProjectRef| {
        found
            .iter()
            .find(|it| it.reference == *reference && it.organization == choice.organization.id)
    };
    let ids = selected.iter().map(|reference| {
        here(reference)
            .map(|project| project.id)
            .ok_or_else(|| Error::invalid("project_refs", "one is not of this organization"))
    });
    ids.collect::<Result<_, _>>().map(Some)
}

/// Denies a request. Returns the redirect URI with the error.
pub async fn deny(
    context: &ApiContext,
    request: &AuthorizationRequest,
    respondent: Respondent,
    audit: &Recorder,
) -> Result<String, Error> {
    let doing = "denying an authorization request";
    request.check_answerable(respondent)?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update oauth_requests set done_at = $2 where id = $1 and done_at is null";
    let denied = transaction
        .execute(sql, &[&request.id, &context.clock.now()])
        .await;
    if denied.context(doing)? == 0 {
        return Err(Error::Rejected(
            "The request was already answered, or is expired".into(),
        ));
    }
    let url = request.redirect_with(&[
        ("error", "access_denied"),
        ("error_description", "The user denied the request."),
    ]);
    audit.result(&url);
    audit.record_key(&transaction).await?;
    transaction.commit().await.context(doing)?;
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_scopes_are_a_subset_of_registered() {
        let registered = Scopes::named(["projects:read", "database:read"]);
        for (scope, expected) in [
            (None, "database:read projects:read"),
            (Some("all"), "database:read projects:read"),
            (Some("projects:read"), "projects:read"),
            (
                Some("projects:read database:write nonsense"),
                "projects:read",
            ),
        ] {
            assert_eq!(
                requested_scopes(scope, registered).unwrap().to_string(),
                expected,
                "{scope:?}"
            );
        }
        for none in ["database:write", "nonsense", " ", "PROJECTS:READ"] {
            assert!(requested_scopes(Some(none), registered).is_err(), "{none}");
        }
    }
}
