//! Comparison of two histories of migrations: those of a branch and of its parent.
//!
//! A *ledger* is the content of `supabase_migrations.schema_migrations`. The *fork* is the set of
//! versions that both had when the branch was created or last reset. A version of the fork that one
//! side lacks today was rolled back there on purpose, and is not applied there again.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::{context::ApiContext, database::migrations::replay::read_all},
    control::{database_session::session::SessionLimits, projects::target},
    platform::{access::Project, error::Error},
};

/// A migration of a ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Version. Versions sort as text, by bytes.
    pub version: String,
    /// Name given by the author.
    pub name: Option<String>,
    /// SQL of the migration. The command line stores one text per statement, this API one in all.
    pub statements: Vec<String>,
    /// SQL that reverts the migration.
    pub rollback: Vec<String>,
    /// E-mail address of the user that applied it.
    pub created_by: Option<String>,
}

impl LedgerEntry {
    /// Returns whether both have the same SQL, however it is split into statements.
    fn has_same_sql(&self, other: &Self) -> bool {
        normal_form(&self.statements) == normal_form(&other.statements)
    }
}

/// Returns the SQL without the separators between statements.
fn normal_form(statements: &[String]) -> String {
    let mut text = String::new();
    for statement in statements {
        let statement = statement.trim().trim_end_matches(';').trim_end();
        if !statement.is_empty() {
            text.push_str(statement);
            text.push('\n');
        }
    }
    // A text of several statements has separators inside, followed by any white space.
    let mut normal = String::with_capacity(text.len());
    for part in text.split_inclusive(['\n', ';']) {
        let part = part.trim().trim_end_matches(';').trim_end();
        if !part.is_empty() {
            normal.push_str(part);
            normal.push('\n');
        }
    }
    normal
}

/// The migrations to apply to a target so that it has those of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerPlan {
    /// Migrations that the target lacks, in the order of application.
    pub missing: Vec<LedgerEntry>,
    /// Versions that both have with different SQL. Nothing is applied if there is one.
    pub conflicts: Vec<String>,
    /// Versions in `missing` older than the newest migration that only the target has.
    pub out_of_order: Vec<String>,
    /// Versions of the fork that the target has rolled back since.
    pub withdrawn: Vec<String>,
}

/// Returns the migrations of `source` that `target` lacks.
pub fn plan(source: &[LedgerEntry], target: &[LedgerEntry], fork: &BTreeSet<String>) -> LedgerPlan {
    let source = by_version(source);
    let target = by_version(target);
    let newest_own = target
        .keys()
        .rev()
        .find(|version| !source.contains_key(*version) && !fork.contains(**version));
    let mut plan = LedgerPlan::default();
    for (version, entry) in &source {
        match target.get(version) {
            Some(other) if entry.has_same_sql(other) => {}
            Some(_) => plan.conflicts.push((*version).to_owned()),
            None if fork.contains(*version) => plan.withdrawn.push((*version).to_owned()),
            None => {
                if newest_own.is_some_and(|newest| version < newest) {
                    plan.out_of_order.push((*version).to_owned());
                }
                plan.missing.push((*entry).clone());
            }
        }
    }
    plan
}

impl LedgerPlan {
    /// Removes migrations newer than `last`.
    #[must_use]
    pub fn up_to(mut self, last: &str) -> Self {
        self.missing.retain(|entry| entry.version.as_str() <= last);
        self.out_of_order.retain(|version| version.as_str() <= last);
        self
    }
}

/// Returns the versions that both ledgers have.
pub fn common(a: &[LedgerEntry], b: &[LedgerEntry]) -> BTreeSet<String> {
    let b = by_version(b);
    let shared = a.iter().filter(|entry| b.contains_key(&*entry.version));
    shared.map(|entry| entry.version.clone()).collect()
}

fn by_version(ledger: &[LedgerEntry]) -> BTreeMap<&str, &LedgerEntry> {
    let pairs = ledger.iter().map(|entry| (entry.version.as_str(), entry));
    pairs.collect()
}

/// Reads the ledger of a project. Starts its server if it sleeps.
pub(super) async fn read_ledger(
    context: &ApiContext,
    project: &Project,
) -> Result<Vec<LedgerEntry>, Error> {
    let database = target(context, project).await?;
    let records = read_all(&database, SessionLimits::default()).await?;
    let entries = records.into_iter().map(|record| LedgerEntry {
        version: record.version,
        name: record.name,
        statements: record.statements.unwrap_or_default(),
        rollback: record.rollback.unwrap_or_default(),
        created_by: record.created_by,
    });
    Ok(entries.collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(version: &str, sql: &str) -> LedgerEntry {
        LedgerEntry {
            version: version.to_owned(),
            statements: vec![sql.to_owned()],
            ..LedgerEntry::default()
        }
    }

    fn versions(entries: &[LedgerEntry]) -> Vec<&str> {
        let versions = entries.iter().map(|entry| entry.version.as_str());
        versions.collect()
    }

    fn fork(versions: &[&str]) -> BTreeSet<String> {
        versions.iter().map(|&version| version.to_owned()).collect()
    }

    #[test]
    fn missing_migrations_are_planned_in_order_of_version() {
        let parent = [entry("1", "a")];
        let branch = [entry("3", "c"), entry("1", "a"), entry("2", "b")];
        let plan = plan(&branch, &parent, &fork(&["1"]));
        assert_eq!(versions(&plan.missing), ["2", "3"]);
        assert!(plan.conflicts.is_empty() && plan.out_of_order.is_empty());
        assert_eq!(versions(&plan.up_to("2").missing), ["2"]);
    }

    #[test]
    fn version_with_other_sql_is_a_conflict() {
        let plan = plan(&[entry("1", "a")], &[entry("1", "b")], &fork(&[]));
        assert_eq!(plan.conflicts, ["1"]);
        assert!(plan.missing.is_empty());
    }

    #[test]
    fn split_and_whole_texts_are_equal() {
        let split = LedgerEntry {
            version: "1".to_owned(),
            statements: vec!["create table a ()".to_owned(), "select 1;".to_owned()],
            ..LedgerEntry::default()
        };
        let whole = entry("1", "create table a ();\n\n  select 1;\n");
        assert_eq!(plan(&[split], &[whole], &fork(&[])), LedgerPlan::default());
    }

    #[test]
    fn migration_older_than_the_targets_own_is_out_of_order() {
        let branch = [entry("2", "b"), entry("4", "d")];
        let parent = [entry("3", "c")];
        let plan = plan(&branch, &parent, &fork(&[]));
        assert_eq!(versions(&plan.missing), ["2", "4"]);
        assert_eq!(plan.out_of_order, ["2"]);
    }

    #[test]
    fn migration_that_the_target_rolled_back_is_not_applied_again() {
        let plan = plan(&[entry("1", "a")], &[], &fork(&["1"]));
        assert_eq!(plan.withdrawn, ["1"]);
        assert!(plan.missing.is_empty());
    }

    fn ledger() -> impl Strategy<Value = Vec<LedgerEntry>> {
        proptest::collection::btree_map(0_u8..12, 0_u8..3, 0..10).prop_map(|entries| {
            let entries = entries.into_iter();
            entries
                .map(|(version, sql)| entry(&format!("{version:02}"), &format!("select {sql}")))
                .collect()
        })
    }

    proptest! {
        /// Each version of the source is in exactly one class, and none is invented.
        #[test]
        fn every_version_has_one_class(source in ledger(), target in ledger(), fork in ledger()) {
            let fork: BTreeSet<String> = fork.into_iter().map(|entry| entry.version).collect();
            let plan = plan(&source, &target, &fork);
            let target_of = |version: &str| target.iter().find(|entry| entry.version == version);
            for entry in &source {
                let missing = plan.missing.contains(entry);
                let conflict = plan.conflicts.contains(&entry.version);
                let withdrawn = plan.withdrawn.contains(&entry.version);
                let other = target_of(&entry.version);
                let equal = other.is_some_and(|other| other.statements == entry.statements);
                let classes = [missing, conflict, withdrawn, equal];
                prop_assert_eq!(1, classes.into_iter().filter(|class| *class).count());
            }
            let planned = plan.missing.len() + plan.conflicts.len() + plan.withdrawn.len();
            prop_assert!(planned <= source.len());
            prop_assert!(plan.missing.is_sorted_by(|a, b| a.version < b.version));
            let planned = |version: &String| plan.missing.iter().any(|it| it.version == *version);
            prop_assert!(plan.out_of_order.iter().all(planned));
        }

        /// An interrupted application is completed by a plan that is made anew.
        #[test]
        fn any_prefix_of_a_plan_leads_to_the_same_end(
            source in ledger(), target in ledger(), cut in 0_usize..10,
        ) {
            let fork = common(&source, &target);
            let whole = plan(&source, &target, &fork);
            let mut interrupted = target.clone();
            interrupted.extend(whole.missing.iter().take(cut).cloned());
            let rest = plan(&source, &interrupted, &fork);
            interrupted.extend(rest.missing);
            let mut direct = target;
            direct.extend(whole.missing.iter().cloned());
            interrupted.sort_by(|a, b| a.version.cmp(&b.version));
            direct.sort_by(|a, b| a.version.cmp(&b.version));
            prop_assert_eq!(&interrupted, &direct);
            prop_assert!(plan(&source, &direct, &fork).missing.is_empty());
        }

        /// Without conflicts, a merge and a push lead to equal ledgers, in either order.
        #[test]
        fn merge_and_push_converge(parent in ledger(), branch in ledger()) {
            let fork = common(&parent, &branch);
            let (merge, push) = (plan(&branch, &parent, &fork), plan(&parent, &branch, &fork));
            prop_assert_eq!(&merge.conflicts, &push.conflicts);
            let version = |entry: &LedgerEntry| entry.version.clone();
            let merged = parent.iter().chain(&merge.missing).map(version);
            let merged: BTreeSet<String> = merged.collect();
            let pushed = branch.iter().chain(&push.missing).map(version);
            let pushed: BTreeSet<String> = pushed.collect();
            prop_assert_eq!(merged, pushed);
        }
    }
}
