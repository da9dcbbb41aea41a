//! What the decision reads, cached: tokens, organizations, projects and roles.
//!
//! Only what exists is cached, so a flood of guesses cannot push a live entry out. Each node clears what a
//! notification names.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{caller::User, role::Role};
use crate::{
    cache::Shelf,
    clock::{Clock, Ticks},
    db::Db,
    error::{Context, Error},
    ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef, TokenId, UserId},
    tokens::Digest,
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

/// The cache, and the queries behind it.
pub struct Directory {
    db: Db,
    clock: Clock,
    tokens: Shelf<Digest, Arc<Token>>,
    organizations: Shelf<OrgSlug, Organization>,
    projects: Shelf<ProjectRef, Project>,
    roles: Shelf<(UserId, OrganizationId), Role>,
    uses: mpsc::Sender<TokenId>,
}

impl Directory {
    /// An empty cache over `db`. Uses of tokens go to `uses`, at most one a minute each; a full queue drops them.
    pub fn new(db: Db, clock: Clock, uses: mpsc::Sender<TokenId>) -> Self {
        Self {
            db,
            clock,
            tokens: Shelf::new(ENTRIES_MAX),
            organizations: Shelf::new(ENTRIES_MAX),
            projects: Shelf::new(ENTRIES_MAX),
            roles: Shelf::new(ENTRIES_MAX),
            uses,
        }
    }

    /// The user whose live token has this digest.
    pub async fn user(&self, digest: &Digest, now: Ticks) -> Result<Option<User>, Error> {
        let token = match self.tokens.get(digest, now) {
            Some(token) => token,
            // Boxed, so that whoever finds it cached does not carry the future of a query around.
            None => match Box::pin(self.load_token(digest, now)).await? {
                Some(token) => token,
                None => return Ok(None),
            },
        };
        if token.expires_at.is_some_and(|expiry| expiry <= self.clock.now()) {
            return Ok(None);
        }
        self.note_use(&token, now);
        Ok(Some(token.user.clone()))
    }

    /// What `reference` names and the user's role on it, if both are cached.
    pub fn own_cached(&self, user: UserId, reference: &Reference, now: Ticks) -> Option<(Subject, Role)> {
        let (organization, subject) = match reference {
            Reference::Organization(slug) => self.organizations.get(slug, now).map(|found| (found.id, Subject::Organization(found)))?,
            Reference::Project(name) => self.projects.get(name, now).map(|found| (found.organization, Subject::Project(found)))?,
        };
        Some((subject, self.roles.get(&(user, organization), now)?))
    }

    /// What `reference` names and the user's role on it. `None` if it does not exist or the user does not belong to it.
    pub async fn own(&self, user: UserId, reference: &Reference) -> Result<Option<(Subject, Role)>, Error> {
        let found = match reference {
            Reference::Organization(slug) => self.organization(slug).await?.map(|found| (found.id, Subject::Organization(found))),
            Reference::Project(name) => self.project(name).await?.map(|found| (found.organization, Subject::Project(found))),
        };
        let Some((organization, subject)) = found else { return Ok(None) };
        Ok(self.role(user, organization).await?.map(|role| (subject, role)))
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

    async fn role(&self, user: UserId, organization: OrganizationId) -> Result<Option<Role>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.roles.epoch());
        if let Some(role) = self.roles.get(&(user, organization), now) {
            return Ok(Some(role));
        }
        let sql = "select role from members where user_id = $1 and organization_id = $2";
        let rows = self.db.query(sql, &[&user.0, &organization.0]).await.context("looking up a role")?;
        let Some(row) = rows.first() else { return Ok(None) };
        let role = row.get::<_, &str>(0).parse().context("reading a member's role")?;
        self.roles.put((user, organization), role, now, epoch);
        Ok(Some(role))
    }

    /// Forgets what a change of `table` may have made untrue.
    pub fn forget(&self, table: &str) {
        match table {
            "users" | "tokens" => self.tokens.clear(),
            "organizations" => self.organizations.clear(),
            "members" => self.roles.clear(),
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
        let sql = "select t.id, u.id, u.gotrue_id, t.expires_at from tokens t join users u on u.id = t.user_id \
                   where t.digest = $1 and t.revoked_at is null";
        let rows = self.db.query(sql, &[&digest.as_bytes()]).await.context("looking up a token")?;
        let Some(row) = rows.first() else { return Ok(None) };
        let user = User { token: TokenId(row.get(0)), id: UserId(row.get(1)), gotrue_id: row.get::<_, Uuid>(2) };
        let token = Arc::new(Token { user, expires_at: row.get(3), used: AtomicU64::new(0) });
        self.tokens.put(*digest, token.clone(), now, epoch);
        Ok(Some(token))
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
