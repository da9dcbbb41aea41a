//! Rows of the platform's tables: users of Auth, buckets and objects of Storage.
//!
//! The tables of the two sides can be of different versions, so columns that both have are copied.
//! Existing rows stay as they are.

use std::collections::BTreeSet;

use gantry_node::clusters::{ROWS_LOGIN, ServerSocket};
use postgres_protocol::escape::escape_identifier;

use super::{
    ImportReport, Result, names,
    programs::{ImportPrograms, pipe},
    session, sql_error,
};
use crate::control::database_session::{
    session::ConnectTarget,
    session_socket::{SessionLogin, SessionSocket},
};

/// A table to copy.
struct CopiedTable {
    name: &'static str,
    /// Column that references another table, and that table.
    parent: Option<(&'static str, &'static str)>,
}

const fn table(name: &'static str, parent: Option<(&'static str, &'static str)>) -> CopiedTable {
    CopiedTable { name, parent }
}

/// The tables in the order of their references. Sessions and tokens are left out: they were signed
/// with other keys.
const TABLES: [CopiedTable; 11] = [
    table("auth.users", None),
    table("auth.identities", Some(("user_id", "auth.users"))),
    table("auth.mfa_factors", Some(("user_id", "auth.users"))),
    table("auth.sso_providers", None),
    table(
        "auth.sso_domains",
        Some(("sso_provider_id", "auth.sso_providers")),
    ),
    table(
        "auth.saml_providers",
        Some(("sso_provider_id", "auth.sso_providers")),
    ),
    table("auth.oauth_clients", None),
    table("auth.custom_oauth_providers", None),
    table("auth.webauthn_credentials", Some(("user_id", "auth.users"))),
    table("storage.buckets", None),
    table("storage.objects", Some(("bucket_id", "storage.buckets"))),
];

impl CopiedTable {
    /// Returns the condition on a row: its parent exists. Triggers do not fire in the session, not
    /// those of foreign keys either.
    fn condition(&self) -> String {
        self.parent.map_or_else(String::new, |(column, parent)| {
            format!(
                "where {column} is null or exists (
                     select from {parent} p where p.id = {column})"
            )
        })
    }

    fn schema(&self) -> &'static str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// Copies the rows of all tables that both sides have.
pub(super) async fn copy(
    programs: &ImportPrograms,
    socket: &ServerSocket,
    report: &mut ImportReport,
) -> Result<()> {
    let admin = session(socket, ROWS_LOGIN).await?;
    for (index, table) in TABLES.iter().enumerate() {
        let name = table.name;
        let sql = format!(
            "select attname::text from pg_attribute where attrelid = to_regclass('{name}')
             and attnum > 0 and not attisdropped and attgenerated = ''"
        );
        let wanted = names(&admin, &sql).await?;
        let there: BTreeSet<String> = programs
            .query_source(&sql)
            .await?
            .lines()
            .map(|line| line.trim().to_owned())
            .collect();
        let columns: Vec<String> = wanted
            .intersection(&there)
            .map(|column| escape_identifier(column))
            .collect();
        if columns.is_empty() {
            continue;
        }
        let columns = columns.join(", ");
        // One socket per table, with numbers after that of the owner.
        let port = 2 + u16::try_from(index).unwrap_or(0);
        let _login = SessionSocket::listen(
            &programs.folder().join(format!(".s.PGSQL.{port}")),
            programs.account(),
            ConnectTarget::new(socket.clone()),
            SessionLogin::unbounded(ROWS_LOGIN, "gantry import"),
        )?;
        let count = format!("select count(*) from {name}");
        let before = one(&admin, &count).await?;
        let mut from = programs.of_source("psql");
        from.args([
            "--no-psqlrc",
            "--quiet",
            "--set=ON_ERROR_STOP=1",
            "--command",
        ])
        .arg(format!("copy (select {columns} from {name}) to stdout"));
        let mut to = programs.of_target("psql", port);
        // The data is the input of `copy`, so nothing in it is a command of psql.
        to.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]);
        // The login has no privilege for temporary tables. No other session sees this one.
        to.arg("--single-transaction");
        let staging = format!("{}.gantry_import", escape_identifier(table.schema()));
        for command in [
            "create table STAGING as select * from NAME where false",
            "copy STAGING (COLUMNS) from stdin",
            "insert into NAME (COLUMNS) select COLUMNS from STAGING CONDITION on conflict do nothing",
            "drop table STAGING",
        ] {
            let command = command.replace("STAGING", &staging);
            let command = command.replace("NAME", name).replace("COLUMNS", &columns);
            let command = command.replace("CONDITION", &table.condition());
            to.arg("--command").arg(command);
        }
        let (problem, said) = pipe(from, to).await?;
        let error = problem.or_else(|| {
            let line = said.iter().find(|line| line.contains("ERROR:"))?;
            Some(line.split_once("ERROR:")?.1.trim().to_owned())
        });
        if let Some(error) = error {
            report.not_imported.push(format!("rows of {name}: {error}"));
        }
        let added = one(&admin, &count).await?.saturating_sub(before);
        if added > 0 {
            report.platform_rows.push((name.to_owned(), added));
        }
    }
    note_what_stays(programs, report).await
}

/// Names data of the platform that cannot be copied.
async fn note_what_stays(programs: &ImportPrograms, report: &mut ImportReport) -> Result<()> {
    for (table, text) in [
        (
            "storage.objects",
            "files of Storage: only their rows were imported; copy the files with the Storage API",
        ),
        (
            "vault.secrets",
            "secrets of the vault: they are encrypted with a key of the source; create them again",
        ),
        (
            "cron.job",
            "jobs of pg_cron: schedule them again with cron.schedule",
        ),
    ] {
        let sql = format!(
            "select case when to_regclass('{table}') is null then 0 else
             (xpath('/row/c/text()', query_to_xml('select count(*) as c from {table}', false, true, '')))[1]::text::bigint end"
        );
        // A role that may not read the table, or a server without XML: nothing is known.
        let counted = programs.query_source(&sql).await.unwrap_or_default();
        if counted.trim().parse::<u64>().is_ok_and(|count| count > 0) {
            report.not_imported.push(text.to_owned());
        }
    }
    Ok(())
}

async fn one(admin: &tokio_postgres::Client, sql: &str) -> Result<u64> {
    let failed = sql_error("counting rows");
    let row = admin.query_one(sql, &[]).await.map_err(&failed)?;
    let count: i64 = row.try_get(0).map_err(&failed)?;
    Ok(u64::try_from(count).unwrap_or(0))
}
