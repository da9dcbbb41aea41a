//! Objects that a project has beyond its migrations, and that a branch of it lacks.
//!
//! They are found in the catalogs of both databases, so no kit is needed to tell what is missing.

use std::collections::BTreeMap;

use super::{
    branch_row::{BranchRow, UnappliedDrift},
    runs::{self, OpenRun},
};
use crate::{
    api::context::ApiContext,
    control::{
        database_session::{
            DATABASE, OWNER,
            session::{DatabaseSession, SessionLimits},
        },
        projects::target,
    },
    platform::{
        access::Project,
        error::{Context as _, Error},
        tables::Table,
    },
};

/// Reads the objects of a database.
const OBJECTS: &str = include_str!("objects.sql");
/// Number of objects that are named.
const NAMED_MAX: usize = 20;

/// An object by kind, table and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectName {
    /// The table that it is part of.
    table: Option<String>,
    kind: String,
    name: String,
}

impl ObjectName {
    fn text(&self) -> String {
        let Self { table, kind, name } = self;
        match table {
            Some(table) => format!("{kind} {name} of {table}"),
            None => format!("{kind} {name}"),
        }
    }
}

/// Objects with the digests of their definitions.
type Objects = BTreeMap<ObjectName, String>;

/// Compares the original of a new branch with it, stores the difference, and logs it. `message`
/// says why it was not applied, and the remedy.
pub(super) async fn record(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
    message: &str,
) -> Result<(), Error> {
    let drift = match find(context, branch).await {
        Ok(objects) => UnappliedDrift::of(&objects, message),
        Err(error @ (Error::Sql(_) | Error::Invalid { .. } | Error::TimedOut(_))) => {
            let line = format!("the schemas are not compared: {}", error.message());
            return runs::log_once(context, &run.id, &line).await;
        }
        Err(error) => return Err(error),
    };
    if let Some(drift) = &drift {
        let line = format!(
            "unapplied_drift: {} objects of the parent are not in its migrations, and not in the branch: {}; {message}",
            drift.count,
            drift.objects.join(", "),
        );
        runs::log_once(context, &run.id, &line).await?;
    }
    store(context, branch, drift.as_ref()).await
}

/// Compares again after migrations were applied to a branch that lacked objects.
pub(super) async fn refresh(
    context: &ApiContext,
    run: &OpenRun,
    branch: &BranchRow,
) -> Result<(), Error> {
    match &branch.unapplied_drift {
        Some(drift) => record(context, run, branch, &drift.message).await,
        None => Ok(()),
    }
}

async fn store(
    context: &ApiContext,
    branch: &BranchRow,
    drift: Option<&UnappliedDrift>,
) -> Result<(), Error> {
    let doing = "writing a branch";
    let drift = drift.map(serde_json::to_value).transpose().context(doing)?;
    let sql = "update branches set unapplied_drift = $2 where id = $1";
    let stored = context.db.query(sql, &[&branch.id, &drift]).await;
    stored.context(doing)?;
    context.table_changed(Table::Branches);
    Ok(())
}

/// Returns the objects that the branch lacks, or has otherwise than its original.
async fn find(context: &ApiContext, branch: &BranchRow) -> Result<Vec<String>, Error> {
    let original = read(context, &branch.origin).await?;
    let own = read(context, &branch.project).await?;
    Ok(difference(&original, &own))
}

async fn read(context: &ApiContext, project: &Project) -> Result<Objects, Error> {
    let database = target(context, project).await?;
    // Definitions are written with all their schemas.
    let settings = [("search_path", "pg_catalog")];
    let limits = SessionLimits::default();
    let mut session = DatabaseSession::open(&database, OWNER, DATABASE, &settings, limits).await?;
    let rows = session.simple_query(OBJECTS).await?.rows.texts();
    Ok(rows.into_iter().filter_map(object).collect())
}

/// Reads a row of [`OBJECTS`]: kind, name, table and digest.
fn object(row: Vec<Option<String>>) -> Option<(ObjectName, String)> {
    let [kind, name, table, digest] = <[_; 4]>::try_from(row).ok()?;
    let name = ObjectName {
        table,
        kind: kind?,
        name: name?,
    };
    Some((name, digest.unwrap_or_default()))
}

/// Describes what `own` lacks of `original`, has otherwise, or has beyond it. Parts of a table that
/// only one side has are not described.
fn difference(original: &Objects, own: &Objects) -> Vec<String> {
    let lacks = |objects: &Objects, name: &ObjectName| match &name.table {
        None => false,
        Some(table) => !objects
            .keys()
            .any(|other| other.table.is_none() && other.name == *table),
    };
    let mut found = Vec::new();
    for (name, digest) in original {
        if own.get(name).is_some_and(|other| other == digest) || lacks(own, name) {
            continue;
        }
        let suffix = if own.contains_key(name) {
            " (differs)"
        } else {
            ""
        };
        found.push(format!("{}{suffix}", name.text()));
    }
    for name in own.keys() {
        if !original.contains_key(name) && !lacks(original, name) {
            found.push(format!("{} (dropped)", name.text()));
        }
    }
    found
}

impl UnappliedDrift {
    /// Returns `None` if there are no objects.
    fn of(objects: &[String], message: &str) -> Option<Self> {
        (!objects.is_empty()).then(|| Self {
            objects: objects.iter().take(NAMED_MAX).cloned().collect(),
            count: objects.len(),
            message: message.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(rows: &[(&str, &str, Option<&str>, &str)]) -> Objects {
        rows.iter()
            .map(|(kind, name, table, digest)| {
                let name = ObjectName {
                    table: table.map(str::to_owned),
                    kind: (*kind).to_owned(),
                    name: (*name).to_owned(),
                };
                (name, (*digest).to_owned())
            })
            .collect()
    }

    #[test]
    fn missing_changed_and_dropped_objects_are_described_without_parts_of_missing_tables() {
        let original = objects(&[
            ("table", "public.kept", None, "1"),
            ("column", "a", Some("public.kept"), "2"),
            ("column", "b", Some("public.kept"), "3"),
            ("table", "public.new", None, "4"),
            ("column", "c", Some("public.new"), "5"),
        ]);
        let own = objects(&[
            ("table", "public.kept", None, "1"),
            ("column", "a", Some("public.kept"), "other"),
            ("table", "public.old", None, "6"),
            ("column", "d", Some("public.old"), "7"),
        ]);
        assert_eq!(
            difference(&original, &own),
            [
                "table public.new",
                "column a of public.kept (differs)",
                "column b of public.kept",
                "table public.old (dropped)",
            ]
        );
        assert_eq!(difference(&original, &original), [""; 0]);
    }

    #[test]
    fn at_most_twenty_objects_are_named_and_all_are_counted() {
        let names: Vec<String> = (0..30).map(|n| format!("table public.t{n}")).collect();
        let drift = UnappliedDrift::of(&names, "why").unwrap();
        assert_eq!((drift.objects.len(), drift.count), (20, 30));
        assert_eq!(UnappliedDrift::of(&[], "why"), None);
    }
}
