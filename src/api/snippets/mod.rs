//! SQL snippets: named queries, private or shared with all members of the project.

pub mod operations;
mod page;

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrganizationId, ProjectId, UserId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Row;
use uuid::Uuid;

pub use page::{ListOrder, Page, SortDirection, SortKey, list};

use crate::{
    api::context::ApiContext,
    platform::{
        access::{Project, Reach, User},
        audit::Recorder,
        db::Db,
        error::{Context, Error},
    },
};

/// Maximum length of a name in characters.
const NAME_MAX: usize = 256;
/// Maximum length of a description in characters.
const DESCRIPTION_MAX: usize = 1024;
/// Maximum length of the SQL in bytes.
pub const SQL_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of snippets per user and project.
const SNIPPETS_MAX: i64 = 1_000;
/// Schema version of `content`.
const SCHEMA_VERSION: &str = "1.0";

/// Visibility of a snippet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Visibility {
    /// Visible to its owner.
    User,
    /// Visible to every member of the organization with access to the project.
    Project,
}

impl Visibility {
    /// Name on the wire and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

/// The type of a snippet.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Kind {
    Sql,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SnippetProject {
    id: i64,
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SnippetUser {
    id: i64,
    username: String,
}

/// A snippet in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Snippet")]
pub struct SnippetSummary {
    id: Uuid,
    inserted_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    #[serde(rename = "type")]
    kind: Kind,
    visibility: Visibility,
    name: String,
    #[schemars(schema_with = "text_or_null")]
    description: Option<String>,
    project: SnippetProject,
    owner: SnippetUser,
    updated_by: SnippetUser,
    /// Always false: favorites are not supported.
    favorite: bool,
}

/// Schema of a required nullable field: schemars would make an `Option` optional.
fn text_or_null(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["string", "null"]})
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct SnippetContent {
    schema_version: &'static str,
    sql: String,
}

/// A snippet with its SQL.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnippetResponse")]
pub struct SnippetDetail {
    #[serde(flatten)]
    snippet: SnippetSummary,
    content: SnippetContent,
}

/// A snippet to be stored.
#[derive(Debug)]
pub struct NewSnippet {
    /// The owner: a member of the project's organization.
    pub owner: UserId,
    /// The project.
    pub project: ProjectId,
    /// Visibility.
    pub visibility: Visibility,
    /// Name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// The query. It is not validated.
    pub sql: String,
}

impl NewSnippet {
    fn check(&self) -> Result<(), Error> {
        if !(1..=NAME_MAX).contains(&self.name.chars().count()) {
            return Err(Error::invalid(
                "name",
                format!("expected 1 to {NAME_MAX} characters"),
            ));
        }
        if self
            .description
            .as_ref()
            .is_some_and(|text| text.chars().count() > DESCRIPTION_MAX)
        {
            return Err(Error::invalid(
                "description",
                format!("expected at most {DESCRIPTION_MAX} characters"),
            ));
        }
        if self.sql.len() > SQL_BYTES_MAX || self.sql.contains('\0') {
            return Err(Error::invalid(
                "sql",
                format!("expected at most {SQL_BYTES_MAX} bytes, and none that is zero"),
            ));
        }
        Ok(())
    }
}

/// Selects the snippets visible to a user and to the user's token. The first three parameters are
/// the user and the organizations and projects of the token.
macro_rules! visible {
    ($columns:literal, $rest:literal) => {
        concat!(
            "select ",
            $columns,
            "s.id, s.inserted_at, s.updated_at, s.visibility, s.name, s.description, p.id as project_id, p.name as project_name, \
             o.id as owner_id, o.username as owner_name, u.id as editor_id, u.username as editor_name \
             from snippets s join projects p on p.id = s.project_id and p.desired <> 'removed' \
             join members m on m.organization_id = p.organization_id and m.user_id = $1 \
             join users o on o.id = s.owner_id join users u on u.id = s.updated_by \
             where (s.visibility = 'project' or s.owner_id = $1) \
             and ($2::bigint[] is null or p.organization_id = any($2)) and ($3::bigint[] is null or p.id = any($3)) ",
            $rest
        )
    };
}
use visible;

/// Returns a snippet visible to the user.
pub async fn get(context: &ApiContext, user: &User, id: Uuid) -> Result<SnippetDetail, Error> {
    let (organizations, projects) = reach(user);
    let rows = context
        .db
        .query(
            visible!("s.sql, ", "and s.id = $4"),
            &[&user.id.0, &organizations, &projects, &id],
        )
        .await;
    let rows = rows.context("reading a snippet")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    Ok(SnippetDetail {
        snippet: read(row),
        content: SnippetContent {
            schema_version: SCHEMA_VERSION,
            sql: row.get(0),
        },
    })
}

/// Stores a snippet. Replaces one with the same name, owner and project.
pub async fn add(
    db: &Db,
    entropy: &Entropy,
    new: &NewSnippet,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<Uuid, Error> {
    new.check()?;
    let id = entropy.uuid();
    let sql = "insert into snippets (id, project_id, owner_id, visibility, name, description, sql, inserted_at, updated_at, updated_by) \
               select $1, $2, $3, $4, $5, $6, $7, $8, $8, $3 \
               where (select count(*) from snippets where project_id = $2 and owner_id = $3 and name <> $5) < $9 \
               on conflict (project_id, owner_id, name) do update set visibility = excluded.visibility, \
               description = excluded.description, sql = excluded.sql, updated_at = excluded.updated_at, updated_by = excluded.updated_by \
               returning id";
    let NewSnippet {
        owner,
        project,
        visibility,
        name,
        description,
        sql: text,
    } = new;
    let params: [crate::platform::db::Param<'_>; 9] = [
        &id,
        &project.0,
        &owner.0,
        &visibility.name(),
        name,
        description,
        text,
        &now,
        &SNIPPETS_MAX,
    ];
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("storing a snippet")?;
    let row = transaction
        .query_opt(sql, &params)
        .await
        .context("storing a snippet")?;
    let full =
        || Error::Rejected(format!("A user can keep {SNIPPETS_MAX} snippets on a project").into());
    let id = row.ok_or_else(full)?.get(0);
    if let Some(audit) = audit {
        let after = json!({"id": id, "name": name, "visibility": visibility.name()});
        audit
            .write_in(&transaction, 200, (None, Some(after)), now)
            .await?;
    }
    transaction.commit().await.context("storing a snippet")?;
    Ok(id)
}

/// Deletes a snippet.
pub async fn remove(
    db: &Db,
    id: Uuid,
    now: DateTime<Utc>,
    audit: Option<&Recorder>,
) -> Result<(), Error> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.context("deleting a snippet")?;
    let sql = "delete from snippets where id = $1 returning name";
    let row = transaction
        .query_opt(sql, &[&id])
        .await
        .context("deleting a snippet")?
        .ok_or(Error::NotFound)?;
    if let Some(audit) = audit {
        audit
            .write_in(
                &transaction,
                200,
                (Some(json!({"id": id, "name": row.get::<_, &str>(0)})), None),
                now,
            )
            .await?;
    }
    transaction.commit().await.context("deleting a snippet")
}

/// Returns the project of a snippet.
pub async fn project(db: &Db, id: Uuid) -> Result<Project, Error> {
    let sql = "select p.id, p.ref, p.organization_id from snippets s join projects p on p.id = s.project_id where s.id = $1";
    let rows = db
        .query(sql, &[&id])
        .await
        .context("looking up a snippet")?;
    let row = rows.first().ok_or(Error::NotFound)?;
    let reference = row
        .get::<_, &str>(1)
        .parse()
        .context("reading a project's ref")?;
    Ok(Project {
        id: ProjectId(row.get(0)),
        reference,
        organization: OrganizationId(row.get(2)),
    })
}

fn reach(user: &User) -> (Option<Vec<i64>>, Option<Vec<i64>>) {
    (
        user.reach().and_then(Reach::listed_organizations),
        user.reach().and_then(Reach::listed_projects),
    )
}

/// Reads a row of [`visible`]. Its first column is specific to the caller.
fn read(row: &Row) -> SnippetSummary {
    SnippetSummary {
        id: row.get(1),
        inserted_at: row.get(2),
        updated_at: row.get(3),
        kind: Kind::Sql,
        visibility: if row.get::<_, &str>(4) == Visibility::User.name() {
            Visibility::User
        } else {
            Visibility::Project
        },
        name: row.get(5),
        description: row.get(6),
        project: SnippetProject {
            id: row.get(7),
            name: row.get(8),
        },
        owner: SnippetUser {
            id: row.get(9),
            username: row.get(10),
        },
        updated_by: SnippetUser {
            id: row.get(11),
            username: row.get(12),
        },
        favorite: false,
    }
}
