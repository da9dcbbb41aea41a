//! Secrets of a project's functions: sealed rows. Each change raises the number of the environment,
//! by which running functions are replaced.

use chrono::{DateTime, Utc};
use gantry_base::ids::ProjectId;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio_postgres::Transaction;

use super::{environment::platform_variables, live::live_functions};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::{Project, credential::SecretDigest},
        audit::Recorder,
        db,
        error::{Context, Error},
        notifications,
        tables::Table,
    },
};

/// Secrets of a project.
const SECRETS_MAX: i64 = 100;
/// Longest name, in characters.
pub const NAME_CHARS_MAX: usize = 256;
/// Longest value, in characters.
pub const VALUE_CHARS_MAX: usize = 24_576;
/// Prefix of the variables that the platform sets.
pub const RESERVED_PREFIX: &str = "SUPABASE_";

/// A secret to store.
#[derive(Debug)]
pub struct NewSecret {
    /// The name of the variable.
    pub name: String,
    /// Its value.
    pub value: SecretString,
}

/// A stored secret without its value.
#[derive(Debug)]
pub struct SecretEntry {
    /// The name of the variable.
    pub name: String,
    /// SHA-256 of the value.
    pub digest: Vec<u8>,
    /// Time of the last change. `None` for variables of the platform.
    pub updated_at: Option<DateTime<Utc>>,
}

/// Returns the secrets of a project by name. The variables of the platform are among them once a
/// function was deployed.
pub async fn list(context: &ControlContext, project: &Project) -> Result<Vec<SecretEntry>, Error> {
    let sql = "select name, digest, updated_at from function_secrets where project_id = $1 \
               order by name limit $2";
    let rows = context.db.query(sql, &[&project.id.0, &SECRETS_MAX]).await;
    let rows = rows.context("listing secrets")?;
    let read = |row: &tokio_postgres::Row| SecretEntry {
        name: row.get(0),
        digest: row.get(1),
        updated_at: Some(row.get(2)),
    };
    let mut all: Vec<SecretEntry> = rows.iter().map(read).collect();
    if !live_functions(context, project.id).await?.is_empty() {
        let variables = platform_variables(context, project.id, &project.reference).await?;
        all.extend(variables.into_iter().map(|(name, value)| SecretEntry {
            name: name.to_owned(),
            digest: SecretDigest::of(value.expose_secret()).as_bytes().to_vec(),
            updated_at: None,
        }));
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(all)
}

/// Stores secrets, all or none. Existing ones of the same names are replaced.
pub async fn set(
    context: &ControlContext,
    project: &Project,
    secrets: &[NewSecret],
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "storing secrets";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    set_in(context, &transaction, project.id, secrets, now).await?;
    let names: Vec<&str> = secrets.iter().map(|secret| secret.name.as_str()).collect();
    let entry = Some(json!({ "names": names }));
    let change = (None, entry);
    audit.commit(transaction, doing, 201, change, now).await?;
    announce(context).await
}

/// Stores secrets in a transaction.
pub async fn set_in(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    project: ProjectId,
    secrets: &[NewSecret],
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "storing secrets";
    check(secrets)?;
    next_environment(transaction, project).await?;
    let sql = "insert into function_secrets (project_id, name, sealed, digest, updated_at) \
               values ($1, $2, $3, $4, $5) on conflict (project_id, name) do update set \
               sealed = excluded.sealed, digest = excluded.digest, updated_at = excluded.updated_at";
    for secret in secrets {
        let place = seal_context(project, &secret.name);
        let sealing = &context.settings.sealing;
        let sealed = sealing.seal(&context.entropy, &place, &secret.value)?;
        let digest = SecretDigest::of(secret.value.expose_secret());
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&project.0, &secret.name, &sealed, &digest.as_bytes(), &now];
        transaction.execute(sql, &values).await.context(doing)?;
    }
    let sql = "select count(*) from function_secrets where project_id = $1";
    if db::count(transaction, sql, project.0, doing).await? > SECRETS_MAX {
        let text = format!("You can only store {SECRETS_MAX} secrets per project at maximum.");
        return Err(Error::Rejected(text.into()));
    }
    Ok(())
}

/// Deletes secrets. Names without a secret are ignored.
pub async fn remove(
    context: &ControlContext,
    project: &Project,
    names: &[String],
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "deleting secrets";
    let now = context.clock.now();
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    next_environment(&transaction, project.id).await?;
    let sql = "delete from function_secrets where project_id = $1 and name = any($2)";
    let deleted = transaction.execute(sql, &[&project.id.0, &names]).await;
    deleted.context(doing)?;
    let entry = Some(json!({ "names": names }));
    let change = (entry, None);
    audit.commit(transaction, doing, 200, change, now).await?;
    announce(context).await
}

/// All nodes use the new environment before the request is answered.
async fn announce(context: &ControlContext) -> Result<(), Error> {
    context.table_changed(Table::FunctionEnvironments);
    notifications::settle(&context.db).await
}

fn check(secrets: &[NewSecret]) -> Result<(), Error> {
    for (index, secret) in secrets.iter().enumerate() {
        let invalid =
            |field: &str, problem: String| Err(Error::invalid(format!("{index}.{field}"), problem));
        let too_big = |max: usize| format!("Too big: expected string to have <={max} characters");
        let name = &secret.name;
        if name.is_empty() {
            return invalid(
                "name",
                "Too small: expected string to have >=1 characters".into(),
            );
        }
        if name.chars().count() > NAME_CHARS_MAX {
            return invalid("name", too_big(NAME_CHARS_MAX));
        }
        if name.starts_with(RESERVED_PREFIX) {
            let text = format!("Secret name must not start with the {RESERVED_PREFIX} prefix.");
            return invalid("name", text);
        }
        // No process can have such a variable.
        if name.contains(['=', '\0']) {
            return invalid("name", "must not contain = or NUL".into());
        }
        let value = secret.value.expose_secret();
        if value.chars().count() > VALUE_CHARS_MAX {
            return invalid("value", too_big(VALUE_CHARS_MAX));
        }
        if value.contains('\0') {
            return invalid("value", "must not contain NUL".into());
        }
    }
    Ok(())
}

/// Raises the number of a project's environment, and locks it until the end of the transaction.
async fn next_environment(transaction: &Transaction<'_>, project: ProjectId) -> Result<(), Error> {
    let doing = "changing the environment of functions";
    // A removal of the project waits for this lock and then deletes the rows.
    projects::lock_shared(transaction, project, doing).await?;
    let sql = "insert into function_environments as e (project_id, generation) values ($1, 1) \
               on conflict (project_id) do update set generation = e.generation + 1";
    let raised = transaction.execute(sql, &[&project.0]).await;
    raised.context(doing).map(drop)
}

/// Returns the variables of a project, opened.
pub(in crate::control::services) async fn open(
    context: &ControlContext,
    project: ProjectId,
) -> Result<Vec<(String, SecretString)>, Error> {
    let sql = "select name, sealed from function_secrets where project_id = $1 limit $2";
    let rows = context.db.query(sql, &[&project.0, &SECRETS_MAX]).await;
    let rows = rows.context("reading secrets")?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let name: String = row.get(0);
        let place = seal_context(project, &name);
        let value = context.settings.sealing.open(&place, row.get(1))?;
        all.push((name, value));
    }
    Ok(all)
}

/// Authenticated context of a sealed value.
fn seal_context(project: ProjectId, name: &str) -> String {
    format!("project {project} function secret {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked_with_their_place() {
        let of = |name: &str, value: &str| {
            let secret = |name: &str, value: &str| NewSecret {
                name: name.to_owned(),
                value: value.to_owned().into(),
            };
            check(&[secret("FINE", "x"), secret(name, value)]).map_err(|error| match error {
                Error::Invalid { field, problem } => format!("{field}: {problem}"),
                other => other.to_string(),
            })
        };
        let long = "é".repeat(VALUE_CHARS_MAX);
        for (name, value) in [
            ("A", ""),
            ("supabase_x", "1"),
            ("A", &long),
            ("with space", "a\nb"),
        ] {
            of(name, value).unwrap();
        }
        let cases = [
            ("", "x", "1.name: Too small"),
            (
                &"x".repeat(257),
                "x",
                "1.name: Too big: expected string to have <=256 characters",
            ),
            (
                "SUPABASE_URL",
                "x",
                "1.name: Secret name must not start with the SUPABASE_ prefix.",
            ),
            ("A=B", "x", "1.name: must not"),
            (
                "A",
                &format!("{long}x"),
                "1.value: Too big: expected string to have <=24576 characters",
            ),
        ];
        for (name, value, expected) in cases {
            let error = of(name, value).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
