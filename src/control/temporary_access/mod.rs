//! Temporary access to a project's database: grants to members, and logins for them.
//!
//! A grant permits a member to use a role of the database until an expiry, from some networks. A
//! login is a role of the server, created on the member's request. It ends with the grant, with the
//! member's role on the project, when the project disables temporary access, and after
//! [`LOGIN_TTL`] at the latest. [`reconciler`] makes the server's roles match the rows. PostgreSQL
//! itself rejects a login after its expiry, whether or not Gantry runs.

pub mod grants;
pub mod invitations;
pub mod reconciler;
pub mod server;
pub mod state;

use std::{net::IpAddr, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::ids::{ProjectId, ProjectRef};
use secrecy::SecretString;
use serde_json::json;
use tokio_postgres::{Row, Transaction};

use self::grants::AccessGrant;
pub use self::grants::permits_address;
pub use crate::proxy::postgres_proxy::TEMPORARY_LOGIN_PREFIX;
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::{Permission, Project, Role, User},
        audit::Recorder,
        error::{Context, Denial, Error},
    },
};

/// Maximum lifetime of a login. Requesting it again renews it.
pub const LOGIN_TTL: TimeDelta = TimeDelta::hours(8);
/// Maximum number of logins of a node.
const LOGINS_MAX: i64 = 10_000;
/// Maximum time for which an operation waits until the server was changed.
const APPLY_TIMEOUT: Duration = Duration::from_secs(15);
/// Characters of a user name that are part of login names.
const NAME_CHARS_MAX: usize = 30;

/// A row of `jit_logins` with the conditions for its validity.
#[derive(Debug, Clone)]
pub(crate) struct TemporaryLogin {
    id: i64,
    project: ProjectId,
    reference: ProjectRef,
    /// Granted role.
    role: String,
    /// Name of the login role.
    name: String,
    until: DateTime<Utc>,
    verifier: Option<String>,
    stale: bool,
    refusal: Option<String>,
    generation: i64,
    attempts: i32,
    not_before: DateTime<Utc>,
    conditions: LoginConditions,
}

/// Conditions under which a login is valid.
#[derive(Debug, Clone, Copy)]
struct LoginConditions {
    /// Whether the project has temporary access enabled.
    enabled: bool,
    /// Whether a grant exists.
    granted: bool,
    /// Expiry of the grant.
    expires_at: Option<DateTime<Utc>>,
    /// The member's role on the project, unless the user is not a member.
    role: Option<Role>,
    /// Whether the grant comes from an invitation, which needs no role.
    invited: bool,
}

impl LoginConditions {
    /// Returns the expiry: the grant's, or a time in the past if a condition is not met.
    fn until(&self) -> DateTime<Utc> {
        let admitted = self.invited
            || self
                .role
                .is_some_and(|role| role.holds(Permission::DatabaseJitRead));
        if self.enabled && self.granted && admitted {
            self.expires_at.unwrap_or(DateTime::<Utc>::MAX_UTC)
        } else {
            DateTime::<Utc>::MIN_UTC
        }
    }
}

impl TemporaryLogin {
    fn read(row: &Row) -> Result<Self, Error> {
        let role = |name: Option<&str>| {
            name.map(|name| name.parse::<Role>().context("reading a member's role"))
                .transpose()
        };
        let in_organization = role(row.get(15))?;
        let on_project = role(row.get(16))?;
        Ok(Self {
            id: row.get(0),
            project: ProjectId(row.get(1)),
            reference: row
                .get::<_, &str>(2)
                .parse()
                .context("reading a project's ref")?,
            role: row.get(3),
            name: row.get(4),
            until: row.get(5),
            verifier: row.get(6),
            stale: row.get(7),
            refusal: row.get(8),
            generation: row.get(9),
            attempts: row.get(10),
            not_before: row.get(11),
            conditions: LoginConditions {
                enabled: row.get(12),
                granted: row.get(13),
                expires_at: row.get(14),
                role: in_organization.max(on_project),
                invited: row.get(17),
            },
        })
    }

    /// Returns whether the login must be removed.
    fn has_expired(&self, now: DateTime<Utc>) -> bool {
        self.expires_at() <= now
    }

    fn expires_at(&self) -> DateTime<Utc> {
        self.until.min(self.conditions.until())
    }

    /// Returns whether the server's role differs from the desired one.
    fn needs_update(&self, now: DateTime<Utc>) -> bool {
        self.stale || self.has_expired(now)
    }

    /// Returns whether the server's role is to be changed now.
    fn is_due(&self, now: DateTime<Utc>) -> bool {
        self.needs_update(now) && self.not_before <= now
    }

    /// Returns the time of the next check.
    fn next_check(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        if self.needs_update(now) {
            self.not_before
        } else {
            self.expires_at()
        }
    }
}

/// Reads the logins of this node's running servers, or those of one project in any status.
async fn logins(
    context: &ControlContext,
    project: Option<ProjectId>,
) -> Result<Vec<TemporaryLogin>, Error> {
    let sql = "select l.id, l.project_id, p.ref, l.role, l.name, l.until, l.verifier, l.stale, l.refusal, l.generation, l.attempts, \
               l.not_before, coalesce(s.enabled, false), coalesce(not g.branches_only, false), g.expires_at, m.role, r.role, g.invitation_id is not null \
               from jit_logins l join projects p on p.id = l.project_id \
               left join jit_settings s on s.project_id = l.project_id \
               left join jit_grants g on (g.project_id, g.user_id, g.role) = (l.project_id, l.user_id, l.role) \
               left join members m on (m.organization_id, m.user_id) = (p.organization_id, l.user_id) \
               left join project_roles r on (r.project_id, r.user_id) = (l.project_id, l.user_id) \
               where case when $2::bigint is null then p.node = $1 and p.status = 'ACTIVE_HEALTHY' else p.id = $2 end \
               order by l.id limit $3";
    let project = project.map(|project| project.0);
    let rows = context
        .db
        .query(sql, &[&context.settings.node, &project, &LOGINS_MAX])
        .await
        .context("reading logins")?;
    rows.iter().map(TemporaryLogin::read).collect()
}

/// Returns whether temporary access is enabled for a project.
pub async fn is_enabled(context: &ControlContext, project: &Project) -> Result<bool, Error> {
    let sql = "select enabled from jit_settings where project_id = $1";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading whether access is enabled")?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Enables or disables temporary access. Disabling revokes all logins.
pub async fn enable(
    context: &ControlContext,
    project: &Project,
    enabled: bool,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "switching access to a database";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = "select enabled from jit_settings where project_id = $1";
    let before = transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context(doing)?
        .is_some_and(|row| row.get(0));
    let sql = "insert into jit_settings (project_id, enabled) values ($1, $2) on conflict (project_id) do update set enabled = $2";
    transaction
        .execute(sql, &[&project.id.0, &enabled])
        .await
        .context(doing)?;
    let entry = |enabled: bool| Some(json!({"enabled": enabled}));
    let change = (entry(before), entry(enabled));
    audit
        .commit(transaction, doing, 200, change, context.clock.now())
        .await?;
    context.temporary_access.wake();
    Ok(())
}

/// Credentials of an opened login. No `Debug`, because of the password.
pub struct LoginCredentials {
    /// Grant that permits the login.
    pub grant: AccessGrant,
    /// Login role.
    pub name: String,
    /// Password. Not stored.
    pub password: SecretString,
    /// Expiry.
    pub until: DateTime<Utc>,
}

/// Opens a login for a member with a grant, and returns after the server accepts it. An existing
/// login for the role gets the new password and expiry; its sessions continue.
///
/// Errors: [`Error::Rejected`] if temporary access is disabled or the role cannot be granted;
/// [`Error::Forbidden`] without a grant; [`Error::DatabaseUnreachable`].
pub async fn open(
    context: &ControlContext,
    project: &Project,
    user: &User,
    role: &str,
    from: IpAddr,
    audit: &Recorder,
) -> Result<LoginCredentials, Error> {
    // Waits for a project that is starting.
    projects::target(context, project).await?;
    if !is_enabled(context, project).await? {
        return Err(disabled_error());
    }
    let grants = grants::of_member(context, project, user.id).await?;
    let grant = grants
        .into_iter()
        .find(|grant| grant.role == role && !grant.branches_only && grant.permits_address(from));
    let grant = grant.ok_or(Error::Forbidden(Denial::Role))?;
    open_login(context, project, user, grant, audit).await
}

fn disabled_error() -> Error {
    Error::Rejected("Temporary access to the database is not enabled for this project".into())
}

/// Opens the login of a grant.
async fn open_login(
    context: &ControlContext,
    project: &Project,
    user: &User,
    grant: AccessGrant,
    audit: &Recorder,
) -> Result<LoginCredentials, Error> {
    let now = context.clock.now();
    let until = grant
        .expires_at
        .map_or(now + LOGIN_TTL, |expiry| expiry.min(now + LOGIN_TTL));
    let password = SecretString::from(hex::encode(context.entropy.bytes::<20>()));
    let verifier = projects::verifier(password.clone()).await?;
    let (id, generation, name) =
        request_login(context, project, user, &grant, (until, &verifier), audit).await?;
    context.temporary_access.wake();
    match tokio::time::timeout(
        APPLY_TIMEOUT,
        wait_until_open(context, project, id, generation),
    )
    .await
    {
        Ok(opened) => opened?,
        Err(_) => return Err(Error::DatabaseUnreachable),
    }
    Ok(LoginCredentials {
        grant,
        name,
        password,
        until,
    })
}

/// Stores the desired login. Returns its row id, generation and name.
async fn request_login(
    context: &ControlContext,
    project: &Project,
    user: &User,
    grant: &AccessGrant,
    (until, verifier): (DateTime<Utc>, &str),
    audit: &Recorder,
) -> Result<(i64, i64, String), Error> {
    let doing = "requesting a login";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    lock(&transaction, project).await?;
    let sql = "select username from users where id = $1";
    let row = transaction
        .query_opt(sql, &[&user.id.0])
        .await
        .context(doing)?
        .ok_or(Error::NotFound)?;
    let name = login_name(row.get(0), &context.entropy.letters(8));
    let sql = "insert into jit_logins (project_id, user_id, role, name, until, verifier, not_before) values ($1, $2, $3, $4, $5, $6, $7) \
               on conflict on constraint jit_logins_member_key do update set until = excluded.until, verifier = excluded.verifier, stale = true, \
               refusal = null, generation = jit_logins.generation + 1, attempts = 0, not_before = excluded.not_before \
               returning id, generation, name";
    let row = transaction
        .query_one(
            sql,
            &[
                &project.id.0,
                &user.id.0,
                &grant.role,
                &name,
                &until,
                &verifier,
                &now,
            ],
        )
        .await
        .context(doing)?;
    let id = row.get(0);
    let generation = row.get(1);
    let name: String = row.get(2);
    let change = (
        None,
        Some(json!({"role": grant.role, "login": name, "until": until})),
    );
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok((id, generation, name))
}

/// Waits until the server has this login.
async fn wait_until_open(
    context: &ControlContext,
    project: &Project,
    id: i64,
    generation: i64,
) -> Result<(), Error> {
    let mut changes = context.temporary_access.changes();
    loop {
        changes.borrow_and_update();
        let now = context.clock.now();
        let login = logins(context, Some(project.id))
            .await?
            .into_iter()
            .find(|login| login.id == id);
        // A later request raised the generation: only its password is valid.
        let login = login
            .filter(|login| login.generation == generation)
            .ok_or(Error::Forbidden(Denial::Role))?;
        match login.refusal.clone() {
            Some(refusal) => return Err(Error::Rejected(refusal.into())),
            None if login.has_expired(now) => return Err(Error::Forbidden(Denial::Role)),
            None if !login.stale => return Ok(()),
            None => changes.changed().await.context("waiting for a login")?,
        }
    }
}

/// Waits until the project's server has no expired login. Returns at once if the server is not
/// running.
///
/// Errors: [`Error::DatabaseUnreachable`] on timeout; the logins are then removed by a later pass.
pub async fn wait_until_revoked(context: &ControlContext, project: &Project) -> Result<(), Error> {
    let mut changes = context.temporary_access.changes();
    let ended = async {
        loop {
            changes.borrow_and_update();
            let now = context.clock.now();
            if logins(context, Some(project.id))
                .await?
                .iter()
                .all(|login| !login.has_expired(now))
                || !runs(context, project).await?
            {
                return Ok(());
            }
            changes
                .changed()
                .await
                .context("waiting for the end of a login")?;
        }
    };
    tokio::time::timeout(APPLY_TIMEOUT, ended)
        .await
        .unwrap_or(Err(Error::DatabaseUnreachable))
}

/// Returns whether the server matches the desired logins.
pub async fn is_settled(context: &ControlContext, project: &Project) -> Result<bool, Error> {
    let now = context.clock.now();
    Ok(logins(context, Some(project.id))
        .await?
        .iter()
        .all(|login| !login.needs_update(now)))
}

async fn runs(context: &ControlContext, project: &Project) -> Result<bool, Error> {
    Ok(projects::status(context, project.id).await? == projects::Status::ActiveHealthy)
}

/// Locks a project, unless it was removed, so that changes of its grants are serialised.
async fn lock(transaction: &Transaction<'_>, project: &Project) -> Result<(), Error> {
    let doing = "locking a project";
    let locked = projects::lock(transaction, project, doing).await;
    locked.map(drop)
}

/// Returns a login name with the member's user name and random letters.
fn login_name(username: &str, letters: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let member: String = username.chars().take(NAME_CHARS_MAX).map(plain).collect();
    format!("{TEMPORARY_LOGIN_PREFIX}{member}_{letters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn conditions_require_enabled_grant_and_role() {
        let all = LoginConditions {
            enabled: true,
            granted: true,
            expires_at: Some(at(100)),
            role: Some(Role::ReadOnly),
            invited: false,
        };
        assert_eq!(all.until(), at(100));
        assert_eq!(
            LoginConditions {
                expires_at: None,
                ..all
            }
            .until(),
            DateTime::<Utc>::MAX_UTC
        );
        for missing in [
            LoginConditions {
                enabled: false,
                ..all
            },
            LoginConditions {
                granted: false,
                ..all
            },
            LoginConditions { role: None, ..all },
            LoginConditions {
                role: Some(Role::Member),
                ..all
            },
        ] {
            assert_eq!(missing.until(), DateTime::<Utc>::MIN_UTC, "{missing:?}");
        }
        let guest = LoginConditions {
            role: None,
            invited: true,
            ..all
        };
        assert_eq!(guest.until(), at(100));
        assert_eq!(
            LoginConditions {
                enabled: false,
                ..guest
            }
            .until(),
            DateTime::<Utc>::MIN_UTC
        );
    }

    #[test]
    fn login_expires_with_the_earlier_limit() {
        let login = |until, grant| TemporaryLogin {
            id: 1,
            project: ProjectId(1),
            reference: "abcdefghijklmnopqrst".parse().unwrap(),
            role: "postgres".to_owned(),
            name: "x".to_owned(),
            until: at(until),
            verifier: None,
            stale: false,
            refusal: None,
            generation: 0,
            attempts: 0,
            not_before: at(5),
            conditions: LoginConditions {
                enabled: true,
                granted: true,
                expires_at: Some(at(grant)),
                role: Some(Role::Owner),
                invited: false,
            },
        };
        for (until, grant) in [(10, 20), (20, 10)] {
            let login = login(until, grant);
            assert!(!login.has_expired(at(9)) && login.has_expired(at(10)));
            assert_eq!(
                (login.next_check(at(9)), login.next_check(at(10))),
                (at(10), at(5))
            );
            assert!(!login.is_due(at(9)) && login.is_due(at(10)));
        }
        let stale = TemporaryLogin {
            stale: true,
            ..login(10, 20)
        };
        assert!(!stale.is_due(at(4)) && stale.is_due(at(5)), "postponed");
    }

    #[test]
    fn login_names_are_short_ascii() {
        assert_eq!(
            login_name("Olga Ö.", "abcdefgh"),
            "gantry_jit_olga____abcdefgh"
        );
        assert!(login_name(&"x".repeat(300), "abcdefgh").len() < 64);
    }
}
