//! The registry of tables agrees with the triggers and foreign keys of the migrations.

use std::collections::BTreeSet;

use gantry::platform::tables::{ProjectRemoval, Table};

use super::sources;

/// The migrations as one text without comments, in their order.
fn migrations() -> String {
    let files = sources(&["migrations"], ".sql");
    assert!(files.len() > 30, "the migrations were not found");
    let mut text = String::new();
    for file in files {
        for line in file.text.lines() {
            text.push_str(line.split("--").next().unwrap());
            text.push(' ');
        }
    }
    text
}

/// Tables with a trigger that publishes changes.
fn published(migrations: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for statement in migrations.split(';') {
        let words: Vec<&str> = statement.split_whitespace().collect();
        if statement.contains("create trigger") && statement.contains("function announce()") {
            let on = words.iter().rposition(|word| *word == "on").unwrap();
            found.insert(words[on + 1].to_owned());
        }
    }
    found
}

/// Tables with a column that references `projects`, and whether the foreign key cascades.
fn of_projects(migrations: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for statement in migrations.split(';') {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let creates = words.iter().position(|word| *word == "create");
        let Some(create) = creates.filter(|at| words.get(at + 1) == Some(&"table")) else {
            continue;
        };
        let table = words[create + 2].trim_matches('(');
        let references = words
            .windows(2)
            .any(|pair| pair[0] == "references" && pair[1].trim_matches([',', ')']) == "projects");
        if references {
            found.insert(table.to_owned());
        }
    }
    found
}

#[test]
fn registry_lists_every_published_table() {
    let published = published(&migrations());
    assert!(published.len() > 15, "{published:?}");
    for table in Table::ALL {
        let name = table.name();
        assert_eq!(table.is_published(), published.contains(name), "{name}");
        assert_eq!(Table::from_name(name), Some(*table));
        let reacts = !table.caches().is_empty() || !table.wakes().is_empty();
        assert_eq!(
            table.is_published(),
            reacts,
            "{name} is published for a reason"
        );
    }
    for name in published {
        assert!(Table::from_name(&name).is_some(), "{name} is not declared");
    }
}

#[test]
fn registry_lists_every_table_with_rows_of_projects() {
    let tables = of_projects(&migrations());
    assert!(tables.len() > 8, "{tables:?}");
    for name in &tables {
        let declared = Table::from_name(name).map(Table::on_project_removed);
        assert!(
            declared.is_some_and(|removal| removal != ProjectRemoval::Unrelated),
            "{name} has rows of projects: declare what happens to them"
        );
    }
    for table in Table::ALL {
        if table.on_project_removed() == ProjectRemoval::Delete {
            assert!(
                tables.contains(table.name()),
                "{} has no project",
                table.name()
            );
        }
    }
}
