//! Access to a project's database for a time: what members are granted, and the logins they get for it.
//!
//! A grant says that a member may be a role of the database until some time, from some networks. A login is a role of the
//! server, made when the member asks for it, that ends with the grant, with the member's role on the project, when the project
//! switches this off, and after [`LIFE`] in any case. [`keeper`] makes the server's roles what the rows say; the server itself
//! lets nobody in after a login's end, whether or not Gantry runs.

pub mod grants;
pub mod invitations;
pub mod keeper;
pub mod server;

use std::{net::IpAddr, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use secrecy::SecretString;
use serde_json::json;
use tokio_postgres::{Row, Transaction};

use self::grants::Grant;
pub use self::{grants::admits, keeper::Keeper, server::LOGIN_PREFIX};
use crate::{
    base::{
        error::{Context, Denial, Error},
        ids::{ProjectId, ProjectRef},
    },
    data_plane::{context::DataPlaneContext, projects},
    platform::{
        access::{Permission, Project, Role, User},
        audit::Recorder,
    },
};

/// How long a login lasts whose grant lasts longer. Asked for again, it goes on.
pub const LIFE: TimeDelta = TimeDelta::hours(8);
/// Logins of one node.
const LOGINS_MAX: i64 = 10_000;
/// How long an operation waits for the server.
const WAIT: Duration = Duration::from_secs(15);
/// Letters of a member's name that its logins show.
const NAME_MAX: usize = 30;

/// A login as it is written down, and what it depends on.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    id: i64,
    project: ProjectId,
    reference: ProjectRef,
    /// The role that the member is.
    role: String,
    /// The role that the member logs in as.
    name: String,
    until: DateTime<Utc>,
    verifier: Option<String>,
    stale: bool,
    refusal: Option<String>,
    generation: i64,
    attempts: i32,
    not_before: DateTime<Utc>,
    standing: Standing,
}

/// What a login needs in order to be.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// Whether the project has this switched on.
    enabled: bool,
    /// Whether there is a grant.
    granted: bool,
    /// Until when, if it says.
    expires_at: Option<DateTime<Utc>>,
    /// The member's role on the project; none if no member.
    role: Option<Role>,
    /// Whether the grant is an invitation's, which needs no role.
    invited: bool,
}

impl Standing {
    /// When it is over; a time that is past if it is.
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

impl Login {
    fn read(row: &Row) -> Result<Self, Error> {
        let role = |name: Option<&str>| {
            name.map(|name| name.parse::<Role>().context("reading a member's role"))
                .transpose()
        };
        let (in_organization, on_project) = (role(row.get(15))?, role(row.get(16))?);
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
            standing: Standing {
                enabled: row.get(12),
                granted: row.get(13),
                expires_at: row.get(14),
                role: in_organization.max(on_project),
                invited: row.get(17),
            },
        })
    }

    /// Whether its member may not be let in any more.
    fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ends() <= now
    }

    fn ends(&self) -> DateTime<Utc> {
        self.until.min(self.standing.until())
    }

    /// Whether the server is not yet what it should be.
    fn is_wrong(&self, now: DateTime<Utc>) -> bool {
        self.stale || self.is_over(now)
    }

    /// Whether that is to be changed now.
    fn is_due(&self, now: DateTime<Utc>) -> bool {
        self.is_wrong(now) && self.not_before <= now
    }

    /// When it is next to be looked at.
    fn next(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        if self.is_wrong(now) {
            self.not_before
        } else {
            self.ends()
        }
    }
}

/// The logins of this node's running servers, or of one project's whether it runs or not.
async fn logins(
    context: &DataPlaneContext,
    project: Option<ProjectId>,
) -> Result<Vec<Login>, Error> {
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
    rows.iter().map(Login::read).collect()
}

/// Whether members can be let in at all.
pub async fn is_enabled(context: &DataPlaneContext, project: &Project) -> Result<bool, Error> {
    let sql = "select enabled from jit_settings where project_id = $1";
    let rows = context
        .db
        .query(sql, &[&project.id.0])
        .await
        .context("reading whether access is enabled")?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Switches it on, or off, which ends every login.
pub async fn enable(
    context: &DataPlaneContext,
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
    let told = |enabled: bool| Some(json!({"enabled": enabled}));
    audit
        .write_in(
            &transaction,
            200,
            (told(before), told(enabled)),
            context.clock.now(),
        )
        .await?;
    transaction.commit().await.context(doing)?;
    context.jit.wake();
    Ok(())
}

/// A login that was opened. It has no `Debug`: the password is in it.
pub struct Opened {
    /// What it was opened by.
    pub grant: Grant,
    /// Whom to log in as.
    pub name: String,
    /// With what. It is kept nowhere.
    pub password: SecretString,
    /// Until when.
    pub until: DateTime<Utc>,
}

/// Opens a login for a member who has a grant for it, and returns when the server lets it in. The one that the member has for
/// this role already gets the new password and end; its sessions go on.
///
/// Errors: [`Error::Rejected`] if it is switched off, or the role cannot be given; [`Error::Forbidden`] without a grant;
/// [`Error::DatabaseUnreachable`].
pub async fn open(
    context: &DataPlaneContext,
    project: &Project,
    user: &User,
    role: &str,
    from: IpAddr,
    audit: &Recorder,
) -> Result<Opened, Error> {
    // Waits for a project that is just starting.
    projects::target(context, project).await?;
    if !is_enabled(context, project).await? {
        return Err(switched_off());
    }
    let grants = grants::of_member(context, project, user.id).await?;
    let grant = grants
        .into_iter()
        .find(|grant| grant.role == role && !grant.branches_only && grant.admits(from));
    let grant = grant.ok_or(Error::Forbidden(Denial::Role))?;
    let_in(context, project, user, grant, audit).await
}

fn switched_off() -> Error {
    Error::Rejected("Temporary access to the database is not enabled for this project".into())
}

/// Opens the login of one grant.
async fn let_in(
    context: &DataPlaneContext,
    project: &Project,
    user: &User,
    grant: Grant,
    audit: &Recorder,
) -> Result<Opened, Error> {
    let now = context.clock.now();
    let until = grant
        .expires_at
        .map_or(now + LIFE, |expiry| expiry.min(now + LIFE));
    let password = SecretString::from(hex::encode(context.entropy.bytes::<20>()));
    let verifier = projects::verifier(password.clone()).await?;
    let (id, generation, name) =
        ask(context, project, user, &grant, (until, &verifier), audit).await?;
    context.jit.wake();
    match tokio::time::timeout(WAIT, opened(context, project, id, generation)).await {
        Ok(opened) => opened?,
        Err(_) => return Err(Error::DatabaseUnreachable),
    }
    Ok(Opened {
        grant,
        name,
        password,
        until,
    })
}

/// Writes down which login is wanted, and returns its row, the number of the wish, and its name.
async fn ask(
    context: &DataPlaneContext,
    project: &Project,
    user: &User,
    grant: &Grant,
    (until, verifier): (DateTime<Utc>, &str),
    audit: &Recorder,
) -> Result<(i64, i64, String), Error> {
    let doing = "asking for a login";
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
    let (id, generation, name) = (row.get(0), row.get(1), row.get::<_, String>(2));
    audit
        .write_in(
            &transaction,
            200,
            (
                None,
                Some(json!({"role": grant.role, "login": name, "until": until})),
            ),
            now,
        )
        .await?;
    transaction.commit().await.context(doing)?;
    Ok((id, generation, name))
}

/// Returns when the server knows this login.
async fn opened(
    context: &DataPlaneContext,
    project: &Project,
    id: i64,
    generation: i64,
) -> Result<(), Error> {
    let mut changes = context.jit.changes();
    loop {
        changes.borrow_and_update();
        let now = context.clock.now();
        let login = logins(context, Some(project.id))
            .await?
            .into_iter()
            .find(|login| login.id == id);
        // Asked for once more meanwhile: whoever did so has the password that holds.
        let login = login
            .filter(|login| login.generation == generation)
            .ok_or(Error::Forbidden(Denial::Role))?;
        match login.refusal.clone() {
            Some(refusal) => return Err(Error::Rejected(refusal.into())),
            None if login.is_over(now) => return Err(Error::Forbidden(Denial::Role)),
            None if !login.stale => return Ok(()),
            None => changes.changed().await.context("waiting for a login")?,
        }
    }
}

/// Returns when no login of the project is left that is over. One that does not run lets nobody in anyway.
///
/// Errors: [`Error::DatabaseUnreachable`] if it cannot be reached in time; it is ended as soon as it can.
pub async fn until_ended(context: &DataPlaneContext, project: &Project) -> Result<(), Error> {
    let mut changes = context.jit.changes();
    let ended = async {
        loop {
            changes.borrow_and_update();
            let now = context.clock.now();
            if logins(context, Some(project.id))
                .await?
                .iter()
                .all(|login| !login.is_over(now))
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
    tokio::time::timeout(WAIT, ended)
        .await
        .unwrap_or(Err(Error::DatabaseUnreachable))
}

/// Whether every login that is over is gone, and every other one open.
pub async fn is_applied(context: &DataPlaneContext, project: &Project) -> Result<bool, Error> {
    let now = context.clock.now();
    Ok(logins(context, Some(project.id))
        .await?
        .iter()
        .all(|login| !login.is_wrong(now)))
}

async fn runs(context: &DataPlaneContext, project: &Project) -> Result<bool, Error> {
    Ok(projects::status(context, project.id).await? == projects::Status::ActiveHealthy)
}

/// Who holds this lock changes what is granted on a project that is there.
async fn lock(transaction: &Transaction<'_>, project: &Project) -> Result<(), Error> {
    let sql = "select from projects where id = $1 and desired <> 'removed' for update";
    transaction
        .query_opt(sql, &[&project.id.0])
        .await
        .context("locking a project")?
        .map(drop)
        .ok_or_else(projects::removed)
}

/// A name that tells people who it is, and is nobody else's.
fn login_name(username: &str, letters: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let member: String = username.chars().take(NAME_MAX).map(plain).collect();
    format!("{LOGIN_PREFIX}{member}_{letters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn access_needs_the_switch_a_grant_and_a_role() {
        let all = Standing {
            enabled: true,
            granted: true,
            expires_at: Some(at(100)),
            role: Some(Role::ReadOnly),
            invited: false,
        };
        assert_eq!(all.until(), at(100));
        assert_eq!(
            Standing {
                expires_at: None,
                ..all
            }
            .until(),
            DateTime::<Utc>::MAX_UTC
        );
        for lacking in [
            Standing {
                enabled: false,
                ..all
            },
            Standing {
                granted: false,
                ..all
            },
            Standing { role: None, ..all },
            Standing {
                role: Some(Role::Member),
                ..all
            },
        ] {
            assert_eq!(lacking.until(), DateTime::<Utc>::MIN_UTC, "{lacking:?}");
        }
        let guest = Standing {
            role: None,
            invited: true,
            ..all
        };
        assert_eq!(guest.until(), at(100));
        assert_eq!(
            Standing {
                enabled: false,
                ..guest
            }
            .until(),
            DateTime::<Utc>::MIN_UTC
        );
    }

    #[test]
    fn a_login_ends_with_what_ends_first() {
        let login = |until, grant| Login {
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
            standing: Standing {
                enabled: true,
                granted: true,
                expires_at: Some(at(grant)),
                role: Some(Role::Owner),
                invited: false,
            },
        };
        for (until, grant) in [(10, 20), (20, 10)] {
            let login = login(until, grant);
            assert!(!login.is_over(at(9)) && login.is_over(at(10)));
            assert_eq!((login.next(at(9)), login.next(at(10))), (at(10), at(5)));
            assert!(!login.is_due(at(9)) && login.is_due(at(10)));
        }
        let stale = Login {
            stale: true,
            ..login(10, 20)
        };
        assert!(!stale.is_due(at(4)) && stale.is_due(at(5)), "put off");
    }

    #[test]
    fn names_of_logins_fit_and_are_plain() {
        assert_eq!(
            login_name("Olga Ö.", "abcdefgh"),
            "gantry_jit_olga____abcdefgh"
        );
        assert!(login_name(&"x".repeat(300), "abcdefgh").len() < 64);
    }
}
