//! Registered applications.

pub mod operations;
pub mod secrets;
pub mod verify;

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{ApplicationId, OrganizationId, UserId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{grants, redirect};
use crate::platform::{
    access::{OauthScope, Scopes},
    audit::Recorder,
    db::{self, Db},
    error::{Context, Error},
    names,
};

/// Maximum number of applications per organization.
const APPLICATIONS_MAX: i64 = 200;
/// Maximum length of a name in characters.
const NAME_CHARS_MAX: usize = 100;
/// Maximum number of redirect URIs per application. Matches the check constraint of the table.
const REDIRECTS_MAX: usize = 20;

/// The choice of projects at consent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OauthProjectSelection")]
pub enum ProjectSelection {
    /// Access to the whole organization.
    #[default]
    Off,
    /// Access to the whole organization or to selected projects.
    Optional,
    /// Access to selected projects only.
    Required,
}

impl ProjectSelection {
    /// Name in the database and on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }

    fn read(name: &str) -> Self {
        match name {
            "off" => Self::Off,
            "optional" => Self::Optional,
            // An unknown value of a newer version is read as the most restrictive one.
            _ => Self::Required,
        }
    }
}

/// A registered application that is not deleted.
#[derive(Debug, Clone)]
pub struct Application {
    /// Row of `oauth_applications`.
    pub id: ApplicationId,
    /// Public client id.
    pub client_id: Uuid,
    /// The owning organization; `None` if it registered itself.
    pub organization: Option<OrganizationId>,
    /// Display name.
    pub name: String,
    /// Website.
    pub website: String,
    /// URL of an icon.
    pub icon: Option<String>,
    /// Redirect URIs.
    pub redirect_uris: Vec<String>,
    /// Scopes that it may request.
    pub scopes: Scopes,
    /// Whether it is a public client, which cannot keep a secret.
    pub public: bool,
    /// Whether its tokens are limited to the role of the granting member.
    pub bound_to_user: bool,
    /// The choice of projects at consent.
    pub selection: ProjectSelection,
    /// Whether the operator verified it.
    pub verified: bool,
    /// Time of registration.
    pub created_at: DateTime<Utc>,
}

impl Application {
    /// Returns whether PKCE is required: for public and for self-registered applications.
    pub fn needs_challenge(&self) -> bool {
        self.public || self.organization.is_none()
    }
}

macro_rules! applications {
    ($rest:literal) => {
        concat!(
            "select a.id, a.client_id, a.organization_id, a.name, a.website, a.icon, a.redirect_uris, a.scopes, a.public, \
             a.bind_to_authorizing_user, a.project_selection, a.verified, a.created_at from oauth_applications a where a.deleted_at is null and ",
            $rest
        )
    };
}

fn read(row: &Row) -> Application {
    Application {
        id: ApplicationId(row.get(0)),
        client_id: row.get(1),
        organization: row.get::<_, Option<i64>>(2).map(OrganizationId),
        name: row.get(3),
        website: row.get(4),
        icon: row.get(5),
        redirect_uris: row.get(6),
        scopes: Scopes::named(row.get::<_, Vec<&str>>(7)),
        public: row.get(8),
        bound_to_user: row.get(9),
        selection: ProjectSelection::read(row.get(10)),
        verified: row.get(11),
        created_at: row.get(12),
    }
}

/// Returns the application with this client id.
pub async fn by_client_id(db: &Db, client_id: Uuid) -> Result<Option<Application>, Error> {
    let rows = db
        .query(applications!("a.client_id = $1"), &[&client_id])
        .await
        .context("looking up an application")?;
    Ok(rows.first().map(read))
}

/// Returns the application with this row id.
pub async fn by_id(db: &Db, id: ApplicationId) -> Result<Option<Application>, Error> {
    let rows = db
        .query(applications!("a.id = $1"), &[&id.0])
        .await
        .context("looking up an application")?;
    Ok(rows.first().map(read))
}

/// Returns whether any application is registered.
pub async fn any_registered(db: &Db) -> Result<bool, Error> {
    let rows = db
        .query(applications!("true limit 1"), &[])
        .await
        .context("looking for applications")?;
    Ok(!rows.is_empty())
}

/// Lists the applications of an organization, by name.
pub async fn list(db: &Db, organization: OrganizationId) -> Result<Vec<Application>, Error> {
    let sql = applications!("a.organization_id = $1 order by lower(a.name), a.id limit $2");
    let rows = db
        .query(sql, &[&organization.0, &APPLICATIONS_MAX])
        .await
        .context("listing applications")?;
    Ok(rows.iter().map(read).collect())
}

/// Returns an application of an organization.
pub async fn by_organization(
    db: &Db,
    organization: OrganizationId,
    client_id: Uuid,
) -> Result<Application, Error> {
    by_client_id(db, client_id)
        .await?
        .filter(|found| found.organization == Some(organization))
        .ok_or(Error::NotFound)
}

/// The properties of an application to be registered.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "CreateOauthApplication")]
#[serde(deny_unknown_fields)]
pub struct ApplicationDraft {
    /// Display name.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Website: an https URL or empty.
    #[serde(default)]
    pub website: String,
    /// URL of an icon: an https URL.
    pub icon: Option<String>,
    /// Redirect URIs: https, or http on a loopback address. Compared byte by byte.
    pub redirect_uris: Vec<String>,
    /// Names of the scopes that it may request.
    pub scopes: Vec<String>,
    /// Whether it is a public client, which has no secret and uses PKCE.
    #[serde(default)]
    pub public: bool,
    /// Whether its tokens are limited to the role of the granting member. Cannot be switched off
    /// again.
    #[serde(default, rename = "bind_to_authorizing_user")]
    pub bound_to_user: bool,
    /// The choice of projects at consent. Cannot be loosened again.
    #[serde(default, rename = "project_selection")]
    pub selection: ProjectSelection,
}

impl ApplicationDraft {
    /// Returns the properties of an existing application.
    pub fn of(application: &Application) -> Self {
        Self {
            name: application.name.clone(),
            website: application.website.clone(),
            icon: application.icon.clone(),
            redirect_uris: application.redirect_uris.clone(),
            scopes: application
                .scopes
                .names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            public: application.public,
            bound_to_user: application.bound_to_user,
            selection: application.selection,
        }
    }

    /// Returns whether the application stays verified: its appearance is unchanged, and it requests
    /// no scope that the operator did not verify.
    fn stays_verified(&self, application: &Application, scopes: Scopes) -> bool {
        scopes.within(application.scopes)
            && (&self.name, &self.website, &self.icon, &self.redirect_uris)
                == (
                    &application.name,
                    &application.website,
                    &application.icon,
                    &application.redirect_uris,
                )
    }

    /// Validates the draft and returns its scopes.
    pub fn check(&self) -> Result<Scopes, Error> {
        check_name(&self.name)?;
        for (field, address) in [
            ("website", self.website.as_str()),
            ("icon", self.icon.as_deref().unwrap_or_default()),
        ] {
            if !address.is_empty() && !is_https_url(address) {
                return Err(Error::invalid(field, "expected an https address"));
            }
        }
        check_redirects(&self.redirect_uris)?;
        let scope = |name: &String| {
            OauthScope::from_name(name).ok_or_else(|| {
                Error::invalid(
                    "scopes",
                    format!("{name} is not in the catalogue of scopes"),
                )
            })
        };
        if self.scopes.is_empty() {
            return Err(Error::invalid("scopes", "expected at least one"));
        }
        self.scopes.iter().map(scope).collect()
    }

    fn audit_value(&self) -> Value {
        json!({
            "name": self.name, "website": self.website, "icon": self.icon, "redirect_uris": self.redirect_uris, "scopes": self.scopes,
            "public": self.public, "bind_to_authorizing_user": self.bound_to_user, "project_selection": self.selection.name(),
        })
    }
}

/// Checks the name of an application. Surrounding spaces are rejected, because the name alone
/// identifies an application to members.
pub fn check_name(name: &str) -> Result<(), Error> {
    if name.trim() != name {
        return Err(Error::invalid(
            "name",
            format!(
                "expected 1 to {NAME_CHARS_MAX} visible characters, without spaces around them"
            ),
        ));
    }
    names::check("name", name, NAME_CHARS_MAX)
}

/// Rejects redirect URIs that cannot be registered.
pub fn check_redirects(list: &[String]) -> Result<(), Error> {
    if !(1..=REDIRECTS_MAX).contains(&list.len()) {
        return Err(Error::invalid(
            "redirect_uris",
            format!("expected 1 to {REDIRECTS_MAX}"),
        ));
    }
    match list
        .iter()
        .find_map(|address| redirect::validation_error(address))
    {
        Some(problem) => Err(Error::invalid(
            "redirect_uris",
            format!("one of them {problem}"),
        )),
        None => Ok(()),
    }
}

/// Returns whether the text is an https URL that pages can link to.
pub fn is_https_url(address: &str) -> bool {
    address.starts_with("https://") && redirect::validation_error(address).is_none()
}

/// Registers an application.
pub async fn create(
    db: &Db,
    entropy: &Entropy,
    (organization, creator): (OrganizationId, UserId),
    draft: &ApplicationDraft,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<Application, Error> {
    let doing = "registering an application";
    let scopes = draft.check()?;
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The lock serializes concurrent registrations, so that the count below is exact.
    transaction
        .execute(
            "select 1 from organizations where id = $1 for update",
            &[&organization.0],
        )
        .await
        .context(doing)?;
    let sql =
        "select count(*) from oauth_applications where organization_id = $1 and deleted_at is null";
    if db::count(&transaction, sql, organization.0, doing).await? >= APPLICATIONS_MAX {
        return Err(Error::Rejected(
            format!("An organization can have {APPLICATIONS_MAX} applications; delete one first")
                .into(),
        ));
    }
    let client_id = entropy.uuid();
    insert(
        &transaction,
        client_id,
        Some((organization, creator)),
        draft,
        scopes,
        now,
    )
    .await?;
    let change = (None, Some(with_id(client_id, draft.audit_value())));
    let row = transaction
        .query_one(applications!("a.client_id = $1"), &[&client_id])
        .await;
    let created = read(&row.context(doing)?);
    audit.result(&created);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(created)
}

/// Inserts the row of a validated application. Without an owner, it is marked as self-registered.
pub async fn insert(
    transaction: &Transaction<'_>,
    client_id: Uuid,
    owner: Option<(OrganizationId, UserId)>,
    draft: &ApplicationDraft,
    scopes: Scopes,
    now: DateTime<Utc>,
) -> Result<ApplicationId, Error> {
    let sql = "insert into oauth_applications (client_id, organization_id, created_by, name, website, icon, redirect_uris, scopes, public, \
               bind_to_authorizing_user, project_selection, source, created_at) \
               values ($1, $2, $3, $4, $5, nullif($6, ''), $7, $8, $9, $10, $11, $12, $13) returning id";
    let (organization, creator) = owner.unzip();
    let row = transaction
        .query_one(
            sql,
            &[
                &client_id,
                &organization.map(|id| id.0),
                &creator.map(|id| id.0),
                &draft.name,
                &draft.website,
                &draft.icon,
                &draft.redirect_uris,
                &scopes.names(),
                &draft.public,
                &draft.bound_to_user,
                &draft.selection.name(),
                &if owner.is_some() { "manual" } else { "dcr" },
                &now,
            ],
        )
        .await
        .context("registering an application")?;
    Ok(ApplicationId(row.get(0)))
}

/// A partial update of an application; absent fields stay unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "UpdateOauthApplication")]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields of a draft")]
pub struct ApplicationPatch {
    #[schemars(length(min = 1, max = 100))]
    pub name: Option<String>,
    pub website: Option<String>,
    /// An empty text removes the icon.
    pub icon: Option<String>,
    pub redirect_uris: Option<Vec<String>>,
    pub scopes: Option<Vec<String>>,
    #[serde(rename = "bind_to_authorizing_user")]
    pub bound_to_user: Option<bool>,
    #[serde(rename = "project_selection")]
    pub selection: Option<ProjectSelection>,
}

impl ApplicationPatch {
    /// Applies the update. Restrictions cannot be lifted: members granted access under them.
    fn applied_to(self, application: &Application) -> Result<ApplicationDraft, Error> {
        let is = ApplicationDraft::of(application);
        let draft = ApplicationDraft {
            name: self.name.unwrap_or(is.name),
            website: self.website.unwrap_or(is.website),
            icon: self.icon.or(is.icon).filter(|icon| !icon.is_empty()),
            redirect_uris: self.redirect_uris.unwrap_or(is.redirect_uris),
            scopes: self.scopes.unwrap_or(is.scopes),
            public: is.public,
            bound_to_user: self.bound_to_user.unwrap_or(is.bound_to_user),
            selection: self.selection.unwrap_or(is.selection),
        };
        if application.bound_to_user && !draft.bound_to_user {
            return Err(Error::invalid(
                "bind_to_authorizing_user",
                "cannot be switched off again",
            ));
        }
        if draft.selection < application.selection {
            return Err(Error::invalid(
                "project_selection",
                "cannot be loosened again",
            ));
        }
        Ok(draft)
    }
}

/// Updates an application and returns it.
pub async fn change(
    db: &Db,
    id: ApplicationId,
    change: ApplicationPatch,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<Application, Error> {
    let doing = "changing an application";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // The lock serializes concurrent updates, so that none is lost.
    let row = transaction
        .query_opt(applications!("a.id = $1 for update of a"), &[&id.0])
        .await
        .context(doing)?;
    let application = read(&row.ok_or(Error::NotFound)?);
    let draft = change.applied_to(&application)?;
    let scopes = draft.check()?;
    let verified = application.verified && draft.stays_verified(&application, scopes);
    let sql = "update oauth_applications set name = $2, website = $3, icon = $4, redirect_uris = $5, scopes = $6, \
               bind_to_authorizing_user = $7, project_selection = $8, verified = $9 where id = $1";
    let values: [crate::platform::db::Param<'_>; 9] = [
        &id.0,
        &draft.name,
        &draft.website,
        &draft.icon,
        &draft.redirect_uris,
        &scopes.names(),
        &draft.bound_to_user,
        &draft.selection.name(),
        &verified,
    ];
    transaction.execute(sql, &values).await.context(doing)?;
    let mut before = ApplicationDraft::of(&application).audit_value();
    before["verified"] = application.verified.into();
    let mut after = draft.audit_value();
    after["verified"] = verified.into();
    let states = (
        Some(with_id(application.client_id, before)),
        Some(with_id(application.client_id, after)),
    );
    let ApplicationDraft {
        name,
        website,
        icon,
        redirect_uris,
        bound_to_user,
        selection,
        ..
    } = draft;
    let changed = Application {
        name,
        website,
        icon,
        redirect_uris,
        scopes,
        bound_to_user,
        selection,
        verified,
        ..application
    };
    audit.result(&changed);
    audit.commit(transaction, doing, 200, states, now).await?;
    Ok(changed)
}

/// Deletes an application and revokes its grants. Returns their number.
pub async fn delete(
    db: &Db,
    application: &Application,
    now: DateTime<Utc>,
    audit: &Recorder,
) -> Result<u64, Error> {
    let doing = "deleting an application";
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update oauth_applications set deleted_at = $2 where id = $1 and deleted_at is null returning id";
    transaction
        .query_opt(sql, &[&application.id.0, &now])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let ended = grants::mark_all_revoked(&transaction, application.id, now).await?;
    let before = with_id(
        application.client_id,
        ApplicationDraft::of(application).audit_value(),
    );
    let change = (Some(before), Some(json!({"authorizations_revoked": ended})));
    audit.result(&ended);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(ended)
}

fn with_id(client_id: Uuid, mut value: Value) -> Value {
    value["id"] = client_id.to_string().into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_name_rejects_invisible_characters() {
        for fine in ["Acme", "Açme 2.0", "日本", "<b>"] {
            assert!(check_name(fine).is_ok(), "{fine}");
        }
        for wrong in [
            "",
            " Acme",
            "Acme ",
            "A\u{202e}cme",
            "A\u{200b}cme",
            "A\ncme",
            "\u{feff}Acme",
            &"x".repeat(101),
        ] {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
