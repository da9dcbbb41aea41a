//! A session that executes declared statements only.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::{Client, Row, types::ToSql};

/// The error of a statement.
pub type SqlError = tokio_postgres::Error;

/// Parameters of a statement.
pub type SqlParams<'a> = [&'a (dyn ToSql + Sync)];

/// A statement that a superuser session may execute, in a tenant's database.
#[derive(Debug)]
pub struct SuperuserStatement {
    /// The statement, or several without parameters. `%I` and `%L` are replaced by
    /// [`SqlArgument`]s if there are any.
    pub sql: &'static str,
    /// Why it executes no code of a tenant.
    pub reason: &'static str,
}

/// A value in the text of a statement, for commands that accept no parameters.
#[derive(Debug, Clone, Copy)]
pub enum SqlArgument<'a> {
    /// An identifier, in place of `%I`.
    Identifier(&'a str),
    /// A text, in place of `%L`.
    Literal(&'a str),
    /// A name that the server has quoted with `format('%I')`, in place of `%S`.
    Quoted(&'a str),
    /// A keyword or an attribute in the source of Gantry, in place of `%S`.
    Keyword(&'static str),
}

/// A statement with its name.
#[cfg(test)]
pub(super) type NamedStatement = (&'static str, &'static SuperuserStatement);

/// Declares statements: documentation, name, text and reason. `ALL` has all of them.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident: $sql:expr, $reason:literal;)*) => {
        $($(#[$doc])* pub static $name: $crate::clusters::superuser::session::SuperuserStatement =
            $crate::clusters::superuser::session::SuperuserStatement {
                sql: $sql,
                reason: $reason,
            };)*
        /// The statements of this file, by name.
        #[cfg(test)]
        pub(super) static ALL: &[$crate::clusters::superuser::session::NamedStatement] =
            &[$((stringify!($name), &$name)),*];
    };
}
pub(super) use statements;

/// A session that is logged in as the superuser. The connection ends when it is dropped.
#[derive(Debug)]
pub struct SuperuserSession(pub(super) Client);

impl SuperuserSession {
    /// Returns all rows.
    pub async fn query(
        &self,
        statement: &'static SuperuserStatement,
        parameters: &SqlParams<'_>,
    ) -> Result<Vec<Row>, SqlError> {
        self.0.query(statement.sql, parameters).await
    }

    /// Returns the only row.
    pub async fn query_one(
        &self,
        statement: &'static SuperuserStatement,
        parameters: &SqlParams<'_>,
    ) -> Result<Row, SqlError> {
        self.0.query_one(statement.sql, parameters).await
    }

    /// Returns the row, if there is one.
    pub async fn query_opt(
        &self,
        statement: &'static SuperuserStatement,
        parameters: &SqlParams<'_>,
    ) -> Result<Option<Row>, SqlError> {
        self.0.query_opt(statement.sql, parameters).await
    }

    /// Executes a statement, and returns the number of changed rows.
    pub async fn execute(
        &self,
        statement: &'static SuperuserStatement,
        parameters: &SqlParams<'_>,
    ) -> Result<u64, SqlError> {
        self.0.execute(statement.sql, parameters).await
    }

    /// Executes statements without parameters, in one transaction.
    pub async fn run(&self, statement: &'static SuperuserStatement) -> Result<(), SqlError> {
        self.0.batch_execute(statement.sql).await
    }

    /// Executes statements with values in their text.
    pub async fn run_with(
        &self,
        statement: &'static SuperuserStatement,
        arguments: &[SqlArgument<'_>],
    ) -> Result<(), SqlError> {
        self.0
            .batch_execute(&with_arguments(statement.sql, arguments))
            .await
    }

    /// Executes a statement with values in its text, and returns the number of changed rows.
    pub async fn execute_with(
        &self,
        statement: &'static SuperuserStatement,
        arguments: &[SqlArgument<'_>],
    ) -> Result<u64, SqlError> {
        let sql = with_arguments(statement.sql, arguments);
        self.0.execute(&sql, &[]).await
    }

    /// Returns all rows of a statement with values in its text.
    pub async fn query_with(
        &self,
        statement: &'static SuperuserStatement,
        arguments: &[SqlArgument<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let sql = with_arguments(statement.sql, arguments);
        self.0.query(&sql, &[]).await
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> Result<(), SqlError> {
        self.0.batch_execute("begin").await
    }

    /// Commits the transaction.
    pub async fn commit(&self) -> Result<(), SqlError> {
        self.0.batch_execute("commit").await
    }

    /// Rolls the transaction back.
    pub async fn roll_back(&self) -> Result<(), SqlError> {
        self.0.batch_execute("rollback").await
    }

    /// The connection, for the scripts of the platform in [`platform`](crate::clusters::platform).
    pub(in crate::clusters) fn scripts(&self) -> &Client {
        &self.0
    }
}

/// Replaces the placeholders of a statement, each by the next argument.
pub(super) fn with_arguments(sql: &str, arguments: &[SqlArgument<'_>]) -> String {
    let mut text = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    for argument in arguments {
        let (placeholder, value) = match argument {
            SqlArgument::Identifier(name) => ("%I", escape_identifier(name)),
            SqlArgument::Literal(value) => ("%L", escape_literal(value)),
            SqlArgument::Quoted(name) => ("%S", (*name).to_owned()),
            SqlArgument::Keyword(word) => ("%S", (*word).to_owned()),
        };
        let Some((before, after)) = rest.split_once(placeholder) else {
            debug_assert!(false, "{placeholder} is missing in {sql}");
            break;
        };
        text.extend([before, &value]);
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::{
        super::{copies, facts, privileges, roles, upgrades},
        *,
    };

    #[test]
    fn arguments_are_quoted_in_their_order() {
        let text = with_arguments(
            "alter role %I password %L; revoke %S from %I",
            &[
                SqlArgument::Identifier("a\"b"),
                SqlArgument::Literal("it's %I"),
                SqlArgument::Quoted("\"X\".y"),
                SqlArgument::Identifier("c"),
            ],
        );
        assert_eq!(
            text,
            "alter role \"a\"\"b\" password 'it''s %I'; revoke \"X\".y from \"c\""
        );
    }

    /// Words after `from`, `join`, `into` and `update` that are no relations of a tenant: names
    /// within the statement, roles, and functions of `pg_catalog`.
    const KNOWN: &[&str] = &[
        "",
        "a",
        "a.options",
        "r",
        "roles",
        "found",
        "unnest",
        "clock_timestamp",
        "select",
        "values",
        "only",
        "%i",
        "%s",
        "postgres",
        "setting",
        "foreign",
        "public",
        "on",
        "role",
    ];

    /// Returns the words of a statement after which PostgreSQL expects a relation, lowercase.
    fn relations(sql: &str) -> Vec<String> {
        let words: Vec<String> = sql
            .split(|c: char| c.is_whitespace() || "(),;".contains(c))
            .map(|word| word.trim_matches('\'').to_lowercase())
            .filter(|word| !word.is_empty())
            .collect();
        let keywords = ["from", "join", "into", "update"];
        words
            .windows(2)
            .filter(|pair| keywords.contains(&&*pair[0]))
            .map(|pair| pair[1].trim_start_matches("pg_catalog.").to_owned())
            .collect()
    }

    /// Relations, functions and types of tenants can have the names of the platform's.
    #[test]
    fn statements_name_only_objects_of_the_system_catalogs() {
        let lists = [
            copies::ALL,
            facts::ALL,
            privileges::ALL,
            roles::ALL,
            upgrades::ALL,
        ];
        let mut count = 0;
        for (name, statement) in lists.into_iter().flatten() {
            count += 1;
            assert!(statement.reason.len() > 10, "{name} has no reason");
            for relation in relations(statement.sql) {
                let is_catalog = relation.starts_with("pg_") || KNOWN.contains(&&*relation);
                assert!(
                    is_catalog,
                    "{name} reads {relation}, which is not a catalog"
                );
            }
        }
        assert!(count > 40, "{count} statements");
    }
}
