//! Log drains as stored: list, creation, change and deletion.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectRef;
use gantry_logs::store::{Store, TailState};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{
    config,
    progress::{self, Progress},
    settings::{BackendType, Settings},
};
use crate::{
    api::context::ApiContext,
    control::projects,
    platform::{
        access::Project,
        audit::Recorder,
        db::{self, Db},
        error::{Context, Error},
        names,
        outbound::UrlOwner,
        sealing::SealingKey,
    },
};

/// Maximum number of drains of a project.
pub(super) const DRAINS_MAX: i64 = 10;
/// Maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 100;
/// Maximum length of a description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1000;

/// A drain with its settings, which contain secrets.
#[derive(Clone, PartialEq)]
pub(super) struct LogDrain {
    /// Id.
    pub id: Uuid,
    /// Name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// Type of the target.
    pub backend: BackendType,
    /// Checked settings of the type.
    pub settings: Settings,
    /// Number of changes.
    pub revision: i64,
    /// Creation time.
    pub created_at: DateTime<Utc>,
}

impl std::fmt::Debug for LogDrain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogDrain")
            .field("id", &self.id)
            .field("backend", &self.backend)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

/// Fields of a new drain, or of an update in which absent fields stay.
#[derive(Default)]
pub(super) struct DrainDraft {
    /// Name.
    pub name: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// Settings as sent.
    pub settings: Option<Settings>,
}

/// Returns the context in which the settings of a drain are sealed.
fn place(id: Uuid) -> String {
    format!("settings of log drain {id}")
}

/// Reads the columns in the order of the table, without the project.
pub(super) fn read(row: &Row, key: &SealingKey) -> Result<LogDrain, Error> {
    let doing = "reading a log drain";
    let id = row.get(0);
    let settings = key.open(&place(id), row.get(4))?;
    Ok(LogDrain {
        id,
        name: row.get(1),
        description: row.get(2),
        backend: BackendType::from_name(row.get(3))
            .ok_or("unknown type")
            .context(doing)?,
        settings: serde_json::from_str(settings.expose_secret()).context(doing)?,
        revision: row.get(5),
        created_at: row.get(6),
    })
}

fn seal(context: &ApiContext, id: Uuid, settings: &Settings) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_string(settings).context("sealing the settings of a log drain")?;
    let sealing = &context.settings.sealing;
    sealing.seal(&context.entropy, &place(id), &SecretString::from(text))
}

/// Lists the drains of a project, oldest first.
pub(super) async fn list(
    db: &Db,
    key: &SealingKey,
    project: &Project,
) -> Result<Vec<LogDrain>, Error> {
    let sql = "select id, name, description, backend_type, config, revision, created_at from log_drains \
               where project_id = $1 order by created_at, id limit $2";
    let rows = db
        .query(sql, &[&project.id.0, &DRAINS_MAX])
        .await
        .context("listing log drains")?;
    rows.iter().map(|row| read(row, key)).collect()
}

/// Counts the drains of these projects.
pub(in crate::api) async fn count(
    transaction: &Transaction<'_>,
    projects: &[i64],
) -> Result<i64, Error> {
    let sql = "select count(*) from log_drains where project_id = any($1)";
    let row = transaction.query_one(sql, &[&projects]).await;
    row.context("counting log drains").map(|row| row.get(0))
}

/// Returns the part of a drain that the audit log records.
fn audited(drain: &LogDrain) -> Value {
    json!({
        "id": drain.id,
        "name": drain.name,
        "description": drain.description,
        "backend_type": drain.backend.name(),
        "config": config::redact(drain.backend, &drain.settings),
    })
}

fn check_texts(name: Option<&str>, description: Option<&str>) -> Result<(), Error> {
    if let Some(name) = name {
        names::check("data.attributes.name", name, NAME_CHARS_MAX)?;
    }
    if description.is_some_and(|it| it.len() > DESCRIPTION_BYTES_MAX) {
        return Err(Error::invalid(
            "data.attributes.description",
            format!("has more than {DESCRIPTION_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

/// Opens the tail of a project, so that lines are kept until they are delivered.
pub(super) async fn open_tail(
    context: &ApiContext,
    store: &Store,
    project: &ProjectRef,
) -> Result<TailState, Error> {
    let epoch = context.entropy.uuid().simple().to_string();
    store
        .open_tail(project.as_str(), &epoch)
        .await
        .context("opening the tail of a project")
}

/// Creates a drain. It delivers lines that are added from now on.
pub(super) async fn create(
    context: &ApiContext,
    project: &Project,
    backend: BackendType,
    draft: DrainDraft,
    audit: &Recorder,
) -> Result<LogDrain, Error> {
    let doing = "creating a log drain";
    let settings = config::check(backend, &draft.settings.unwrap_or_default(), None)?;
    check_texts(draft.name.as_deref(), draft.description.as_deref())?;
    let owner = UrlOwner::Project(project.id);
    config::check_destination(backend, &settings, &context.outbound, owner).await?;
    let drain = LogDrain {
        id: context.entropy.uuid(),
        name: draft.name.unwrap_or_default(),
        description: draft.description,
        backend,
        settings,
        revision: 1,
        created_at: context.clock.now(),
    };
    let sealed = seal(context, drain.id, &drain.settings)?;
    // The first line to deliver from the stores of this process. Those of other processes are read
    // from the time of the creation on.
    let mut starts = Vec::new();
    for store in context.analytics.stores().await? {
        let tail = open_tail(context, &store, &project.reference).await?;
        let progress = Progress {
            epoch: tail.epoch,
            process: context.drains.process,
            next_line: tail.end,
            ..Progress::default()
        };
        starts.push((store.node().to_owned(), progress));
    }

    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Serializes changes of the drains of a project.
    projects::lock(&transaction, project, doing).await?;
    let sql = "select count(*) from log_drains where project_id = $1";
    if db::count(&transaction, sql, project.id.0, doing).await? >= DRAINS_MAX {
        return Err(Error::Rejected(
            format!("A project can have {DRAINS_MAX} log drains; delete one first").into(),
        ));
    }
    let sql = "insert into log_drains (id, project_id, name, description, backend_type, config, created_at) \
               values ($1, $2, $3, $4, $5, $6, $7)";
    transaction
        .execute(
            sql,
            &[
                &drain.id,
                &project.id.0,
                &drain.name,
                &drain.description,
                &backend.name(),
                &sealed,
                &drain.created_at,
            ],
        )
        .await
        .context(doing)?;
    for (store, start) in &starts {
        progress::insert(&transaction, drain.id, store, start, drain.created_at).await?;
    }
    let change = (None, Some(audited(&drain)));
    audit.result(&drain);
    audit
        .commit(transaction, doing, 201, change, drain.created_at)
        .await?;
    Ok(drain)
}

/// Locks and returns a drain of a project.
async fn locked(
    transaction: &Transaction<'_>,
    key: &SealingKey,
    project: &Project,
    id: Uuid,
) -> Result<LogDrain, Error> {
    let sql = "select id, name, description, backend_type, config, revision, created_at from log_drains \
               where id = $1 and project_id = $2 for update";
    let row = transaction
        .query_opt(sql, &[&id, &project.id.0])
        .await
        .context("reading a log drain")?
        .ok_or(Error::NotFound)?;
    read(&row, key)
}

/// Updates a drain. Absent fields stay, except that another type needs its settings.
pub(super) async fn update(
    context: &ApiContext,
    project: &Project,
    id: Uuid,
    (backend, draft): (BackendType, DrainDraft),
    audit: &Recorder,
) -> Result<LogDrain, Error> {
    let doing = "updating a log drain";
    let now = context.clock.now();
    check_texts(draft.name.as_deref(), draft.description.as_deref())?;
    // Resolves a name, so it precedes the transaction. A redacted destination has its host.
    if let Some(given) = &draft.settings {
        let owner = UrlOwner::Project(project.id);
        config::check_destination(backend, given, &context.outbound, owner).await?;
    }
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = locked(&transaction, &context.settings.sealing, project, id).await?;
    let same_type = before.backend == backend;
    let settings = match draft.settings {
        Some(given) => {
            let stored = same_type.then_some(&before.settings);
            config::check(backend, &given, stored)?
        }
        None if same_type => before.settings.clone(),
        // Names the first missing field, or the type that is not served.
        None => config::check(backend, &Settings::new(), None)?,
    };
    let drain = LogDrain {
        id,
        name: draft.name.unwrap_or_else(|| before.name.clone()),
        description: draft.description.or_else(|| before.description.clone()),
        backend,
        settings,
        revision: before.revision + 1,
        created_at: before.created_at,
    };
    let sealed = seal(context, id, &drain.settings)?;
    let sql = "update log_drains set name = $2, description = $3, backend_type = $4, config = $5, revision = $6 \
               where id = $1";
    transaction
        .execute(
            sql,
            &[
                &id,
                &drain.name,
                &drain.description,
                &backend.name(),
                &sealed,
                &drain.revision,
            ],
        )
        .await
        .context(doing)?;
    let change = (Some(audited(&before)), Some(audited(&drain)));
    audit.result(&drain);
    audit.commit(transaction, doing, 200, change, now).await?;
    Ok(drain)
}

/// Deletes a drain. Lines that were not delivered are not sent.
pub(super) async fn delete(
    context: &ApiContext,
    project: &Project,
    id: Uuid,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting a log drain";
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let before = locked(&transaction, &context.settings.sealing, project, id).await?;
    transaction
        .execute("delete from log_drains where id = $1", &[&id])
        .await
        .context(doing)?;
    let change = (Some(audited(&before)), None);
    audit
        .commit(transaction, doing, 204, change, context.clock.now())
        .await
}
