//! What the decision reads, cached: tokens, organizations, projects and roles.
//!
//! Only what exists is cached, so a flood of guesses cannot push a live entry out. Each node clears what a
//! notification names.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    caller::User,
    role::{Held, Role},
};
use crate::{
    cache::Shelf,
    clock::{Clock, Ticks},
    db::Db,
    error::{Context, Error},
    ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef, TokenId, UserId},
    tokens::{self, Digest, usage::Noted},
};

/// Entries of each kind; the least used go first.
const ENTRIES_MAX: usize = 100_000;
/// How often, at most, the last use of a token is written, in milliseconds.
const USE_RESOLUTION: Ticks = 60_000;

/// An organization that a request named and that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Organization {
    /// Row of `organizations`.
    pub id: OrganizationId,
    /// Its slug.
    pub slug: OrgSlug,
}

/// A project that a request named and that exists, possibly removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Row of `projects`.
    pub id: ProjectId,
    /// Its reference.
    pub reference: ProjectRef,
    /// The organization it belongs to.
    pub organization: OrganizationId,
}

/// What a request names, as its path or body spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `{slug}`, or the body's organization.
    Organization(OrgSlug),
    /// `{ref}`.
    Project(ProjectRef),
}

/// What a request is about, once it is known to exist and to be the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The caller's own account.
    Account,
    /// An organization the caller belongs to.
    Organization(Organization),
    /// A project of an organization the caller belongs to.
    Project(Project),
}

struct Token {
    user: User,
    expires_at: Option<DateTime<Utc>>,
    /// When its last use was last written.
    used: AtomicU64,
}

/// The roles of one member. Hardly anybody has one on a project, so as a rule it is cheap to copy.
#[derive(Clone)]
struct Roles {
    organization: Role,
    projects: Option<Arc<HashMap<ProjectId, Role>>>,
}

impl Roles {
    fn on(&self, subject: &Subject) -> Held {
        let on_project = match subject {
            Subject::Project(project) => self.projects.as_ref().and_then(|projects| projects.get(&project.id).copied()),
            Subject::Account | Subject::Organization(_) => None,
        };
        Held { organization: self.organization, subject: on_project.map_or(self.organization, |role| role.max(self.organization)) }
    }

    fn read(row: &Row) -> Result<Self, Error> {
        let role = |name: &str| name.parse::<Role>().context("reading a member's role");
        let (ids, names): (Vec<i64>, Vec<&str>) = (row.get(1), row.get(2));
        let projects =
            ids.into_iter().zip(names).map(|(id, name)| Ok((ProjectId(id), role(name)?))).collect::<Result<HashMap<_, _>, Error>>()?;
        Ok(Self { organization: role(row.get(0))?, projects: (!projects.is_empty()).then(|| Arc::new(projects)) })
    }
}

macro_rules! token {
    ($condition:literal) => {
        concat!(
            "select t.id, u.id, u.gotrue_id, t.expires_at, t.reach, t.permissions, t.organizations, t.projects, t.networks::text[], \
             t.not_before from tokens t join users u on u.id = t.user_id where t.revoked_at is null and ",
            $condition
        )
    };
}

impl Token {
    fn read(row: &Row) -> Result<Self, Error> {
        let grant = tokens::scoped::read(row, 4)?.map(Arc::new);
        let user = User { token: TokenId(row.get(0)), id: UserId(row.get(1)), gotrue_id: row.get::<_, Uuid>(2), grant, calls: None };
        Ok(Self { user, expires_at: row.get(3), used: AtomicU64::new(0) })
    }

    /// Whether it is in its time, and where it may be sent from.
    fn holds(&self, clock: &Clock, address: Option<IpAddr>) -> bool {
        self.expires_at.is_none_or(|expiry| expiry > clock.now())
            && self
                .user
                .grant
                .as_ref()
                .is_none_or(|grant| grant.has_begun(clock.now()) && address.is_none_or(|address| grant.admits(address)))
    }
}

/// The cache, and the queries behind it.
pub struct Directory {
    db: Db,
    clock: Clock,
    tokens: Shelf<Digest, Arc<Token>>,
    organizations: Shelf<OrgSlug, Organization>,
    projects: Shelf<ProjectRef, Project>,
    roles: Shelf<(UserId, OrganizationId), Roles>,
    uses: mpsc::Sender<TokenId>,
    calls: mpsc::Sender<Noted>,
}

impl Directory {
    /// An empty cache over `db`. Uses of tokens go to `uses`, at most one a minute each, and what they are used for goes to
    /// `calls`; a full queue drops them.
    pub fn new(db: Db, clock: Clock, uses: mpsc::Sender<TokenId>, calls: mpsc::Sender<Noted>) -> Self {
        Self {
            db,
            clock,
            tokens: Shelf::new(ENTRIES_MAX),
            organizations: Shelf::new(ENTRIES_MAX),
            projects: Shelf::new(ENTRIES_MAX),
            roles: Shelf::new(ENTRIES_MAX),
            uses,
            calls,
        }
    }

    /// The user whose live token has this digest, sent from `address`.
    pub async fn user(&self, digest: &Digest, address: IpAddr, now: Ticks) -> Result<Option<User>, Error> {
        let token = match self.tokens.get(digest, now) {
            Some(token) => token,
            // Boxed, so that whoever finds it cached does not carry the future of a query around.
            None => match Box::pin(self.load_token(digest, now)).await? {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        if !token.holds(&self.clock, Some(address)) {
            return Ok(None);
        }
        self.note_use(&token, now);
        Ok(Some(token.user.clone()))
    }

    /// What the holder of this token of `owner` would be, were it sent now. `None` if it is not the owner's or was revoked;
    /// without a user if it does not hold, which depends on the address only if one is given.
    pub async fn holder(&self, owner: UserId, token: TokenId, address: Option<IpAddr>) -> Result<Option<Option<User>>, Error> {
        let sql = token!("t.id = $1 and t.user_id = $2");
        let rows = self.db.query(sql, &[&token.0, &owner.0]).await.context("looking up a token")?;
        let Some(row) = rows.first() else { return Ok(None) };
        let token = Token::read(row)?;
        Ok(Some(token.holds(&self.clock, address).then_some(token.user)))
    }

    /// What `reference` names and the user's roles towards it, if both are cached and the token reaches it.
    pub fn own_cached(&self, user: &User, reference: &Reference, now: Ticks) -> Option<(Subject, Held)> {
        let (organization, subject) = match reference {
            Reference::Organization(slug) => self.organizations.get(slug, now).map(|found| (found.id, Subject::Organization(found)))?,
            Reference::Project(name) => self.projects.get(name, now).map(|found| (found.organization, Subject::Project(found)))?,
        };
        if !user.sees(&subject) {
            return None;
        }
        let held = self.roles.get(&(user.id, organization), now)?.on(&subject);
        Some((subject, held))
    }

    /// What `reference` names and the user's roles towards it. `None` if it does not exist, the user does not belong to it, or
    /// the token does not reach it.
    pub async fn own(&self, user: &User, reference: &Reference) -> Result<Option<(Subject, Held)>, Error> {
        let found = match reference {
            Reference::Organization(slug) => self.organization(slug).await?.map(|found| (found.id, Subject::Organization(found))),
            Reference::Project(name) => self.project(name).await?.map(|found| (found.organization, Subject::Project(found))),
        };
        let Some((organization, subject)) = found.filter(|(_, subject)| user.sees(subject)) else { return Ok(None) };
        Ok(self.roles(user.id, organization).await?.map(|roles| {
            let held = roles.on(&subject);
            (subject, held)
        }))
    }

    async fn organization(&self, slug: &OrgSlug) -> Result<Option<Organization>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.organizations.epoch());
        let rows =
            self.db.query("select id from organizations where slug = $1", &[&slug.as_str()]).await.context("looking up an organization")?;
        let found = rows.first().map(|row| Organization { id: OrganizationId(row.get(0)), slug: slug.clone() });
        Ok(found.inspect(|organization| self.organizations.put(slug.clone(), organization.clone(), now, epoch)))
    }

    async fn project(&self, reference: &ProjectRef) -> Result<Option<Project>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.projects.epoch());
        let sql = "select id, organization_id from projects where ref = $1";
        let rows = self.db.query(sql, &[&reference.as_str()]).await.context("looking up a project")?;
        let found = rows.first().map(|row| Project {
            id: ProjectId(row.get(0)),
            reference: reference.clone(),
            organization: OrganizationId(row.get(1)),
        });
        Ok(found.inspect(|project| self.projects.put(reference.clone(), project.clone(), now, epoch)))
    }

    async fn roles(&self, user: UserId, organization: OrganizationId) -> Result<Option<Roles>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.roles.epoch());
        if let Some(roles) = self.roles.get(&(user, organization), now) {
            return Ok(Some(roles));
        }
        let sql = "select m.role, \
                   array(select project_id from project_roles r where (r.organization_id, r.user_id) = (m.organization_id, m.user_id) order by project_id), \
                   array(select r.role from project_roles r where (r.organization_id, r.user_id) = (m.organization_id, m.user_id) order by project_id) \
                   from members m where m.user_id = $1 and m.organization_id = $2";
        let rows = self.db.query(sql, &[&user.0, &organization.0]).await.context("looking up a role")?;
        let Some(row) = rows.first() else { return Ok(None) };
        let roles = Roles::read(row)?;
        self.roles.put((user, organization), roles.clone(), now, epoch);
        Ok(Some(roles))
    }

    /// Forgets what a change of `table` may have made untrue.
    pub fn forget(&self, table: &str) {
        match table {
            "users" | "tokens" => self.tokens.clear(),
            "organizations" => self.organizations.clear(),
            "members" | "project_roles" => self.roles.clear(),
            "projects" => self.projects.clear(),
            _ => {}
        }
    }

    /// Whether what is read may be kept; everything known is forgotten.
    pub fn believe(&self, believe: bool) {
        self.tokens.believe(believe);
        self.organizations.believe(believe);
        self.roles.believe(believe);
        self.projects.believe(believe);
    }

    async fn load_token(&self, digest: &Digest, now: Ticks) -> Result<Option<Arc<Token>>, Error> {
        let epoch = self.tokens.epoch();
        let rows = self.db.query(token!("t.digest = $1"), &[&digest.as_bytes()]).await.context("looking up a token")?;
        let Some(row) = rows.first() else { return Ok(None) };
        let mut token = Token::read(row)?;
        token.user.calls = Some(Arc::default());
        let token = Arc::new(token);
        self.tokens.put(*digest, token.clone(), now, epoch);
        Ok(Some(token))
    }

    /// Notes what a token was let in to, without making the request wait.
    pub fn note_call(&self, user: &User, operation: u16, case: Option<usize>) {
        if let Some(noted) = user.calls.as_ref().and_then(|calls| calls.note(user.token, operation, case)) {
            // A dropped note is made again when the token is next read from the database.
            let _ = self.calls.try_send(noted);
        }
    }

    /// Notes that a token was used, without making the request wait.
    fn note_use(&self, token: &Token, now: Ticks) {
        let last = token.used.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= USE_RESOLUTION;
        // Ticks start at zero; `max(1)` keeps "never" apart from "in the first millisecond".
        if due && token.used.compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // A dropped note costs a coarser "last used", never a request.
            let _ = self.uses.try_send(token.user.token);
        }
    }
}
