//! Each fact of `facts.txt` holds in a new project, on each PostgreSQL version.

use std::{collections::BTreeSet, path::Path, process::Command};

use tokio_postgres::Client;

use super::Database;

const FACTS: &str = include_str!("facts.txt");
const CATALOG: &str = include_str!("catalog.sql");

/// Facts that do not hold. Before version 16, no role has CREATEROLE: it would include membership
/// in every role.
pub(super) async fn missing(admin: &Client, major: u16) -> Vec<&'static str> {
    let rows = admin.query(CATALOG, &[]).await.unwrap();
    let found: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    FACTS
        .lines()
        .filter(|fact| !found.contains(*fact))
        .filter(|fact| major >= 16 || !fact.ends_with(" createrole true"))
        .collect()
}

#[tokio::test]
async fn new_project_contains_every_object_of_the_platform() {
    for database in Database::on_each().await {
        let missing = missing(&database.admin, database.major).await;
        assert!(missing.is_empty(), "on {}: {missing:#?}", database.major);
    }
}

#[tokio::test]
async fn dump_of_a_new_project_restores_into_another_new_project() {
    for database in Database::on_each().await {
        let engine = database.machine.clusters.engines().default_engine().clone();
        let dump = engine.program("pg_dump");
        if !dump.exists() || !engine.program("psql").exists() {
            continue;
        }
        let other = Database::on(&engine).await;
        let socket = |database: &Database| {
            let path = database.machine.clusters.socket_path(&database.project);
            path.parent().map(Path::to_owned).unwrap()
        };
        let dumped = Command::new(dump)
            .args([
                "--schema-only",
                "--clean",
                "--if-exists",
                "-U",
                "supabase_admin",
                "-h",
            ])
            .arg(socket(&database))
            .arg("postgres")
            .output()
            .unwrap();
        assert!(
            dumped.status.success(),
            "{}",
            String::from_utf8_lossy(&dumped.stderr)
        );
        let file = other.machine.dir().join("dump.sql");
        // The vault is an extension without files, which cannot be created by name.
        let text = String::from_utf8(dumped.stdout).unwrap();
        let lines = text.lines().filter(|line| {
            !["supabase_vault", "SCHEMA vault", "SCHEMA IF EXISTS vault"]
                .iter()
                .any(|vault| line.contains(vault))
        });
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let restored = Command::new(engine.program("psql"))
            .args([
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "supabase_admin",
                "-d",
                "postgres",
                "-h",
            ])
            .arg(socket(&other))
            .arg("-f")
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            restored.status.success(),
            "{}",
            String::from_utf8_lossy(&restored.stderr)
        );
        let missing = missing(&other.admin, other.major).await;
        // Rows are not part of a dump of the schema.
        let missing: Vec<_> = missing
            .iter()
            .filter(|fact| !fact.starts_with("migration "))
            .collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
