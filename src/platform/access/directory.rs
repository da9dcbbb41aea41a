//! The directory of tokens, organizations, projects and roles, cached for the access decision.
//!
//! Names that do not belong to the caller are cached apart, so that a flood of guesses cannot evict
//! live entries. Notifications of the control database invalidate the caches on every node.

use std::{hash::BuildHasher, net::IpAddr, sync::Arc, time::Duration};

use foldhash::quality::RandomState;
use gantry_base::{
    clock::{Clock, Ticks},
    ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef, TokenId, UserId},
};
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    caller::{CachedCredential, User},
    role::{EffectiveRoles, Role},
    subject::{BranchKey, Organization, Project, ResourceName, Subject},
};
use crate::platform::{
    access::{
        call_log::TokenCall, credential::SecretDigest, grant, last_used::TokenUse, oauth_tokens,
    },
    cache::EpochCache,
    db::Db,
    error::{Context, Error},
    tables::Cache,
};

/// Bound of each cache; the least used entries are evicted first.
const ENTRIES_MAX: usize = 100_000;
/// Bound of the cache of unknown names; the least used are evicted first.
const UNKNOWN_NAMES_MAX: usize = 20_000;
/// Number of locks that keep requests from looking up one name at the same time.
const LOOKUP_LOCKS: usize = 256;
/// Longest wait for another request's look-up of the same name.
const LOOKUP_WAIT_MAX: Duration = Duration::from_millis(100);

macro_rules! token {
    ($condition:literal) => {
        concat!(
            "select t.id, u.id, u.gotrue_id, t.expires_at, t.reach, t.permissions, t.organizations, t.projects, t.networks::text[], \
             t.not_before from tokens t join users u on u.id = t.user_id where t.revoked_at is null and ",
            $condition
        )
    };
}

fn read_token(row: &Row) -> Result<CachedCredential, Error> {
    let grant = grant::read(row, 4)?.map(Arc::new);
    let user = User {
        token: Some(TokenId(row.get(0))),
        id: UserId(row.get(1)),
        gotrue_id: row.get::<_, Uuid>(2),
        grant,
        approval: None,
        activity: Some(Arc::default()),
        signed_in_at: None,
    };
    Ok(CachedCredential {
        user: Arc::new(user),
        expires_at: row.get(3),
    })
}

fn role(name: &str) -> Result<Role, Error> {
    name.parse().context("reading a member's role")
}

/// The caches, and the queries that fill them.
pub struct Directory {
    db: Db,
    clock: Clock,
    tokens: EpochCache<SecretDigest, CachedCredential>,
    /// OAuth access tokens, with the approval behind them.
    oauth_tokens: EpochCache<SecretDigest, CachedCredential>,
    /// Organizations by user and slug, with the user's roles.
    organizations: EpochCache<(UserId, OrgSlug), (Organization, EffectiveRoles)>,
    projects: EpochCache<(UserId, ProjectRef), (Project, EffectiveRoles)>,
    /// Parents of branches.
    branches: EpochCache<(UserId, BranchKey), (Project, EffectiveRoles)>,
    /// Names that do not exist or do not belong to the user. The two cases look alike to the user.
    unknown_names: EpochCache<(UserId, ResourceName), ()>,
    lookup_locks: Box<[Mutex<()>]>,
    hasher: RandomState,
    uses: mpsc::Sender<TokenUse>,
    calls: mpsc::Sender<TokenCall>,
}

impl Directory {
    /// Returns an empty directory over `db`. Uses of tokens are sent to `uses`, their calls to
    /// `calls`; a full queue drops them.
    pub fn new(
        db: Db,
        clock: Clock,
        uses: mpsc::Sender<TokenUse>,
        calls: mpsc::Sender<TokenCall>,
    ) -> Self {
        Self {
            db,
            clock,
            tokens: EpochCache::new(ENTRIES_MAX),
            oauth_tokens: EpochCache::new(ENTRIES_MAX),
            organizations: EpochCache::new(ENTRIES_MAX),
            projects: EpochCache::new(ENTRIES_MAX),
            branches: EpochCache::new(ENTRIES_MAX),
            unknown_names: EpochCache::new(UNKNOWN_NAMES_MAX),
            lookup_locks: (0..LOOKUP_LOCKS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            uses,
            calls,
        }
    }

    /// Returns the user of the live token with this digest, sent from `address`.
    pub async fn token_user(
        &self,
        digest: &SecretDigest,
        address: IpAddr,
        now: Ticks,
    ) -> Result<Option<Arc<User>>, Error> {
        let cached = match self.tokens.get(digest, now) {
            Some(cached) => cached,
            // Boxed to keep the future of a cache hit small.
            None => match Box::pin(self.load_token(digest, now)).await? {
                Some(cached) => cached,
                None => return Ok(None),
            },
        };
        if !cached.holds(&self.clock, Some(address)) {
            return Ok(None);
        }
        self.note_use(&cached.user, address, now);
        Ok(Some(cached.user))
    }

    /// Returns the user of the live OAuth access token with this digest.
    pub async fn oauth_user(
        &self,
        digest: &SecretDigest,
        now: Ticks,
    ) -> Result<Option<Arc<User>>, Error> {
        let cached = match self.oauth_tokens.get(digest, now) {
            Some(cached) => cached,
            None => match Box::pin(self.load_oauth_token(digest, now)).await? {
                Some(cached) => cached,
                None => return Ok(None),
            },
        };
        Ok(cached.holds(&self.clock, None).then_some(cached.user))
    }

    async fn load_oauth_token(
        &self,
        digest: &SecretDigest,
        now: Ticks,
    ) -> Result<Option<CachedCredential>, Error> {
        let epoch = self.oauth_tokens.epoch();
        let Some(cached) = oauth_tokens::find(&self.db, digest, self.clock.now()).await? else {
            return Ok(None);
        };
        self.oauth_tokens.put(*digest, cached.clone(), now, epoch);
        Ok(Some(cached))
    }

    /// Returns the user that a request with this token of `owner` would have, bypassing the cache.
    /// The outer `None`: the token is revoked or does not belong to `owner`. The inner `None`: it
    /// is expired, not valid yet, or not valid from `address`, if one is given.
    pub async fn simulated_user(
        &self,
        owner: UserId,
        token: TokenId,
        address: Option<IpAddr>,
    ) -> Result<Option<Option<Arc<User>>>, Error> {
        let sql = token!("t.id = $1 and t.user_id = $2");
        let rows = self
            .db
            .query(sql, &[&token.0, &owner.0])
            .await
            .context("looking up a token")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let cached = read_token(row)?;
        Ok(Some(
            cached.holds(&self.clock, address).then_some(cached.user),
        ))
    }

    /// Returns the named resource and the user's roles, if they are cached and the token reaches
    /// the resource.
    pub fn resolve_cached(
        &self,
        user: &User,
        name: &ResourceName,
        now: Ticks,
    ) -> Option<(Subject, EffectiveRoles)> {
        let (subject, roles) = match name {
            ResourceName::Organization(slug) => {
                let key = (user.id, slug.clone());
                let (organization, roles) = self.organizations.get(&key, now)?;
                (Subject::Organization(organization), roles)
            }
            ResourceName::Project(reference) => {
                let key = (user.id, reference.clone());
                let (project, roles) = self.projects.get(&key, now)?;
                (Subject::Project(project), roles)
            }
            ResourceName::Branch(branch) => {
                let key = (user.id, branch.clone());
                let (project, roles) = self.branches.get(&key, now)?;
                (Subject::Project(project), roles)
            }
        };
        user.sees(&subject).then_some((subject, roles))
    }

    /// Returns whether the cache shows that the name is hidden from the user: an earlier look-up
    /// found nothing, or the token does not reach the resource.
    pub fn is_hidden(&self, user: &User, name: &ResourceName, now: Ticks) -> bool {
        let beyond_reach = match name {
            ResourceName::Organization(slug) => {
                let found = self.organizations.get(&(user.id, slug.clone()), now);
                found.is_some_and(|(organization, _)| {
                    !user.sees(&Subject::Organization(organization))
                })
            }
            ResourceName::Project(reference) => {
                let found = self.projects.get(&(user.id, reference.clone()), now);
                found.is_some_and(|(project, _)| !user.sees(&Subject::Project(project)))
            }
            ResourceName::Branch(branch) => {
                let found = self.branches.get(&(user.id, branch.clone()), now);
                found.is_some_and(|(project, _)| !user.sees(&Subject::Project(project)))
            }
        };
        beyond_reach
            || self
                .unknown_names
                .get(&(user.id, name.clone()), now)
                .is_some()
    }

    /// Locks the look-up of a name for a user, so that concurrent requests find the result of the
    /// first one in the cache. `None` after `LOOKUP_WAIT_MAX`.
    pub async fn lookup_lock(
        &self,
        user: &User,
        name: &ResourceName,
    ) -> Option<MutexGuard<'_, ()>> {
        let hash = self.hasher.hash_one((user.id, name));
        // The remainder is below the number of locks.
        let lock =
            &self.lookup_locks[usize::try_from(hash % LOOKUP_LOCKS as u64).unwrap_or_default()];
        tokio::time::timeout(LOOKUP_WAIT_MAX, lock.lock())
            .await
            .ok()
    }

    /// Reads the named resource and the user's roles from the database. `None` if it does not
    /// exist, the user does not belong to it, or the token does not reach it.
    pub async fn resolve(
        &self,
        user: &User,
        name: &ResourceName,
    ) -> Result<Option<(Subject, EffectiveRoles)>, Error> {
        let now = self.clock.ticks();
        let epoch = self.unknown_names.epoch();
        let found = match name {
            ResourceName::Organization(slug) => self
                .organization(user.id, slug)
                .await?
                .map(|(organization, roles)| (Subject::Organization(organization), roles)),
            ResourceName::Project(reference) => self
                .project(user.id, reference)
                .await?
                .map(|(project, roles)| (Subject::Project(project), roles)),
            ResourceName::Branch(branch) => self
                .branch_parent(user.id, branch)
                .await?
                .map(|(project, roles)| (Subject::Project(project), roles)),
        };
        if found.is_none() {
            self.unknown_names
                .put((user.id, name.clone()), (), now, epoch);
        }
        Ok(found.filter(|(subject, _)| user.sees(subject)))
    }

    async fn organization(
        &self,
        user: UserId,
        slug: &OrgSlug,
    ) -> Result<Option<(Organization, EffectiveRoles)>, Error> {
        let now = self.clock.ticks();
        let epoch = self.organizations.epoch();
        let sql = "select o.id, m.role from organizations o join members m on m.organization_id = o.id and m.user_id = $1 where o.slug = $2";
        let rows = self
            .db
            .query(sql, &[&user.0, &slug.as_str()])
            .await
            .context("looking up an organization")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let found = (
            Organization {
                id: OrganizationId(row.get(0)),
                slug: slug.clone(),
            },
            EffectiveRoles::from(role(row.get(1))?),
        );
        self.organizations
            .put((user, slug.clone()), found.clone(), now, epoch);
        Ok(Some(found))
    }

    /// Reads the parent of a branch, with the user's role on the parent. The reference of a project
    /// that is no branch stands for the project itself.
    async fn branch_parent(
        &self,
        user: UserId,
        branch: &BranchKey,
    ) -> Result<Option<(Project, EffectiveRoles)>, Error> {
        let now = self.clock.ticks();
        let epoch = self.branches.epoch();
        let (id, reference) = match branch {
            BranchKey::Id(id) => (Some(id), None),
            BranchKey::Ref(reference) => (None, Some(reference.as_str())),
        };
        let sql = "select p.id, p.organization_id, m.role, r.role, p.ref from projects c \
                   left join branches b on b.project_id = c.id \
                   join projects p on p.id = coalesce(b.parent_id, c.id) \
                   join members m on m.organization_id = p.organization_id and m.user_id = $1 \
                   left join project_roles r on (r.organization_id, r.user_id, r.project_id) \
                   = (m.organization_id, m.user_id, p.id) where b.id = $2 or c.ref = $3";
        let rows = self
            .db
            .query(sql, &[&user.0, &id, &reference])
            .await
            .context("looking up a branch")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let reference = row.get::<_, &str>(4).parse();
        let found = read_project(row, reference.context("reading a project's ref")?)?;
        self.branches
            .put((user, branch.clone()), found.clone(), now, epoch);
        Ok(Some(found))
    }

    /// Reads a project. A role on the project adds to the role in its organization. A role on the
    /// parent counts for its branches.
    async fn project(
        &self,
        user: UserId,
        reference: &ProjectRef,
    ) -> Result<Option<(Project, EffectiveRoles)>, Error> {
        let now = self.clock.ticks();
        let epoch = self.projects.epoch();
        let sql = "select p.id, p.organization_id, m.role, r.role from projects p \
                   join members m on m.organization_id = p.organization_id and m.user_id = $1 \
                   left join branches b on b.project_id = p.id \
                   left join project_roles r on (r.organization_id, r.user_id, r.project_id) \
                   = (m.organization_id, m.user_id, coalesce(b.parent_id, p.id)) where p.ref = $2";
        let rows = self
            .db
            .query(sql, &[&user.0, &reference.as_str()])
            .await
            .context("looking up a project")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let found = read_project(row, reference.clone())?;
        self.projects
            .put((user, reference.clone()), found.clone(), now, epoch);
        Ok(Some(found))
    }

    /// Clears one of the caches.
    pub fn invalidate(&self, cache: Cache) {
        match cache {
            Cache::AccessTokens => self.tokens.clear(),
            Cache::OauthTokens => self.oauth_tokens.clear(),
            Cache::Organizations => self.organizations.clear(),
            Cache::Projects => {
                self.projects.clear();
                self.branches.clear();
            }
            Cache::UnknownNames => self.unknown_names.clear(),
            Cache::ProjectListings
            | Cache::Hosts
            | Cache::HostStatus
            | Cache::ApiKeys
            | Cache::Functions
            | Cache::ProjectNodes
            | Cache::OutboundHosts => {}
        }
    }

    /// Clears all caches, and enables or disables caching: a node that receives no notifications
    /// must not cache.
    pub fn set_trusted(&self, trusted: bool) {
        self.tokens.set_trusted(trusted);
        self.oauth_tokens.set_trusted(trusted);
        self.organizations.set_trusted(trusted);
        self.projects.set_trusted(trusted);
        self.branches.set_trusted(trusted);
        self.unknown_names.set_trusted(trusted);
    }

    async fn load_token(
        &self,
        digest: &SecretDigest,
        now: Ticks,
    ) -> Result<Option<CachedCredential>, Error> {
        let epoch = self.tokens.epoch();
        let rows = self
            .db
            .query(token!("t.digest = $1"), &[&digest.as_bytes()])
            .await
            .context("looking up a token")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let cached = read_token(row)?;
        self.tokens.put(*digest, cached.clone(), now, epoch);
        Ok(Some(cached))
    }

    /// Queues a permitted call of a token for writing, without waiting. Each operation and case is
    /// queued once per cached token. A full queue drops the call; it is queued again when the token
    /// is next read from the database.
    pub fn note_call(&self, user: &User, operation: u16, case: Option<usize>) {
        let (Some(token), Some(activity)) = (user.token, &user.activity) else {
            return;
        };
        let call = TokenCall::new(token, operation, case);
        if activity.record_call(call.operation, call.case) {
            let _ = self.calls.try_send(call);
        }
    }

    /// Queues the use of a token for writing, at most once a minute, without waiting. A full queue
    /// drops the use.
    fn note_use(&self, user: &User, address: IpAddr, now: Ticks) {
        let (Some(token), Some(activity)) = (user.token, &user.activity) else {
            return;
        };
        if activity.record_use(now) {
            let _ = self.uses.try_send(TokenUse { token, address });
        }
    }
}

/// Reads id, organization, role in the organization and role on the project from a row.
fn read_project(row: &Row, reference: ProjectRef) -> Result<(Project, EffectiveRoles), Error> {
    let organization = role(row.get(2))?;
    let on_project = row.get::<_, Option<&str>>(3).map(role).transpose()?;
    let roles = EffectiveRoles {
        organization,
        subject: on_project.map_or(organization, |role| role.max(organization)),
    };
    let project = Project {
        id: ProjectId(row.get(0)),
        reference,
        organization: OrganizationId(row.get(1)),
    };
    Ok((project, roles))
}

/// Returns the id of the organization with this slug. [`Error::NotFound`] if there is none.
pub async fn organization_by_slug(db: &Db, slug: &OrgSlug) -> Result<OrganizationId, Error> {
    let rows = db
        .query(
            "select id from organizations where slug = $1",
            &[&slug.as_str()],
        )
        .await
        .context("looking up an organization")?;
    rows.first()
        .map(|row| OrganizationId(row.get(0)))
        .ok_or(Error::NotFound)
}
