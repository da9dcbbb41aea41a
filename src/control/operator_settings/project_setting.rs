//! A setting of single projects, with its audit log entry.

use gantry_base::{
    clock::Clock,
    ids::{OrganizationId, ProjectRef},
};
use serde_json::Value;
use tokio_postgres::types::{FromSqlOwned, ToSql};

use crate::platform::{
    audit::Recorder,
    db::{Db, Param},
    error::{Context, Error},
};

/// A setting of single projects. A project without a row uses the server's default.
pub(super) struct ProjectSetting<F> {
    /// Action for error messages.
    pub(super) action: &'static str,
    /// Deletes a row by project id and key, and returns its value.
    pub(super) delete: &'static str,
    /// Inserts project id, key and value.
    pub(super) insert: &'static str,
    /// Formats a value for the audit log.
    pub(super) describe: F,
}

impl<F> ProjectSetting<F> {
    /// Sets the value of a project, or removes it if `value` is `None`. Returns the previous value.
    /// An unchanged value is neither stored nor written to the audit log.
    ///
    /// `key` is the rest of the row's primary key after the project id.
    pub(super) async fn set<V: FromSqlOwned + ToSql + Sync + PartialEq>(
        &self,
        db: &Db,
        project: &ProjectRef,
        key: &[Param<'_>],
        value: Option<V>,
        clock: &Clock,
        audit: Recorder,
    ) -> Result<Option<V>, Error>
    where
        F: Fn(&V) -> Value,
    {
        let mut client = db.client().await?;
        let transaction = client.transaction().await.context(self.action)?;
        let sql = "select id, organization_id from projects where ref = $1 and desired <> 'removed' for update";
        let found = transaction
            .query_opt(sql, &[&project.as_str()])
            .await
            .context(self.action)?
            .ok_or(Error::NotFound)?;
        let id: i64 = found.get(0);
        let audit = audit.about(OrganizationId(found.get(1)), project);
        let mut params: Vec<Param<'_>> = vec![&id];
        params.extend_from_slice(key);
        let before: Option<V> = transaction
            .query_opt(self.delete, &params)
            .await
            .context(self.action)?
            .map(|row| row.get(0));
        if before == value {
            // The transaction is rolled back, so the row remains.
            return Ok(before);
        }
        if let Some(value) = &value {
            params.push(value);
            transaction
                .execute(self.insert, &params)
                .await
                .context(self.action)?;
        }
        let change = (
            before.as_ref().map(&self.describe),
            value.as_ref().map(&self.describe),
        );
        audit
            .commit(transaction, self.action, 200, change, clock.now())
            .await?;
        Ok(before)
    }
}
