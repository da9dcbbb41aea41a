//! Members and their roles in an organization and on single projects.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use gantry_base::ids::{OrganizationId, ProjectRef, UserId};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::member_events::MemberRoles;
use crate::platform::{
    access::Role,
    audit::{Change, Recorder},
    db::Db,
    error::{Context, Error},
};

/// The answer to a change of a service identity as of a member.
const SERVICE_IDENTITY: &str = "This member is a service identity, which keeps its role. \
     Delete it, and create another, at /v1/organizations/{slug}/service-identities";

/// A member with all roles.
#[derive(Debug)]
pub struct Membership {
    /// The id of the user in other services.
    pub user: Uuid,
    /// Username.
    pub username: String,
    /// Email address.
    pub email: String,
    /// The role in the whole organization.
    pub role: Role,
    /// Roles on single projects, grouped by role.
    pub on_projects: Vec<(Role, Vec<ProjectName>)>,
}

/// A project with its name.
#[derive(Debug, Clone)]
pub struct ProjectName {
    /// The ref of the project.
    pub reference: String,
    /// Display name.
    pub name: String,
}

/// Filter and page of a list of members, ordered by id.
#[derive(Debug, Default)]
pub struct MemberQuery {
    /// Maximum number of members.
    pub size: i64,
    /// Return members after this id.
    pub after: Option<Uuid>,
    /// Return members before this id.
    pub before: Option<Uuid>,
    /// Return members with this username.
    pub username: Option<String>,
    /// Return members with this email address.
    pub email: Option<String>,
}

/// Returns a page of members, whether there are earlier ones, and whether there are later ones.
pub async fn list_page(
    db: &Db,
    organization: OrganizationId,
    page: &MemberQuery,
) -> Result<(Vec<Membership>, bool, bool), Error> {
    // Reads one row more than the page, to detect another page. A backward page is read in
    // descending order.
    macro_rules! members {
        ($order:literal) => {
            concat!(
                "select u.gotrue_id, u.username, u.email, m.role, \
                 array(select r.role from project_roles r where r.user_id = m.user_id and r.organization_id = m.organization_id order by r.project_id), \
                 array(select p.ref from project_roles r join projects p on p.id = r.project_id \
                       where r.user_id = m.user_id and r.organization_id = m.organization_id order by r.project_id), \
                 array(select p.name from project_roles r join projects p on p.id = r.project_id \
                       where r.user_id = m.user_id and r.organization_id = m.organization_id order by r.project_id) \
                 from members m join users u on u.id = m.user_id where m.organization_id = $1 \
                 and ($2::uuid is null or u.gotrue_id > $2) and ($3::uuid is null or u.gotrue_id < $3) \
                 and ($4::text is null or u.username = $4) and ($5::text is null or lower(u.email) = lower($5)) \
                 order by u.gotrue_id ",
                $order,
                " limit $6"
            )
        };
    }
    let backwards = page.before.is_some() && page.after.is_none();
    let sql = if backwards {
        members!("desc")
    } else {
        members!("asc")
    };
    let limit = page.size + 1;
    let rows = db
        .query(
            sql,
            &[
                &organization.0,
                &page.after,
                &page.before,
                &page.username,
                &page.email,
                &limit,
            ],
        )
        .await
        .context("listing members")?;
    let more = i64::try_from(rows.len()).is_ok_and(|found| found > page.size);
    let page_rows = rows
        .iter()
        .take(usize::try_from(page.size).unwrap_or_default());
    let mut members = page_rows.map(read).collect::<Result<Vec<_>, _>>()?;
    if backwards {
        members.reverse();
        return Ok((members, more, true));
    }
    Ok((members, page.after.is_some(), more))
}

fn read(row: &Row) -> Result<Membership, Error> {
    let role = |name: &str| name.parse::<Role>().context("reading a member's role");
    let roles: Vec<&str> = row.get(4);
    let references: Vec<String> = row.get(5);
    let names: Vec<String> = row.get(6);
    let mut on_projects: Vec<(Role, Vec<ProjectName>)> = Vec::new();
    for (role_name, (reference, name)) in roles.into_iter().zip(references.into_iter().zip(names)) {
        let project_role = role(role_name)?;
        let project = ProjectName { reference, name };
        match on_projects
            .iter_mut()
            .find(|(known, _)| *known == project_role)
        {
            Some((_, projects)) => projects.push(project),
            None => on_projects.push((project_role, vec![project])),
        }
    }
    Ok(Membership {
        user: row.get(0),
        username: row.get(1),
        email: row.get(2),
        role: role(row.get(3))?,
        on_projects,
    })
}

/// Returns the row id of a member.
pub async fn by_id(db: &Db, organization: OrganizationId, user: Uuid) -> Result<UserId, Error> {
    let sql = "select u.id from members m join users u on u.id = m.user_id where m.organization_id = $1 and u.gotrue_id = $2";
    let rows = db
        .query(sql, &[&organization.0, &user])
        .await
        .context("looking up a member")?;
    rows.first()
        .map(|row| UserId(row.get(0)))
        .ok_or(Error::NotFound)
}

/// Sets the role of a user in an organization. The last owner cannot lose the role.
pub async fn set(
    db: &Db,
    organization: OrganizationId,
    user: UserId,
    role: Role,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<(), Error> {
    let mut client = db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("setting a member's role")?;
    lock(&transaction, organization).await?;
    check_is_person(&transaction, user).await?;
    let before = audit_value(&transaction, organization, user).await?;
    let roles = MemberRoles::read(&transaction, organization, user).await?;
    set_in(&transaction, organization, user, role, now).await?;
    if let Some(audit) = audit {
        let after = audit_value(&transaction, organization, user).await?;
        let events = roles.changes(&transaction).await?;
        let change = Change::new((before, after), events);
        audit.write_in(&transaction, 200, change, now).await?;
    }
    transaction
        .commit()
        .await
        .context("setting a member's role")
}

/// Like [`set`], within a transaction that holds the lock.
pub(in crate::api) async fn set_in(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    user: UserId,
    role: Role,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    if role != Role::Owner {
        check_not_last_owner(transaction, organization, user).await?;
    }
    let sql = "insert into members (organization_id, user_id, role, created_at) values ($1, $2, $3, $4) \
               on conflict (organization_id, user_id) do update set role = excluded.role";
    transaction
        .execute(sql, &[&organization.0, &user.0, &role.name(), &now])
        .await
        .context("setting a member's role")?;
    Ok(())
}

/// Sets the role of a member on these projects; [`Role::Member`] removes it.
pub async fn set_on_projects(
    db: &Db,
    organization: OrganizationId,
    user: UserId,
    role: Role,
    references: &BTreeSet<ProjectRef>,
    (now, audit): (DateTime<Utc>, Option<&Recorder>),
) -> Result<Vec<ProjectName>, Error> {
    let mut client = db.client().await?;
    let transaction = client
        .transaction()
        .await
        .context("setting roles on projects")?;
    lock(&transaction, organization).await?;
    check_is_person(&transaction, user).await?;
    let before = audit_value(&transaction, organization, user).await?;
    let roles = MemberRoles::read(&transaction, organization, user).await?;
    let (ids, projects) = projects_in(&transaction, organization, references).await?;
    set_on_projects_in(&transaction, organization, user, role, &ids, now).await?;
    if let Some(audit) = audit {
        audit.result(&projects);
        let after = audit_value(&transaction, organization, user).await?;
        let events = roles.changes(&transaction).await?;
        let change = Change::new((before, after), events);
        audit.write_in(&transaction, 200, change, now).await?;
    }
    transaction
        .commit()
        .await
        .context("setting roles on projects")?;
    Ok(projects)
}

/// Like [`set_on_projects`] by row ids, within a transaction that holds the lock.
pub(super) async fn set_on_projects_in(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    user: UserId,
    role: Role,
    projects: &[i64],
    now: DateTime<Utc>,
) -> Result<(), Error> {
    if role == Role::Member {
        let sql = "delete from project_roles where organization_id = $1 and user_id = $2 and project_id = any($3)";
        transaction
            .execute(sql, &[&organization.0, &user.0, &projects])
            .await
            .context("removing roles on projects")?;
        return Ok(());
    }
    // Skips projects that were removed meanwhile.
    let sql = "insert into project_roles (organization_id, user_id, project_id, role, created_at) \
               select $1, $2, p.id, $4, $5 from projects p where p.id = any($3) and p.organization_id = $1 and p.desired <> 'removed' \
               on conflict (user_id, project_id) do update set role = excluded.role";
    transaction
        .execute(
            sql,
            &[&organization.0, &user.0, &projects, &role.name(), &now],
        )
        .await
        .context("setting roles on projects")?;
    Ok(())
}

/// Returns the role of a user in an organization, or `None` if the user is not a member.
pub(in crate::api) async fn role_in(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    user: UserId,
) -> Result<Option<Role>, Error> {
    let doing = "reading a member's role";
    let sql = "select role from members where organization_id = $1 and user_id = $2";
    let row = transaction
        .query_opt(sql, &[&organization.0, &user.0])
        .await
        .context(doing)?;
    row.map(|row| row.get::<_, &str>(0).parse().context(doing))
        .transpose()
}

/// Counts the roles on single projects that include one of these.
pub(in crate::api) async fn count_on_projects(
    transaction: &Transaction<'_>,
    projects: &[i64],
) -> Result<i64, Error> {
    let sql = "select count(*) from project_roles where project_id = any($1)";
    let row = transaction.query_one(sql, &[&projects]).await;
    row.context("counting roles on projects")
        .map(|row| row.get(0))
}

/// Returns the projects with these refs, or an error if one does not exist in the organization.
pub(super) async fn projects_in(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    references: &BTreeSet<ProjectRef>,
) -> Result<(Vec<i64>, Vec<ProjectName>), Error> {
    let texts: Vec<&str> = references.iter().map(ProjectRef::as_str).collect();
    let sql = "select id, ref, name from projects where organization_id = $1 and ref = any($2) and desired <> 'removed' order by ref";
    let rows = transaction
        .query(sql, &[&organization.0, &texts])
        .await
        .context("looking up projects")?;
    let projects: Vec<_> = rows
        .iter()
        .map(|row| ProjectName {
            reference: row.get(1),
            name: row.get(2),
        })
        .collect();
    match texts
        .iter()
        .find(|text| !projects.iter().any(|project| project.reference == **text))
    {
        Some(unknown) => Err(Error::invalid(
            "projects",
            format!("there is no project {unknown} in this organization"),
        )),
        None => Ok((rows.iter().map(|row| row.get(0)).collect(), projects)),
    }
}

/// Removes a member and all roles on projects. The last owner cannot be removed.
pub async fn remove(
    db: &Db,
    organization: OrganizationId,
    user: UserId,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<(), Error> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("removing a member")?;
    lock(&transaction, organization).await?;
    check_is_person(&transaction, user).await?;
    check_not_last_owner(&transaction, organization, user).await?;
    let before = audit_value(&transaction, organization, user)
        .await?
        .ok_or(Error::NotFound)?;
    if let Some(audit) = audit {
        let roles = MemberRoles::read(&transaction, organization, user).await?;
        let change = Change::new((Some(before), None), roles.removed());
        audit.write_in(&transaction, 200, change, now).await?;
    }
    let sql = "delete from members where organization_id = $1 and user_id = $2";
    transaction
        .execute(sql, &[&organization.0, &user.0])
        .await
        .context("removing a member")?;
    transaction.commit().await.context("removing a member")
}

/// Returns a member with all roles for the audit log, or `None` if the user is not a member.
pub(super) async fn audit_value(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    user: UserId,
) -> Result<Option<Value>, Error> {
    let sql = "select u.gotrue_id::text, m.role, \
               array(select p.ref || ' ' || r.role from project_roles r join projects p on p.id = r.project_id \
                     where r.user_id = m.user_id and r.organization_id = m.organization_id order by p.ref) \
               from members m join users u on u.id = m.user_id where m.organization_id = $1 and m.user_id = $2";
    let row = transaction
        .query_opt(sql, &[&organization.0, &user.0])
        .await
        .context("describing a member")?;
    let audit_value = |row: Row| json!({"member": row.get::<_, &str>(0), "role": row.get::<_, &str>(1), "on_projects": row.get::<_, Vec<&str>>(2)});
    Ok(row.map(audit_value))
}

/// Locks the organization. Changes of its members are serialized, so that two concurrent changes
/// cannot remove the last two owners.
pub(in crate::api) async fn lock(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
) -> Result<(), Error> {
    let locked = transaction
        .query_opt(
            "select from organizations where id = $1 for update",
            &[&organization.0],
        )
        .await;
    locked
        .context("locking an organization")?
        .map(drop)
        .ok_or(Error::NotFound)
}

/// Rejects a change of a service identity, which keeps its role until it is deleted.
async fn check_is_person(transaction: &Transaction<'_>, user: UserId) -> Result<(), Error> {
    let sql = "select from users where id = $1 and service_of is not null";
    let found = transaction.query_opt(sql, &[&user.0]).await;
    match found.context("looking for a service identity")? {
        Some(_) => Err(Error::Rejected(SERVICE_IDENTITY.into())),
        None => Ok(()),
    }
}

/// Returns an error if `user` is the only owner.
async fn check_not_last_owner(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    user: UserId,
) -> Result<(), Error> {
    let sql = "select from members where organization_id = $1 and role = 'owner' having count(*) = 1 and min(user_id) = $2";
    let last = transaction
        .query_opt(sql, &[&organization.0, &user.0])
        .await
        .context("counting owners")?;
    if last.is_some() {
        Err(Error::Rejected(
            "An organization must have at least one owner".into(),
        ))
    } else {
        Ok(())
    }
}
