//! Catalog of a database, from which types and documents are generated.

mod views;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    control::database_session::{
        DATABASE, READER,
        session::{ConnectTarget, DatabaseSession, SessionLimits},
    },
    platform::error::{Context as _, Error},
};

pub use views::{CatalogView, Relationship};

/// Reads the catalog in one statement, so that it is consistent.
const READ: &str = include_str!("read.sql");

/// Object id.
pub type Oid = u32;

/// Objects of some schemas and all types. Lists are ordered by name in byte order.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Catalog {
    /// Existing schemas among the requested ones.
    pub schemas: Vec<String>,
    /// Tables and views.
    pub relations: Vec<Relation>,
    /// Foreign keys, also of other schemas.
    pub foreign_keys: Vec<ForeignKey>,
    /// Views, also of other schemas, with the origins of their columns.
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
    /// Object id.
    pub id: Oid,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: RelationKind,
    /// Whether rows can be inserted.
    pub insertable: bool,
    /// Whether rows can be updated.
    pub updatable: bool,
    /// Comment.
    pub comment: Option<String>,
    /// Columns, ordered by name.
    pub columns: Vec<RelationColumn>,
    /// Columns of the primary key, in its order.
    pub primary_key: Vec<String>,
}

/// Kind of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    /// A table, including partitioned and foreign tables.
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
    /// Name.
    pub name: String,
    /// Type.
    pub kind: Oid,
    /// Type as printed by PostgreSQL.
    pub format: String,
    /// Whether it is nullable.
    pub nullable: bool,
    /// Whether it has a default value.
    pub has_default: bool,
    /// Whether the column is `generated always`, so that clients cannot set a value.
    pub always_generated: bool,
    /// Comment.
    pub comment: Option<String>,
}

/// A foreign key.
#[derive(Debug, Clone, Deserialize)]
pub struct ForeignKey {
    /// Name.
    pub name: String,
    /// Referencing table.
    pub table: Oid,
    /// Schema of the referencing table.
    pub schema: String,
    /// Name of the referencing table.
    table_name: String,
    /// Referencing columns.
    pub columns: Vec<String>,
    /// Numbers of the referencing columns.
    column_numbers: Vec<i16>,
    /// Referenced table.
    referenced: Oid,
    /// Schema of the referenced table.
    pub referenced_schema: String,
    /// Name of the referenced table.
    pub referenced_table: String,
    /// Referenced columns.
    pub referenced_columns: Vec<String>,
    /// Numbers of the referenced columns.
    referenced_numbers: Vec<i16>,
    /// Whether the referencing columns are unique.
    pub one_to_one: bool,
}

/// A function, except triggers, aggregates and procedures.
#[derive(Debug, Clone, Deserialize)]
pub struct Function {
    /// Schema.
    pub schema: String,
    /// Name. Overloads share it.
    pub name: String,
    /// Arguments.
    pub arguments: Vec<FunctionArgument>,
    /// Columns of the result, if they are declared in the signature.
    pub columns: Vec<FunctionArgument>,
    /// Result type.
    pub returns: Oid,
    /// Whether it returns a set.
    pub set: bool,
    /// Comment.
    pub comment: Option<String>,
}

/// An argument of a function, or a column of its result.
#[derive(Debug, Clone, Deserialize)]
pub struct FunctionArgument {
    /// Name. May be empty.
    pub name: String,
    /// Type.
    pub kind: Oid,
    /// Whether it is optional.
    pub has_default: bool,
}

/// A type.
#[derive(Debug, Clone, Deserialize)]
pub struct PgType {
    id: Oid,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Element type of an array.
    pub element: Option<Oid>,
    /// Base type of a domain.
    pub base: Option<Oid>,
    /// Labels of an enum, in their order.
    pub labels: Option<Vec<String>>,
    /// Relation of a row type.
    pub relation: Option<Oid>,
}

fn by_id<'de, D: serde::Deserializer<'de>>(types: D) -> Result<BTreeMap<Oid, PgType>, D::Error> {
    let types = Vec::<PgType>::deserialize(types)?;
    Ok(types.into_iter().map(|kind| (kind.id, kind)).collect())
}

impl Catalog {
    /// Reads the objects of `schemas`.
    ///
    /// Errors: [`Error::DatabaseUnreachable`]; [`Error::Invalid`] if the catalog exceeds the
    /// limits.
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
        let answer = session.query(READ, &[Some(&schemas)]).await?.rows;
        let answer = answer.values().next();
        serde_json::from_str(&answer.unwrap_or_default()).context("reading a catalog")
    }

    /// Returns the relations of a schema with one of `kinds`.
    pub fn relations_of<'a>(
        &'a self,
        schema: &'a str,
        kinds: &'a [RelationKind],
    ) -> impl Iterator<Item = &'a Relation> {
        self.relations
            .iter()
            .filter(move |relation| relation.schema == schema && kinds.contains(&relation.kind))
    }

    /// Returns a relation of one of the schemas by object id.
    pub fn relation(&self, id: Oid) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.id == id)
    }
}
