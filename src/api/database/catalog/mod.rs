//! What a database contains, read once into values: what types and documents are generated from.

mod views;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    base::error::{Context as _, Error},
    data_plane::database_session::{
        DATABASE, READER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
};

pub use views::{CatalogView, Relationship};

/// Reads the catalog. One statement, so that all of it is of one moment.
const READ: &str = include_str!("read.sql");

/// An object's identifier in its database.
pub type Oid = u32;

/// Everything of some schemas, and every type there is. Lists are sorted by name, byte by byte.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Catalog {
    /// Those of the schemas asked for that exist.
    pub schemas: Vec<String>,
    /// Tables and views.
    pub relations: Vec<Relation>,
    /// Foreign keys, also of other schemas.
    pub foreign_keys: Vec<ForeignKey>,
    /// Views, also of other schemas, and what they show.
    pub views: Vec<CatalogView>,
    /// Functions.
    pub functions: Vec<Function>,
    /// Types, also of other schemas, by identifier.
    #[serde(deserialize_with = "by_id")]
    pub types: BTreeMap<Oid, PgType>,
}

/// A table or view.
#[derive(Debug, Clone, Deserialize)]
pub struct Relation {
    /// Its identifier.
    pub id: Oid,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: RelationKind,
    /// Whether rows can be inserted.
    pub insertable: bool,
    /// Whether rows can be updated.
    pub updatable: bool,
    /// What somebody wrote about it.
    pub comment: Option<String>,
    /// Its columns, by name.
    pub columns: Vec<RelationColumn>,
    /// Columns of its primary key, in the key's order.
    pub primary_key: Vec<String>,
}

/// What a relation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    /// A table: also a partitioned or a foreign one.
    Table,
    /// A view.
    View,
    /// A materialized view.
    Materialized,
    /// A composite type.
    Composite,
}

/// A column.
#[derive(Debug, Clone, Deserialize)]
pub struct RelationColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: Oid,
    /// The type as PostgreSQL writes it.
    pub format: String,
    /// Whether it may be null.
    pub nullable: bool,
    /// Whether it gets a value by itself.
    pub has_default: bool,
    /// Whether its value cannot be given: `generated always`.
    pub always_generated: bool,
    /// What somebody wrote about it.
    pub comment: Option<String>,
}

/// A foreign key.
#[derive(Debug, Clone, Deserialize)]
pub struct ForeignKey {
    /// Its name.
    pub name: String,
    /// The table that refers.
    pub table: Oid,
    /// Its schema.
    pub schema: String,
    /// Its name.
    table_name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// Their numbers.
    column_numbers: Vec<i16>,
    /// The table referred to.
    referenced: Oid,
    /// Its schema.
    pub referenced_schema: String,
    /// Its name.
    pub referenced_table: String,
    /// Its columns.
    pub referenced_columns: Vec<String>,
    /// Their numbers.
    referenced_numbers: Vec<i16>,
    /// Whether the columns that refer are unique together.
    pub one_to_one: bool,
}

/// A function; no trigger, aggregate or procedure.
#[derive(Debug, Clone, Deserialize)]
pub struct Function {
    /// Its schema.
    pub schema: String,
    /// Its name, which others may share.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<FunctionArgument>,
    /// Columns it answers, if it has more than a type for that.
    pub columns: Vec<FunctionArgument>,
    /// What it answers.
    pub returns: Oid,
    /// Whether it answers a set.
    pub set: bool,
    /// What somebody wrote about it.
    pub comment: Option<String>,
}

/// An argument of a function, or a column of its answer.
#[derive(Debug, Clone, Deserialize)]
pub struct FunctionArgument {
    /// Its name; may be empty.
    pub name: String,
    /// Its type.
    pub kind: Oid,
    /// Whether it can be left out.
    pub has_default: bool,
}

/// A type.
#[derive(Debug, Clone, Deserialize)]
pub struct PgType {
    id: Oid,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Of an array, the type of its elements.
    pub element: Option<Oid>,
    /// Of a domain, the type under it.
    pub base: Option<Oid>,
    /// Of an enum, its values in their order.
    pub labels: Option<Vec<String>>,
    /// Of the type of rows, whose they are.
    pub relation: Option<Oid>,
}

fn by_id<'de, D: serde::Deserializer<'de>>(types: D) -> Result<BTreeMap<Oid, PgType>, D::Error> {
    let types = Vec::<PgType>::deserialize(types)?;
    Ok(types.into_iter().map(|kind| (kind.id, kind)).collect())
}

impl Catalog {
    /// Reads what `schemas` contain.
    ///
    /// Errors: [`Error::DatabaseUnreachable`]; [`Error::Invalid`] if it is over the limits.
    pub async fn read(
        target: &ConnectTarget,
        schemas: &[String],
        limits: SessionLimits,
    ) -> Result<Self, Error> {
        let settings = [
            ("default_transaction_read_only", "on"),
            ("search_path", "pg_catalog"),
        ];
        let mut session =
            DatabaseSession::open(target, READER, DATABASE, &settings, limits).await?;
        let schemas = serde_json::to_string(schemas).context("writing a list of schemas")?;
        let answer = session
            .query(READ, &[Some(&schemas)])
            .await?
            .rows
            .texts()
            .into_iter()
            .flatten()
            .flatten()
            .next();
        serde_json::from_str(&answer.unwrap_or_default()).context("reading a catalog")
    }

    /// The relations of a schema that are `kind`.
    pub fn relations_of<'a>(
        &'a self,
        schema: &'a str,
        kinds: &'a [RelationKind],
    ) -> impl Iterator<Item = &'a Relation> {
        self.relations
            .iter()
            .filter(move |relation| relation.schema == schema && kinds.contains(&relation.kind))
    }

    /// A relation by its identifier, if it is in one of the schemas.
    pub fn relation(&self, id: Oid) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.id == id)
    }
}
