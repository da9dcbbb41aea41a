//! The rows that a transfer moves: a project and its branches.

use gantry_base::ids::{OrgSlug, OrganizationId, ProjectRef};
use tokio_postgres::{Row, Transaction};

use crate::{
    api::organizations,
    control::projects::{RowToLock, Status, lock, removed},
    platform::{
        access::Project,
        error::{Context, Error},
    },
};

/// A project or branch that is moved.
#[derive(Debug)]
pub(super) struct MovingProject {
    pub(super) id: i64,
    pub(super) reference: ProjectRef,
    pub(super) name: String,
    pub(super) status: Status,
}

/// A project with its branches.
#[derive(Debug)]
pub(super) struct MovingProjects {
    /// Slug of the organization that they are in.
    pub(super) source: OrgSlug,
    /// Whether the project is a branch itself.
    pub(super) is_branch: bool,
    /// The project, then its branches.
    pub(super) all: Vec<MovingProject>,
}

impl MovingProjects {
    /// Reads the rows.
    ///
    /// Errors: that of [`removed`] if the project was removed, [`Error::NotFound`] if it is not in
    /// the organization in which the request was admitted.
    pub(super) async fn read(
        transaction: &Transaction<'_>,
        project: &Project,
    ) -> Result<Self, Error> {
        let doing = "reading a project with its branches";
        let sql = "select p.id, p.ref, p.name, p.status, o.slug, p.organization_id, p.desired, \
                   exists (select from branches b where b.project_id = p.id and not b.is_default) \
                   from projects p join organizations o on o.id = p.organization_id where p.id = $1";
        let row = transaction.query_opt(sql, &[&project.id.0]).await;
        let row = row.context(doing)?.ok_or(Error::NotFound)?;
        if row.get::<_, &str>(6) == "removed" {
            return Err(removed());
        }
        if OrganizationId(row.get(5)) != project.organization {
            return Err(Error::NotFound);
        }
        let mut all = vec![read(&row)?];
        let sql = "select p.id, p.ref, p.name, p.status from branches b \
                   join projects p on p.id = b.project_id \
                   where b.parent_id = $1 and not b.is_default order by p.id";
        let rows = transaction.query(sql, &[&project.id.0]).await;
        for row in &rows.context(doing)? {
            all.push(read(row)?);
        }
        Ok(Self {
            source: organizations::slug(&row, 4)?,
            is_branch: row.get(7),
            all,
        })
    }

    /// Row ids of the projects.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.all.iter().map(|it| it.id).collect()
    }

    /// Refs of the branches.
    pub(super) fn branches(&self) -> Vec<&ProjectRef> {
        self.all.iter().skip(1).map(|it| &it.reference).collect()
    }
}

fn read(row: &Row) -> Result<MovingProject, Error> {
    let reference = row.get::<_, &str>(1).parse();
    Ok(MovingProject {
        id: row.get(0),
        reference: reference.context("reading a project's ref")?,
        name: row.get(2),
        status: Status::read(row, 3)?,
    })
}

/// Locks both organizations, the branches and the project, in this order.
///
/// Changes of members and of roles on projects lock the organization, and so wait for the transfer
/// or are seen by it; new rows that refer to an organization do not wait. The creation of a branch
/// of a branch locks its origin before the parent, too.
pub(super) async fn lock_rows(
    transaction: &Transaction<'_>,
    project: &Project,
    target: Option<OrganizationId>,
) -> Result<(), Error> {
    let doing = "locking the rows of a transfer";
    let mut organizations = vec![project.organization.0];
    organizations.extend(target.map(|it| it.0));
    let sql = "select from organizations where id = any($1) order by id for no key update";
    let locked = transaction.query(sql, &[&organizations]).await;
    locked.context(doing)?;
    let sql = "select from branches b join projects p on p.id = b.project_id \
               where b.parent_id = $1 and not b.is_default order by p.id desc for update of p";
    let locked = transaction.query(sql, &[&project.id.0]).await;
    locked.context(doing)?;
    lock(transaction, RowToLock::from(project), doing)
        .await
        .map(drop)
}
