//! Rows of notebooks: list, creation, change and deletion. A notebook of another project does not
//! exist.

use chrono::{DateTime, SubsecRound, Utc};
use gantry_base::ids::UserId;
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{
    cells::{self, NotebookCell},
    page::{NotebookCursor, NotebookSort},
};
use crate::{
    api::{
        context::ApiContext,
        cursor_pages::{CursorPage, PageRequest},
    },
    control::projects,
    platform::{
        access::Project,
        audit::Recorder,
        db,
        error::{Context, Error, NotebookProblem},
        names,
    },
};

/// Maximum number of notebooks of a project.
const NOTEBOOKS_MAX: i64 = 200;
/// Maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 255;
/// Maximum length of a description, in characters.
const DESCRIPTION_CHARS_MAX: usize = 10_000;

/// A notebook without its cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotebookHead {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) description: Option<String>,
    /// Mark for all members.
    pub(super) favorite: bool,
    pub(super) inserted_at: DateTime<Utc>,
    pub(super) updated_at: DateTime<Utc>,
    /// The user that created it. `None` if the account was deleted.
    pub(super) owner: Option<NotebookUser>,
    /// The user that changed it last. `None` if the account was deleted.
    pub(super) updated_by: Option<NotebookUser>,
}

/// A user of a notebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotebookUser {
    pub(super) id: i64,
    pub(super) username: String,
}

/// A notebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notebook {
    pub(super) head: NotebookHead,
    pub(super) cells: Vec<NotebookCell<String>>,
}

/// A notebook to be stored.
#[derive(Debug)]
pub(super) struct NewNotebook {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) favorite: bool,
    pub(super) cells: Vec<NotebookCell<Option<String>>>,
}

/// Changes of a notebook. Absent fields stay.
#[derive(Debug)]
#[expect(
    clippy::option_option,
    reason = "an absent description and a removed one are different"
)]
pub(super) struct NotebookChanges {
    pub(super) name: Option<String>,
    pub(super) description: Option<Option<String>>,
    pub(super) favorite: Option<bool>,
    /// All cells in their order; they replace the earlier ones.
    pub(super) cells: Option<Vec<NotebookCell<Option<String>>>>,
}

/// Filter and order of a list.
#[derive(Debug)]
pub(super) struct NotebookFilter {
    /// Only notebooks with exactly this name.
    pub(super) name: Option<String>,
    pub(super) sort: NotebookSort,
}

/// A notebook of a list, with its sort key.
#[derive(Debug)]
pub(super) struct ListedNotebook {
    pub(super) head: NotebookHead,
    key: String,
}

impl ListedNotebook {
    pub(super) fn cursor(&self, sort: NotebookSort) -> NotebookCursor {
        NotebookCursor {
            sort,
            key: self.key.clone(),
            id: self.head.id,
        }
    }
}

/// Selects notebooks with their users. The columns after the first ten are specific to the caller.
macro_rules! select_notebooks {
    ($column:literal, $rest:literal) => {
        concat!(
            "select n.id, n.name, n.description, n.favorite, n.inserted_at, n.updated_at, \
             o.id as owner_id, o.username as owner_name, \
             u.id as editor_id, u.username as editor_name, ",
            $column,
            " from notebooks n left join users o on o.id = n.owner_id \
             left join users u on u.id = n.updated_by ",
            $rest
        )
    };
}

/// Selects a page: rows after a key and id, in one direction.
macro_rules! page {
    ($key:literal, $after:literal, $direction:literal) => {
        concat!(
            "with listed as (",
            select_notebooks!(
                $key,
                "where n.project_id = $1 and ($2::text is null or n.name = $2)"
            ),
            ") select * from listed where $3::text is null or (key, id) ",
            $after,
            " ($3, $4::uuid) order by key ",
            $direction,
            ", id ",
            $direction,
            " limit $5"
        )
    };
}

/// Keys are compared by their bytes, independent of the locale.
macro_rules! page_by_name {
    ($after:literal, $direction:literal) => {
        page!("n.name collate \"C\" as key", $after, $direction)
    };
}

macro_rules! page_by_time {
    ($after:literal, $direction:literal) => {
        page!(
            "to_char(n.inserted_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') \
             collate \"C\" as key",
            $after,
            $direction
        )
    };
}

fn read_head(row: &Row) -> NotebookHead {
    let user = |id: usize, name: usize| {
        let id: Option<i64> = row.get(id);
        id.map(|id| NotebookUser {
            id,
            username: row.get(name),
        })
    };
    NotebookHead {
        id: row.get(0),
        name: row.get(1),
        description: row.get(2),
        favorite: row.get(3),
        inserted_at: row.get(4),
        updated_at: row.get(5),
        owner: user(6, 7),
        updated_by: user(8, 9),
    }
}

/// Reads a row with the cells.
fn read(row: &Row) -> Result<Notebook, Error> {
    Ok(Notebook {
        head: read_head(row),
        cells: cells::read(row.get(10))?,
    })
}

/// Lists notebooks of a project, without their cells.
pub(super) async fn list(
    context: &ApiContext,
    project: &Project,
    filter: &NotebookFilter,
    request: &PageRequest<NotebookCursor>,
) -> Result<CursorPage<ListedNotebook>, Error> {
    let descending = filter.sort.is_descending() != request.is_backward();
    let sql = match (filter.sort.is_by_name(), descending) {
        (true, false) => page_by_name!(">", "asc"),
        (true, true) => page_by_name!("<", "desc"),
        (false, false) => page_by_time!(">", "asc"),
        (false, true) => page_by_time!("<", "desc"),
    };
    let (key, id) = request
        .cursor()
        .map(|cursor| (cursor.key.as_str(), cursor.id))
        .unzip();
    let rows_max = request.rows_max();
    let params: [db::Param<'_>; 5] = [&project.id.0, &filter.name, &key, &id, &rows_max];
    let rows = context.db.query(sql, &params).await;
    let rows = rows.context("listing notebooks")?;
    let listed = |row: &Row| ListedNotebook {
        head: read_head(row),
        key: row.get(10),
    };
    Ok(request.page(rows.iter().map(listed).collect()))
}

/// Returns a notebook of a project.
pub(super) async fn get(
    context: &ApiContext,
    project: &Project,
    id: Uuid,
) -> Result<Notebook, Error> {
    let sql = select_notebooks!("n.content", "where n.project_id = $1 and n.id = $2");
    let rows = context.db.query(sql, &[&project.id.0, &id]).await;
    let rows = rows.context("reading a notebook")?;
    read(rows.first().ok_or(not_found())?)
}

const fn not_found() -> Error {
    Error::Notebook(NotebookProblem::NotFound)
}

/// Reads a notebook in a transaction, and locks its row.
async fn locked(
    transaction: &Transaction<'_>,
    project: &Project,
    id: Uuid,
) -> Result<Notebook, Error> {
    let sql = select_notebooks!(
        "n.content",
        "where n.project_id = $1 and n.id = $2 for update of n"
    );
    let row = transaction.query_opt(sql, &[&project.id.0, &id]).await;
    let row = row.context("locking a notebook")?;
    read(&row.ok_or(not_found())?)
}

fn check_texts(name: Option<&str>, description: Option<&str>) -> Result<(), Error> {
    if let Some(name) = name {
        names::check("data.attributes.name", name, NAME_CHARS_MAX)?;
    }
    if description.is_some_and(|it| it.chars().count() > DESCRIPTION_CHARS_MAX) {
        let problem =
            format!("Too big: expected string to have <={DESCRIPTION_CHARS_MAX} characters");
        return Err(Error::invalid("data.attributes.description", problem));
    }
    Ok(())
}

/// Returns the part of a notebook that the audit log records. Texts and queries are left out.
fn audited(notebook: &Notebook) -> Value {
    let head = &notebook.head;
    json!({
        "id": head.id,
        "name": head.name,
        "favorite": head.favorite,
        "cells": notebook.cells.len(),
        "updated_at": head.updated_at,
    })
}

/// Creates a notebook.
///
/// Errors: [`Error::Rejected`] if there are as many as permitted.
pub(super) async fn create(
    context: &ApiContext,
    project: &Project,
    user: UserId,
    new: NewNotebook,
    audit: &Recorder,
) -> Result<Notebook, Error> {
    let doing = "creating a notebook";
    check_texts(Some(&new.name), new.description.as_deref())?;
    let cells = cells::identify(new.cells, None, || context.entropy.uuid().to_string())?;
    let content = cells::write(&cells)?;
    let id = context.entropy.uuid();
    // As stored.
    let now = context.clock.now().trunc_subsecs(6);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Serializes creations, so that two requests do not both take the last place.
    projects::lock(&transaction, project, doing).await?;
    let sql = "select count(*) from notebooks where project_id = $1";
    if db::count(&transaction, sql, project.id.0, doing).await? >= NOTEBOOKS_MAX {
        let text = format!("A project can have {NOTEBOOKS_MAX} notebooks; delete one first");
        return Err(Error::Rejected(text.into()));
    }
    let sql = "insert into notebooks (id, project_id, name, description, favorite, content, \
               inserted_at, updated_at, owner_id, updated_by) \
               values ($1, $2, $3, $4, $5, $6, $7, $7, $8, $8)";
    let params: [db::Param<'_>; 8] = [
        &id,
        &project.id.0,
        &new.name,
        &new.description,
        &new.favorite,
        &content,
        &now,
        &user.0,
    ];
    transaction.execute(sql, &params).await.context(doing)?;
    let created = locked(&transaction, project, id).await?;
    let change = (None, Some(audited(&created)));
    audit.result(&created);
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(created)
}

/// Changes a notebook. Concurrent changes wait for each other.
pub(super) async fn update(
    context: &ApiContext,
    project: &Project,
    (id, user): (Uuid, UserId),
    changes: NotebookChanges,
    audit: &Recorder,
) -> Result<Notebook, Error> {
    let doing = "updating a notebook";
    let description = changes.description.as_ref();
    check_texts(
        changes.name.as_deref(),
        description.and_then(Option::as_deref),
    )?;
    let now = context.clock.now().trunc_subsecs(6);
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = locked(&transaction, project, id).await?;
    let content = match changes.cells {
        Some(cells) => {
            let known = cells::ids(&before.cells);
            let new_id = || context.entropy.uuid().to_string();
            let cells = cells::identify(cells, Some(&known), new_id)?;
            Some(cells::write(&cells)?)
        }
        None => None,
    };
    let description = changes
        .description
        .unwrap_or_else(|| before.head.description.clone());
    let sql = "update notebooks set name = coalesce($2, name), description = $3, \
               favorite = coalesce($4, favorite), content = coalesce($5, content), \
               updated_at = $6, updated_by = $7 where id = $1";
    let params: [db::Param<'_>; 7] = [
        &id,
        &changes.name,
        &description,
        &changes.favorite,
        &content,
        &now,
        &user.0,
    ];
    transaction.execute(sql, &params).await.context(doing)?;
    let after = locked(&transaction, project, id).await?;
    let change = (Some(audited(&before)), Some(audited(&after)));
    audit.result(&after);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(after)
}

/// Deletes a notebook.
pub(super) async fn delete(
    context: &ApiContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting a notebook";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = locked(&transaction, project, id).await?;
    let deleted = transaction
        .execute("delete from notebooks where id = $1", &[&id])
        .await;
    deleted.context(doing)?;
    let change = (Some(audited(&before)), None);
    let now = context.clock.now();
    audit.commit(transaction, doing, 204, change, now).await
}
