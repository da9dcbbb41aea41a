//! What the decision reads, cached: tokens, organizations, projects and roles.
//!
//! Names that are not the caller's are remembered apart from what exists, so a flood of guesses cannot push a live entry
//! out. Each node clears what a notification names.

use std::{hash::BuildHasher, net::IpAddr, sync::Arc, time::Duration};

use foldhash::quality::RandomState;
use tokio::sync::{Mutex, MutexGuard, mpsc};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    caller::{Holder, User},
    role::{Held, Role},
};
use crate::{
    base::{
        cache::Shelf,
        clock::{Clock, Ticks},
        db::Db,
        error::{Context, Error},
        ids::{OrgSlug, OrganizationId, ProjectId, ProjectRef, TokenId, UserId},
    },
    platform::{
        access::{call_log::Noted, credential::SecretDigest, grant, last_used::Use, oauth_tokens},
        tables::Cache,
    },
};

/// Entries of each kind; the least used go first.
const ENTRIES_MAX: usize = 100_000;
/// Names that were looked up and are not the caller's; the least used go first.
const ABSENT_MAX: usize = 20_000;
/// Locks that keep requests for one name from looking it up at the same time.
const TURNS: usize = 256;
/// How long a request waits for another one's look-up before it makes its own.
const TURN_MAX: Duration = Duration::from_millis(100);

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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

macro_rules! token {
    ($condition:literal) => {
        concat!(
            "select t.id, u.id, u.gotrue_id, t.expires_at, t.reach, t.permissions, t.organizations, t.projects, t.networks::text[], \
             t.not_before from tokens t join users u on u.id = t.user_id where t.revoked_at is null and ",
            $condition
        )
    };
}

fn read_token(row: &Row) -> Result<Holder, Error> {
    let grant = grant::read(row, 4)?.map(Arc::new);
    let user = User {
        token: Some(TokenId(row.get(0))),
        id: UserId(row.get(1)),
        gotrue_id: row.get::<_, Uuid>(2),
        grant,
        approval: None,
        lately: Some(Arc::default()),
    };
    Ok(Holder {
        user: Arc::new(user),
        expires_at: row.get(3),
    })
}

fn role(name: &str) -> Result<Role, Error> {
    name.parse().context("reading a member's role")
}

/// The cache, and the queries behind it.
pub struct Directory {
    db: Db,
    clock: Clock,
    tokens: Shelf<SecretDigest, Holder>,
    /// What applications send, with what was approved for them.
    issued: Shelf<SecretDigest, Holder>,
    /// Organizations as their members name them, with what each may do there.
    organizations: Shelf<(UserId, OrgSlug), (Organization, Held)>,
    projects: Shelf<(UserId, ProjectRef), (Project, Held)>,
    /// Names that do not exist, or not for this user: the two are never told apart.
    absent: Shelf<(UserId, Reference), ()>,
    turns: Box<[Mutex<()>]>,
    hasher: RandomState,
    uses: mpsc::Sender<Use>,
    calls: mpsc::Sender<Noted>,
}

impl Directory {
    /// An empty cache over `db`. Uses of tokens go to `uses`, at most one a minute each, and what they are used for goes to
    /// `calls`; a full queue drops them.
    pub fn new(db: Db, clock: Clock, uses: mpsc::Sender<Use>, calls: mpsc::Sender<Noted>) -> Self {
        Self {
            db,
            clock,
            tokens: Shelf::new(ENTRIES_MAX),
            issued: Shelf::new(ENTRIES_MAX),
            organizations: Shelf::new(ENTRIES_MAX),
            projects: Shelf::new(ENTRIES_MAX),
            absent: Shelf::new(ABSENT_MAX),
            turns: (0..TURNS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            uses,
            calls,
        }
    }

    /// The user whose live token has this digest, sent from `address`.
    pub async fn user(
        &self,
        digest: &SecretDigest,
        address: IpAddr,
        now: Ticks,
    ) -> Result<Option<Arc<User>>, Error> {
        let holder = match self.tokens.get(digest, now) {
            Some(holder) => holder,
            // Boxed, so that whoever finds it cached does not carry the future of a query around.
            None => match Box::pin(self.load_token(digest, now)).await? {
                Some(holder) => holder,
                None => return Ok(None),
            },
        };
        if !holder.holds(&self.clock, Some(address)) {
            return Ok(None);
        }
        self.note_use(&holder.user, address, now);
        Ok(Some(holder.user))
    }

    /// The user for whom the application calls that sent the live access token with this digest.
    pub async fn approved(
        &self,
        digest: &SecretDigest,
        now: Ticks,
    ) -> Result<Option<Arc<User>>, Error> {
        let holder = match self.issued.get(digest, now) {
            Some(holder) => holder,
            None => match Box::pin(self.load_issued(digest, now)).await? {
                Some(holder) => holder,
                None => return Ok(None),
            },
        };
        Ok(holder.holds(&self.clock, None).then_some(holder.user))
    }

    async fn load_issued(
        &self,
        digest: &SecretDigest,
        now: Ticks,
    ) -> Result<Option<Holder>, Error> {
        let epoch = self.issued.epoch();
        let Some(holder) = oauth_tokens::find(&self.db, digest, self.clock.now()).await? else {
            return Ok(None);
        };
        self.issued.put(*digest, holder.clone(), now, epoch);
        Ok(Some(holder))
    }

    /// What the holder of this token of `owner` would be, were it sent now. `None` if it is not the owner's or was revoked;
    /// without a user if it does not hold, which depends on the address only if one is given.
    pub async fn holder(
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
        let holder = read_token(row)?;
        Ok(Some(
            holder.holds(&self.clock, address).then_some(holder.user),
        ))
    }

    /// What `reference` names and the user's roles towards it, if that is cached and the token reaches it.
    pub fn own_cached(
        &self,
        user: &User,
        reference: &Reference,
        now: Ticks,
    ) -> Option<(Subject, Held)> {
        let lately = user.lately.as_ref();
        let (subject, held) = match reference {
            Reference::Organization(slug) => {
                let (memo, is) = (
                    lately.map(|lately| &lately.organization),
                    |(it, _): &(Organization, Held)| it.slug == *slug,
                );
                let (organization, held) =
                    self.organizations
                        .recall(memo, is, || (user.id, slug.clone()), now)?;
                (Subject::Organization(organization), held)
            }
            Reference::Project(name) => {
                let (memo, is) = (
                    lately.map(|lately| &lately.project),
                    |(it, _): &(Project, Held)| it.reference == *name,
                );
                let (project, held) =
                    self.projects
                        .recall(memo, is, || (user.id, name.clone()), now)?;
                (Subject::Project(project), held)
            }
        };
        user.sees(&subject).then_some((subject, held))
    }

    /// Whether it is known without a query that `reference` is not the caller's: it was looked up before and was not there
    /// for this user, or the token does not reach it.
    pub fn is_hidden(&self, user: &User, reference: &Reference, now: Ticks) -> bool {
        let beyond_reach = match reference {
            Reference::Organization(slug) => {
                let found = self.organizations.get(&(user.id, slug.clone()), now);
                found.is_some_and(|(organization, _)| {
                    !user.sees(&Subject::Organization(organization))
                })
            }
            Reference::Project(name) => {
                let found = self.projects.get(&(user.id, name.clone()), now);
                found.is_some_and(|(project, _)| !user.sees(&Subject::Project(project)))
            }
        };
        beyond_reach
            || self
                .absent
                .get(&(user.id, reference.clone()), now)
                .is_some()
    }

    /// Waits until no other request looks up the same name for the same user. The answer of the one before is then cached. A
    /// look-up that takes long is not waited for: `None`.
    pub async fn turn(&self, user: &User, reference: &Reference) -> Option<MutexGuard<'_, ()>> {
        let place = self.hasher.hash_one((user.id, reference));
        // Less than the number of locks.
        let turn = &self.turns[usize::try_from(place % TURNS as u64).unwrap_or_default()];
        tokio::time::timeout(TURN_MAX, turn.lock()).await.ok()
    }

    /// What `reference` names and the user's roles towards it. `None` if it does not exist, the user does not belong to it, or
    /// the token does not reach it.
    pub async fn own(
        &self,
        user: &User,
        reference: &Reference,
    ) -> Result<Option<(Subject, Held)>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.absent.epoch());
        let found = match reference {
            Reference::Organization(slug) => self
                .organization(user.id, slug)
                .await?
                .map(|(organization, held)| (Subject::Organization(organization), held)),
            Reference::Project(name) => self
                .project(user.id, name)
                .await?
                .map(|(project, held)| (Subject::Project(project), held)),
        };
        if found.is_none() {
            self.absent
                .put((user.id, reference.clone()), (), now, epoch);
        }
        Ok(found.filter(|(subject, _)| user.sees(subject)))
    }

    async fn organization(
        &self,
        user: UserId,
        slug: &OrgSlug,
    ) -> Result<Option<(Organization, Held)>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.organizations.epoch());
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
            Held::from(role(row.get(1))?),
        );
        self.organizations
            .put((user, slug.clone()), found.clone(), now, epoch);
        Ok(Some(found))
    }

    /// A role on a project adds to the one in its organization.
    async fn project(
        &self,
        user: UserId,
        reference: &ProjectRef,
    ) -> Result<Option<(Project, Held)>, Error> {
        let (now, epoch) = (self.clock.ticks(), self.projects.epoch());
        let sql = "select p.id, p.organization_id, m.role, r.role from projects p \
                   join members m on m.organization_id = p.organization_id and m.user_id = $1 \
                   left join project_roles r on (r.organization_id, r.user_id, r.project_id) = (m.organization_id, m.user_id, p.id) \
                   where p.ref = $2";
        let rows = self
            .db
            .query(sql, &[&user.0, &reference.as_str()])
            .await
            .context("looking up a project")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let organization = role(row.get(2))?;
        let on_project = row.get::<_, Option<&str>>(3).map(role).transpose()?;
        let held = Held {
            organization,
            subject: on_project.map_or(organization, |role| role.max(organization)),
        };
        let project = Project {
            id: ProjectId(row.get(0)),
            reference: reference.clone(),
            organization: OrganizationId(row.get(1)),
        };
        self.projects.put(
            (user, reference.clone()),
            (project.clone(), held),
            now,
            epoch,
        );
        Ok(Some((project, held)))
    }

    /// Drops the entries of a cache.
    pub fn invalidate(&self, cache: Cache) {
        match cache {
            Cache::AccessTokens => self.tokens.clear(),
            Cache::OauthTokens => self.issued.clear(),
            Cache::Organizations => self.organizations.clear(),
            Cache::Projects => self.projects.clear(),
            Cache::UnknownNames => self.absent.clear(),
            Cache::ProjectListings | Cache::Hosts | Cache::HostStatus | Cache::ApiKeys => {}
        }
    }

    /// Whether what is read may be kept; everything known is forgotten.
    pub fn believe(&self, believe: bool) {
        self.tokens.believe(believe);
        self.issued.believe(believe);
        self.organizations.believe(believe);
        self.projects.believe(believe);
        self.absent.believe(believe);
    }

    async fn load_token(&self, digest: &SecretDigest, now: Ticks) -> Result<Option<Holder>, Error> {
        let epoch = self.tokens.epoch();
        let rows = self
            .db
            .query(token!("t.digest = $1"), &[&digest.as_bytes()])
            .await
            .context("looking up a token")?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let holder = read_token(row)?;
        self.tokens.put(*digest, holder.clone(), now, epoch);
        Ok(Some(holder))
    }

    /// Notes what a token was let in to, without making the request wait.
    pub fn note_call(&self, user: &User, operation: u16, case: Option<usize>) {
        let noted = user
            .lately
            .as_ref()
            .zip(user.token)
            .and_then(|(lately, token)| lately.calls.note(token, operation, case));
        if let Some(noted) = noted {
            // A dropped note is made again when the token is next read from the database.
            let _ = self.calls.try_send(noted);
        }
    }

    /// Notes that a token was used, without making the request wait.
    fn note_use(&self, user: &User, address: IpAddr, now: Ticks) {
        let due = user
            .lately
            .as_ref()
            .is_some_and(|lately| lately.calls.due(now));
        // A dropped note costs a coarser "last used", never a request.
        let _ = user
            .token
            .filter(|_| due)
            .map(|token| self.uses.try_send(Use { token, address }));
    }
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
