//! Statements.

use std::borrow::Cow;

use pg_query::protobuf::{AlterTableType, OnConflictAction};

use super::{SyntaxNode, conditions::UpdatedTable, functions};

/// Types of statements that add, read, or change nothing.
const HARMLESS: &[&str] = &[
    "ClosePortalStmt",
    "CommentStmt",
    "CompositeTypeStmt",
    "CreateDomainStmt",
    "CreateEnumStmt",
    "CreateExtensionStmt",
    "CreatePolicyStmt",
    "CreatePublicationStmt",
    "CreateRangeStmt",
    "CreateSchemaStmt",
    "CreateSeqStmt",
    "CreateStatsStmt",
    "CreateStmt",
    "CreateTableAsStmt",
    "DeallocateStmt",
    "DeclareCursorStmt",
    "ExplainStmt",
    "FetchStmt",
    "IndexStmt",
    "ListenStmt",
    "NotifyStmt",
    "PrepareStmt",
    "RawStmt",
    "SelectStmt",
    "TransactionStmt",
    "UnlistenStmt",
    "VacuumStmt",
    "VariableShowStmt",
];

/// Parts of `alter table` that add something, or make a rule stricter.
const HARMLESS_CHANGES: &[AlterTableType] = &[
    AlterTableType::AtAddColumn,
    AlterTableType::AtAddConstraint,
    AlterTableType::AtAddIdentity,
    AlterTableType::AtEnableRowSecurity,
    AlterTableType::AtForceRowSecurity,
    AlterTableType::AtReplicaIdentity,
    AlterTableType::AtSetNotNull,
    AlterTableType::AtSetStatistics,
    AlterTableType::AtValidateConstraint,
];

/// Settings of a session that change no meaning of SQL and no rights. `search_path`, `role` and
/// `standard_conforming_strings` are not among them.
const HARMLESS_SETTINGS: &[&str] = &[
    "application_name",
    "check_function_bodies",
    "client_min_messages",
    "datestyle",
    "default_table_access_method",
    "default_tablespace",
    "idle_in_transaction_session_timeout",
    "intervalstyle",
    "lock_timeout",
    "maintenance_work_mem",
    "row_security",
    "statement_timeout",
    "timezone",
    "transaction_timeout",
    "work_mem",
    "xmloption",
];

/// Schemas with tables from which servers and extensions run code, or that describe the database.
const SYSTEM_SCHEMAS: &[&str] = &[
    "cron",
    "information_schema",
    "net",
    "pg_catalog",
    "pgtle",
    "supabase_functions",
    "supabase_migrations",
];

/// Commands by the type of their statement, if the name does not follow from it.
const COMMANDS: &[(&str, &str)] = &[
    ("AlterTableStmt", "ALTER TABLE"),
    ("CreateTrigStmt", "CREATE TRIGGER"),
    ("CreateEventTrigStmt", "CREATE EVENT TRIGGER"),
    ("CreateForeignTableStmt", "CREATE FOREIGN TABLE"),
    ("CreatedbStmt", "CREATE DATABASE"),
    ("DefineStmt", "CREATE"),
    ("DropdbStmt", "DROP DATABASE"),
    ("GrantStmt", "REVOKE"),
    ("RuleStmt", "CREATE RULE"),
    ("VariableSetStmt", "SET"),
    ("ViewStmt", "CREATE OR REPLACE VIEW"),
];

/// Returns the effect of a statement that is not known to be harmless.
pub(super) fn effect_of_statement(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    let is_harmless = match statement.kind {
        "DeleteStmt" | "UpdateStmt" => return effect_of_rows(statement),
        "InsertStmt" => return effect_of_insert(statement),
        "AlterTableStmt" => return effect_of_alter_table(statement),
        "CreateFunctionStmt" => return effect_of_create_function(statement),
        "AlterEnumStmt" => statement.text("old_val").is_empty(),
        "GrantStmt" => statement.flag("is_grant"),
        "VariableSetStmt" => HARMLESS_SETTINGS.contains(&statement.text("name")),
        "ViewStmt" => !statement.flag("replace"),
        kind => HARMLESS.contains(&kind),
    };
    (!is_harmless).then(|| format!("runs {}", command(statement.kind)).into())
}

/// Returns the name of the command of a statement.
fn command(kind: &str) -> String {
    let listed = COMMANDS.iter().find(|(name, _)| *name == kind);
    if let Some((_, command)) = listed {
        return (*command).to_owned();
    }
    let name = kind.strip_suffix("Stmt").unwrap_or(kind);
    let mut command = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !command.is_empty() {
            command.push(' ');
        }
        command.push(letter.to_ascii_uppercase());
    }
    command
}

fn effect_of_rows(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    let target = UpdatedTable::of(statement);
    let condition = statement.child("where_clause");
    if condition.is_some_and(|condition| target.limits_rows(condition)) {
        return effect_on_system_table(statement);
    }
    let command = command(statement.kind);
    Some(format!("runs {command} without a condition of the form \"column = value\"").into())
}

/// An update of rows that exist already is limited by a list of new rows, and not by a query.
fn effect_of_insert(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    let conflict = statement.fields.get("on_conflict_clause");
    let action = conflict.and_then(|conflict| conflict.get("action")?.as_i64());
    let updates = action == Some(OnConflictAction::OnconflictUpdate as i64);
    let rows = statement.child("select_stmt");
    let has_list = rows.is_some_and(|rows| rows.children("values_lists").next().is_some());
    if updates && !has_list {
        return Some("runs INSERT … ON CONFLICT DO UPDATE with the rows of a query".into());
    }
    effect_on_system_table(statement)
}

fn effect_on_system_table(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    let table = statement.fields.get("relation");
    let schema = table.and_then(|table| table.get("schemaname")?.as_str());
    let schema = schema.filter(|schema| SYSTEM_SCHEMAS.contains(schema))?;
    Some(format!("changes a table of the schema {schema}").into())
}

fn effect_of_alter_table(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    let is_harmless = |change: SyntaxNode<'_>| {
        let subtype = change.number("subtype");
        let adds_default = subtype == AlterTableType::AtColumnDefault as i64 && change.has("def");
        adds_default || HARMLESS_CHANGES.iter().any(|kind| *kind as i64 == subtype)
    };
    let mut changes = statement.children("cmds");
    let change = changes.find(|change| !is_harmless(*change))?;
    let kind = i32::try_from(change.number("subtype")).ok();
    let kind = kind.and_then(|kind| AlterTableType::try_from(kind).ok());
    let kind = kind.map_or("", |kind| kind.as_str_name());
    let words = command(kind.strip_prefix("AT_").unwrap_or(kind));
    Some(format!("runs ALTER TABLE … {words}").into())
}

/// A function may be called by name of a trigger or by clients, so one that exists must not change.
/// One with the name of a harmless function could be called in its place.
fn effect_of_create_function(statement: SyntaxNode<'_>) -> Option<Cow<'static, str>> {
    if statement.flag("replace") {
        return Some("runs CREATE OR REPLACE FUNCTION".into());
    }
    let name = statement.name_parts("funcname");
    let name = name.last().copied().unwrap_or_default();
    functions::is_name_of_harmless(name)
        .then(|| format!("creates a function with the name of another one, {name}").into())
}
