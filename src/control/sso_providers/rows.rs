//! The rows of SSO providers in schema `auth` of a project's database.

use std::time::Duration;

use gantry_node::{clusters::ROWS_LOGIN, error::ClusterError};
use serde_json::json;
use tokio::time::timeout;
use tokio_postgres::{
    Client, Row, Transaction,
    error::SqlState,
    types::{Json, ToSql},
};
use uuid::Uuid;

use super::{PROVIDERS_MAX, SsoProvider, SsoProviderUpdate, UNKNOWN, metadata::SamlMetadata};
use crate::{
    control::{context::ControlContext, projects},
    platform::{
        access::Project,
        audit::Recorder,
        error::{Context, Error},
    },
};

/// Timeout of the statements of one operation.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Configures the transaction. Its login is no superuser, and no trigger or policy of the project's
/// owner runs in its sessions.
const PREPARE: &str = "set local search_path to pg_catalog; set local lock_timeout to '5s'; \
    set local statement_timeout to '10s'";
/// Database with the tables.
const DATABASE: &str = "postgres";
/// Reads the providers as one JSON array, oldest first.
const READ: &str = "select coalesce(json_agg(json_build_object(\
        'id', p.id, 'disabled', p.disabled, \
        'created_at', coalesce(to_json(p.created_at)#>>'{}', ''), \
        'updated_at', coalesce(to_json(p.updated_at)#>>'{}', ''), \
        'saml', json_build_object('id', s.id, 'entity_id', s.entity_id, \
            'metadata_url', s.metadata_url, 'metadata_xml', s.metadata_xml, \
            'attribute_mapping', coalesce(s.attribute_mapping, '{}'), \
            'name_id_format', s.name_id_format), \
        'domains', (select coalesce(json_agg(json_build_object('id', d.id, 'domain', d.domain, \
            'created_at', coalesce(to_json(d.created_at)#>>'{}', ''), \
            'updated_at', coalesce(to_json(d.updated_at)#>>'{}', '')) \
            order by d.updated_at, d.domain), '[]') \
            from auth.sso_domains d where d.sso_provider_id = p.id)) \
        order by p.created_at, p.id), '[]')::text \
    from (select * from auth.sso_providers order by created_at, id limit $1) p \
    join auth.saml_providers s on s.sso_provider_id = p.id";

/// Status and states before and after for the audit log.
type Recorded = (i16, (Option<serde_json::Value>, Option<serde_json::Value>));

/// Lists the providers.
pub(super) async fn list(
    context: &ControlContext,
    project: &Project,
) -> Result<Vec<SsoProvider>, Error> {
    let work = async {
        let mut client = session(context, project).await?;
        let transaction = begin(&mut client).await?;
        let bound = i64::try_from(PROVIDERS_MAX).unwrap_or(i64::MAX);
        let rows = transaction
            .query(READ, &[&bound])
            .await
            .map_err(|error| failure(&error))?;
        read(rows.first())
    };
    timeout(TIMEOUT, work)
        .await
        .unwrap_or(Err(Error::TimedOut(TIMEOUT)))
}

/// Parses the answer of [`READ`]. The server is the customer's: a value of another type is an
/// error.
fn read(row: Option<&Row>) -> Result<Vec<SsoProvider>, Error> {
    let doing = "reading SSO providers";
    let row = row.ok_or("no row").context(doing)?;
    let text: &str = row.try_get(0).context(doing)?;
    serde_json::from_str(text).context(doing)
}

/// Runs changes in one transaction. The audit entry is committed after them: a crash between the
/// two leaves the entry of the request's start.
pub(super) async fn write(
    context: &ControlContext,
    project: &Project,
    audit: &Recorder,
    (status, change): Recorded,
    changes: impl AsyncFnOnce(&ProviderRows<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let doing = "changing SSO providers";
    let now = context.clock.now();
    audit.announce(&context.db, now).await?;
    let work = async {
        let mut client = session(context, project).await?;
        let transaction = begin(&mut client).await?;
        let rows = ProviderRows {
            transaction,
            context,
        };
        changes(&rows).await?;
        rows.transaction
            .commit()
            .await
            .map_err(|error| failure(&error))
    };
    timeout(TIMEOUT, work)
        .await
        .unwrap_or(Err(Error::TimedOut(TIMEOUT)))?;
    let mut control = context.db.client().await?;
    let transaction = control.transaction().await.context(doing)?;
    audit.commit(transaction, doing, status, change, now).await
}

async fn session(context: &ControlContext, project: &Project) -> Result<Client, Error> {
    projects::target(context, project).await?;
    let session = context
        .driver
        .session_as(&project.reference, ROWS_LOGIN, DATABASE);
    session.await.map_err(|error| match error {
        ClusterError::Missing(_)
        | ClusterError::Unreached { .. }
        | ClusterError::ConnectTimeout(_)
        | ClusterError::Sql { .. } => Error::DatabaseUnreachable,
        other => Error::internal("reaching a project's database", other),
    })
}

async fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    let transaction = client
        .transaction()
        .await
        .map_err(|error| failure(&error))?;
    transaction
        .batch_execute(PREPARE)
        .await
        .map_err(|error| failure(&error))?;
    Ok(transaction)
}

/// The tables of SSO providers within a transaction.
pub(super) struct ProviderRows<'a> {
    transaction: Transaction<'a>,
    context: &'a ControlContext,
}

impl ProviderRows<'_> {
    async fn execute(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        let done = self.transaction.execute(sql, parameters).await;
        done.map_err(|error| failure(&error))
    }

    /// Inserts a provider.
    pub(super) async fn insert(
        &self,
        id: Uuid,
        metadata: &SamlMetadata,
        new: &SsoProviderUpdate,
    ) -> Result<(), Error> {
        // Serializes changes of the project, so that the bound holds.
        let sql = "lock table auth.sso_providers in share row exclusive mode";
        self.execute(sql, &[]).await?;
        let rows = self
            .transaction
            .query("select count(*) from auth.sso_providers", &[])
            .await
            .map_err(|error| failure(&error))?;
        let count = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
        if count.is_none_or(|count| usize::try_from(count).is_ok_and(|it| it >= PROVIDERS_MAX)) {
            return Err(Error::Rejected(
                format!("A project can have {PROVIDERS_MAX} SSO providers").into(),
            ));
        }
        let now = self.context.clock.now();
        let sql = "insert into auth.sso_providers (id, created_at, updated_at) values ($1, $2, $2)";
        self.execute(sql, &[&id, &now]).await?;
        let sql = "insert into auth.saml_providers (id, sso_provider_id, entity_id, metadata_xml, \
                       metadata_url, attribute_mapping, name_id_format, created_at, updated_at) \
                   values ($1, $2, $3, $4, $5, $6, $7, $8, $8)";
        let mapping = Json(new.attribute_mapping.clone().unwrap_or_default());
        let format = json!(new.name_id_format);
        self.execute(
            sql,
            &[
                &self.context.entropy.uuid(),
                &id,
                &metadata.entity_id,
                &metadata.xml,
                &metadata.url,
                &mapping,
                &format.as_str(),
                &now,
            ],
        )
        .await?;
        self.set_domains(id, new.domains.as_deref().unwrap_or_default())
            .await
    }

    /// Changes a provider.
    pub(super) async fn update(
        &self,
        id: Uuid,
        metadata: Option<&SamlMetadata>,
        change: &SsoProviderUpdate,
    ) -> Result<(), Error> {
        let now = self.context.clock.now();
        let sql = "update auth.sso_providers set updated_at = $2 where id = $1";
        if self.execute(sql, &[&id, &now]).await? == 0 {
            return Err(Error::Missing(UNKNOWN));
        }
        if let Some(metadata) = metadata {
            let sql = "update auth.saml_providers set metadata_xml = $2, metadata_url = $3, \
                       updated_at = $4 where sso_provider_id = $1";
            self.execute(sql, &[&id, &metadata.xml, &metadata.url, &now])
                .await?;
        }
        if let Some(mapping) = &change.attribute_mapping {
            let sql = "update auth.saml_providers set attribute_mapping = $2, updated_at = $3 \
                       where sso_provider_id = $1";
            self.execute(sql, &[&id, &Json(mapping), &now]).await?;
        }
        if let Some(format) = change.name_id_format {
            let format = json!(format);
            let sql = "update auth.saml_providers set name_id_format = $2, updated_at = $3 \
                       where sso_provider_id = $1";
            self.execute(sql, &[&id, &format.as_str(), &now]).await?;
        }
        match &change.domains {
            Some(domains) => self.set_domains(id, domains).await,
            None => Ok(()),
        }
    }

    /// Deletes a provider with its rows in other tables: foreign keys do not act without triggers.
    pub(super) async fn delete(&self, id: Uuid) -> Result<(), Error> {
        for sql in [
            "delete from auth.saml_relay_states where sso_provider_id = $1",
            "delete from auth.sso_domains where sso_provider_id = $1",
            "delete from auth.saml_providers where sso_provider_id = $1",
        ] {
            self.execute(sql, &[&id]).await?;
        }
        let sql = "delete from auth.sso_providers where id = $1";
        if self.execute(sql, &[&id]).await? == 0 {
            return Err(Error::Missing(UNKNOWN));
        }
        Ok(())
    }

    /// Replaces the domains of a provider. Those that stay keep their id. Their times of change are
    /// a microsecond apart: domains are listed in the order of the request.
    async fn set_domains(&self, provider: Uuid, domains: &[String]) -> Result<(), Error> {
        let mut names: Vec<String> = Vec::new();
        for name in domains.iter().map(|name| name.to_ascii_lowercase()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let sql = "delete from auth.sso_domains where sso_provider_id = $1 \
                   and not lower(domain) = any ($2)";
        self.execute(sql, &[&provider, &names]).await?;
        let now = self.context.clock.now();
        let sql = "insert into auth.sso_domains (id, sso_provider_id, domain, created_at, updated_at) \
                   select $1, $2, $3, $4, $4 where not exists \
                   (select from auth.sso_domains where sso_provider_id = $2 and lower(domain) = $3)";
        for name in &names {
            let id = self.context.entropy.uuid();
            self.execute(sql, &[&id, &provider, name, &now]).await?;
        }
        let sql = "update auth.sso_domains d set updated_at = $3::timestamptz \
                   + (n.place - 1) * interval '1 microsecond' \
                   from unnest($2::text[]) with ordinality n (name, place) \
                   where d.sso_provider_id = $1 and lower(d.domain) = n.name";
        self.execute(sql, &[&provider, &names, &now]).await?;
        Ok(())
    }
}

/// Returns the error of a failed statement.
fn failure(error: &tokio_postgres::Error) -> Error {
    let Some(database) = error.as_db_error() else {
        return Error::DatabaseUnreachable;
    };
    match (database.code(), database.constraint()) {
        (&SqlState::UNIQUE_VIOLATION, Some("sso_domains_domain_idx")) => {
            Error::Conflict("Another SSO provider has one of the domains".into())
        }
        (&SqlState::UNIQUE_VIOLATION, _) => {
            Error::Conflict("An SSO provider with this entity id exists already".into())
        }
        _ => Error::Rejected(
            format!(
                "The project's database refused the change: {}",
                database.message()
            )
            .into(),
        ),
    }
}
