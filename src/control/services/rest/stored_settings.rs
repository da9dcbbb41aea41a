//! The settings of a Data API, as they are stored.

use gantry_base::ids::ProjectId;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    control::{service_settings::setting::SettingValues, services::folder::StartedKit},
    platform::{
        db::Db,
        error::{Context, Error},
    },
};

/// The settings of a Data API, in the form of the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestSettings {
    /// Exposed schemas, separated by commas. Empty: the Data API is off.
    pub db_schema: String,
    /// Largest number of rows in a response. 0: no limit.
    pub max_rows: u32,
    /// Further schemas of the search path, separated by commas.
    pub db_extra_search_path: String,
    /// Sessions with the database. `None`: chosen by Gantry.
    pub db_pool: Option<u32>,
}

impl Default for RestSettings {
    fn default() -> Self {
        Self {
            db_schema: "public".to_owned(),
            max_rows: 1000,
            db_extra_search_path: "public, extensions".to_owned(),
            db_pool: None,
        }
    }
}

impl RestSettings {
    /// Returns the first exposed schema, which requests without a profile use.
    pub(in crate::control::services) fn first_schema(&self) -> &str {
        names(&self.db_schema).next().unwrap_or_default()
    }

    /// Returns whether the Data API is off.
    pub fn is_off(&self) -> bool {
        self.first_schema().is_empty()
    }

    /// Returns every setting by name.
    pub(in crate::control) fn values(&self) -> SettingValues {
        let values = [
            ("db_schema", json!(self.db_schema)),
            ("max_rows", json!(self.max_rows)),
            ("db_extra_search_path", json!(self.db_extra_search_path)),
            ("db_pool", json!(self.db_pool)),
        ];
        values.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// Returns the names of a list, without empty ones.
pub(super) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// Settings with the number of their change. Zero: never changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::control) struct StoredSettings {
    pub(in crate::control) settings: RestSettings,
    pub(in crate::control) generation: i64,
}

impl StoredSettings {
    /// Returns the record of a process with these settings.
    pub(in crate::control::services) fn started(&self, kit_version: &str) -> StartedKit {
        let text = json!(self.settings.values()).to_string();
        StartedKit {
            version: kit_version.to_owned(),
            settings: self.generation,
            digest: hex::encode(Sha256::digest(text)),
            function: None,
            ports: Vec::new(),
        }
    }
}

const READ: &str = "select db_schema, max_rows, db_extra_search_path, db_pool, generation from rest_settings where project_id = $1";

/// Reads the settings of a project.
pub(in crate::control) async fn stored(
    db: &Db,
    project: ProjectId,
) -> Result<StoredSettings, Error> {
    let rows = db.query(READ, &[&project.0]).await;
    let rows = rows.context("reading the settings of a Data API")?;
    Ok(rows.first().map(read).unwrap_or_default())
}

fn read(row: &tokio_postgres::Row) -> StoredSettings {
    let number = |value: i32| u32::try_from(value).unwrap_or_default();
    StoredSettings {
        settings: RestSettings {
            db_schema: row.get(0),
            max_rows: number(row.get(1)),
            db_extra_search_path: row.get(2),
            db_pool: row.get::<_, Option<i32>>(3).map(number),
        },
        generation: row.get(4),
    }
}
