//! The log goes on after a restore: every moment is recovered, without a new base backup.

use std::{collections::BTreeSet, sync::Arc};

use chrono::{DateTime, Utc};
use gantry::control::{
    backups::{moment::Moment, state::BackupOptions, upkeep, window::BackupCatalog},
    projects::{Status, lease, reconciler},
};
use gantry_base::{clock::Entropy, ids::ProjectRef};
use serde_json::{Value, json};

use super::{
    at, backed_up, backed_up_on, get, id, next_second, options, post, sql, until_complete,
    until_reached, until_restored,
};
use crate::{
    support::{
        TestApp,
        machine::{Machine, engines},
    },
    upgrades::upgrade_pair,
};

/// A project with a table of numbers, and the numbers that it had at seconds of the past.
struct Ledger {
    app: TestApp,
    project: ProjectRef,
    next: i64,
    numbers: BTreeSet<i64>,
    past: Vec<(i64, BTreeSet<i64>)>,
    /// The version of PostgreSQL that the project is upgraded to.
    upgrade_to: Option<u16>,
    /// The last noted second before the upgrade. Only later ones may be in a gap.
    upgraded_after: Option<i64>,
}

impl Ledger {
    async fn new() -> Self {
        let app = backed_up(BackupOptions::default()).await;
        let project = app.real_project().await;
        Self::of(app, project).await
    }

    /// Returns a ledger on the older of two versions of PostgreSQL, if there are two.
    async fn before_an_upgrade() -> Option<Self> {
        let (old, new) = upgrade_pair()?;
        let machine = Machine::on(&engines()).await;
        let app = backed_up_on(BackupOptions::default(), machine).await;
        // Makes the template of the new version, which takes seconds once.
        for engine in [&new, &old] {
            let mut wanted = app.new_project(&format!("on {}", engine.major()));
            wanted["postgres_engine"] = json!(engine.major().to_string());
            let made = post(&app, "/v1/projects", &wanted).await.expect(201).json();
            let project = made["ref"].as_str().unwrap().parse().unwrap();
            app.until(&project, Status::ActiveHealthy).await;
            if engine.major() == old.major() {
                let mut ledger = Self::of(app, project).await;
                ledger.upgrade_to = Some(new.major());
                return Some(ledger);
            }
        }
        None
    }

    async fn of(app: TestApp, project: ProjectRef) -> Self {
        sql(&app, &project, "create table public.ledger (n int)").await;
        until_complete(&app, &project, 1).await;
        let mut ledger = Self {
            app,
            project,
            next: 1,
            numbers: BTreeSet::new(),
            past: Vec::new(),
            upgrade_to: None,
            upgraded_after: None,
        };
        ledger.write().await;
        ledger
    }

    /// Writes a number, and notes the numbers of a second after it. Returns the second.
    async fn write(&mut self) -> i64 {
        let number = self.next;
        self.next += 1;
        let insert = format!("insert into public.ledger values ({number})");
        sql(&self.app, &self.project, &insert).await;
        self.numbers.insert(number);
        let second = next_second().await;
        self.past.push((second, self.numbers.clone()));
        // The next number is written after that second.
        next_second().await;
        second
    }

    async fn found(&self) -> BTreeSet<i64> {
        let rows = sql(&self.app, &self.project, "select n from public.ledger").await;
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["n"].as_i64().unwrap()).collect()
    }

    /// Restores the project to a second, and compares its numbers.
    async fn restore(&mut self, second: i64) {
        until_reached(&self.app, &self.project, second).await;
        let body = json!({"recovery_time_target_unix": second});
        let path = at(&self.project, "/restore-pitr");
        post(&self.app, &path, &body).await.expect(201);
        assert_eq!(until_restored(&self.app, &self.project).await, None);
        let noted = self.past.iter().find(|(noted, _)| *noted == second);
        self.numbers.clone_from(&noted.unwrap().1);
        assert_eq!(
            self.found().await,
            self.numbers,
            "{second}: {:?}",
            self.past
        );
    }

    /// Brings back the cluster before the last restore.
    async fn undo(&mut self, before: BTreeSet<i64>) {
        let path = at(&self.project, "/restore-point");
        let point = get(&self.app, &path).await.expect(200).json();
        let undo = json!({"name": point["name"]});
        let path = at(&self.project, "/undo");
        post(&self.app, &path, &undo).await.expect(201);
        assert_eq!(until_restored(&self.app, &self.project).await, None);
        self.numbers = before;
        assert_eq!(self.found().await, self.numbers, "{:?}", self.past);
    }

    async fn upgrade(&mut self) {
        let Some(target) = self.upgrade_to.take() else {
            return;
        };
        self.upgraded_after = self.past.last().map(|(second, _)| *second);
        let path = format!("/v1/projects/{}/upgrade", self.project);
        let body = json!({"target_version": target.to_string()});
        post(&self.app, &path, &body).await.expect(201);
        self.app.until(&self.project, Status::ActiveHealthy).await;
        assert_eq!(self.found().await, self.numbers);
    }

    async fn list(&self) -> Value {
        let list = get(&self.app, &at(&self.project, "")).await;
        list.expect(200).json()
    }

    /// Asserts that every noted second can be recovered.
    async fn assert_reachable(&self) {
        let list = self.list().await;
        let window = &list["physical_backup_data"];
        if let Some(upgraded_after) = self.upgraded_after {
            for gap in window["gaps"].as_array().into_iter().flatten() {
                assert!(
                    gap["after_unix"].as_i64().unwrap() >= upgraded_after,
                    "{list}"
                );
            }
            return;
        }
        assert_eq!(window["gaps"], Value::Null, "{list}");
        let earliest = window["earliest_physical_backup_date_unix"].as_i64();
        assert!(earliest.unwrap() <= self.past[0].0, "{list}");
    }

    async fn restart(&mut self) {
        self.app.node.kill();
        let machine = Arc::clone(&self.app.node.machine);
        let options = options(BackupOptions::default());
        self.app.node = self.app.another_in_real_time(options, machine);
        lease::claim(&self.app.app).await.unwrap();
        reconciler::recover_on_startup(&self.app.app).await.unwrap();
        self.app.node.start();
    }
}

#[tokio::test]
async fn moments_after_a_restore_are_recovered_without_another_backup() {
    let mut ledger = Ledger::new().await;
    let one = ledger.past[0].0;
    let two = ledger.write().await;
    ledger.restore(one).await;
    let three = ledger.write().await;
    ledger.write().await;
    ledger.restore(three).await;
    assert_eq!(ledger.numbers, BTreeSet::from([1, 3]));
    let five = ledger.write().await;
    // A moment of the first cluster, of the second one, and of the third one.
    ledger.restore(two).await;
    ledger.restore(three).await;
    ledger.restore(five).await;
    assert_eq!(ledger.numbers, BTreeSet::from([1, 3, 5]));
    ledger.assert_reachable().await;
    // The first backup is enough for the last moment, by a chain of three archives.
    let id = id(&ledger.app, &ledger.project).await;
    let catalog = BackupCatalog::read(&ledger.app.app, id).await.unwrap();
    let moment = Moment::Time(DateTime::from_timestamp(five, 0).unwrap());
    let plans = catalog.plans(None, moment);
    let plan = plans.iter().find(|plan| plan.base == catalog.bases[0].id);
    assert_eq!(plan.unwrap().archives.len(), 3, "{plans:?}");
    // The backup of the last cluster is verified with its own log.
    until_complete(&ledger.app, &ledger.project, 2).await;
    assert!(
        upkeep::verify_now(&ledger.app.app, &ledger.project)
            .await
            .unwrap()
    );
    let list = ledger.list().await;
    assert_eq!(list["backups"][0]["problem"], Value::Null, "{list}");
    ledger.write().await;
    ledger.restore(one).await;
}

#[tokio::test]
async fn log_of_a_cluster_that_an_undo_brings_back_goes_on() {
    let mut ledger = Ledger::new().await;
    let one = ledger.past[0].0;
    ledger.write().await;
    let before = ledger.numbers.clone();
    ledger.restore(one).await;
    let three = ledger.write().await;
    ledger.undo(before).await;
    let four = ledger.write().await;
    assert_eq!(ledger.numbers, BTreeSet::from([1, 2, 4]));
    ledger.assert_reachable().await;
    // A moment of the cluster that the undo replaced, and then one after the undo.
    ledger.restore(three).await;
    ledger.restore(four).await;
    let before = ledger.numbers.clone();
    ledger.restore(one).await;
    ledger.undo(before).await;
    let five = ledger.write().await;
    ledger.restore(one).await;
    ledger.restore(five).await;
    assert_eq!(ledger.numbers, BTreeSet::from([1, 2, 4, 5]));
    ledger.assert_reachable().await;
}

/// Two clusters that were restored from one backup have the same system identifier and timeline.
#[tokio::test]
async fn log_of_an_exchanged_cluster_never_reaches_the_archive_of_the_earlier_one() {
    let mut ledger = Ledger::new().await;
    let one = ledger.past[0].0;
    ledger.restore(one).await;
    ledger.write().await;
    ledger.restore(one).await;
    let id = id(&ledger.app, &ledger.project).await;
    let db = ledger.app.app.db.clone();
    let timelines = "select count(distinct (system_id, timeline)), count(*) from archives \
                     where project_id = $1 and parent_id is not null";
    let rows = db.query(timelines, &[&id.0]).await.unwrap();
    assert_eq!((rows[0].get::<_, i64>(0), rows[0].get::<_, i64>(1)), (1, 2));
    // As if the process had been killed right after the exchange.
    let client = db.client().await.unwrap();
    ledger.app.node.kill();
    for sql in [
        "delete from archives where ended_at is null",
        "update archives set ended_at = null where id = (select max(id) from archives)",
        "update restores set finished_at = null where id = (select max(id) from restores)",
    ] {
        assert_eq!(client.execute(sql, &[]).await.unwrap(), 1, "{sql}");
    }
    let machine = Arc::clone(&ledger.app.node.machine);
    let options = options(BackupOptions::default());
    ledger.app.node = ledger.app.another_in_real_time(options, machine);
    lease::claim(&ledger.app.app).await.unwrap();
    let shipped = "select shipped_lsn, shipped_at from archives order by id desc limit 1";
    let shipped = async || {
        let rows = ledger.app.app.db.query(shipped, &[]).await.unwrap();
        (rows[0].get::<_, i64>(0), rows[0].get::<_, DateTime<Utc>>(1))
    };
    let before = shipped().await;
    gantry::control::backups::look(&ledger.app.app)
        .await
        .unwrap();
    assert_eq!(shipped().await, before, "of another cluster");
    // The next process continues the restore, and its log.
    reconciler::recover_on_startup(&ledger.app.app)
        .await
        .unwrap();
    let restoring = "update projects set status = 'RESTORING', generation = generation + 1";
    ledger.app.app.db.query(restoring, &[]).await.unwrap();
    ledger.app.node.start();
    assert_eq!(until_restored(&ledger.app, &ledger.project).await, None);
    let second = ledger.write().await;
    ledger.restore(second).await;
}

/// Restores to a second, unless the list of backups names a gap that it is in. Returns whether it
/// was restored.
async fn restore_or_gap(ledger: &mut Ledger, second: i64) -> bool {
    let list = ledger.list().await;
    let gaps = list["physical_backup_data"]["gaps"].as_array().cloned();
    let is_inside = |gap: &Value| {
        let [after, before] = ["after_unix", "before_unix"].map(|name| gap[name].as_i64().unwrap());
        (after + 1..before).contains(&second)
    };
    if gaps.unwrap_or_default().iter().any(is_inside) {
        return false;
    }
    ledger.restore(second).await;
    true
}

#[tokio::test]
async fn moments_before_and_after_an_upgrade_are_recovered() {
    let Some(mut ledger) = Ledger::before_an_upgrade().await else {
        return;
    };
    let one = ledger.past[0].0;
    let two = ledger.write().await;
    ledger.upgrade().await;
    ledger.write().await;
    until_complete(&ledger.app, &ledger.project, 2).await;
    let four = ledger.write().await;
    for second in [four, two, one, four] {
        assert!(restore_or_gap(&mut ledger, second).await);
    }
}

/// Random writes, restores, undos, backups, upgrades and kills. Every second of the past stays
/// recoverable, or is in a gap that the list names.
#[tokio::test]
async fn random_histories_keep_every_acknowledged_commit_recoverable() {
    for seed in [1, 3] {
        let entropy = Entropy::seeded(seed);
        let random = |bound: usize| usize::from(entropy.bytes::<1>()[0]) % bound;
        let with_upgrade = if seed == 3 {
            Ledger::before_an_upgrade().await
        } else {
            None
        };
        let mut ledger = match with_upgrade {
            Some(ledger) => ledger,
            None => Ledger::new().await,
        };
        let mut before_restore = None;
        for step in 0..12 {
            match random(10) {
                _ if step == 5 => ledger.upgrade().await,
                0..4 => {
                    ledger.write().await;
                }
                4..7 => {
                    let number = random(ledger.past.len());
                    let before = ledger.numbers.clone();
                    let second = ledger.past[number].0;
                    ledger.restore(second).await;
                    before_restore = Some(before);
                }
                7 => {
                    if let Some(before) = before_restore.take() {
                        let undone = ledger.numbers.clone();
                        ledger.undo(before).await;
                        before_restore = Some(undone);
                    }
                }
                8 => upkeep::round(&ledger.app.app).await.unwrap(),
                _ => ledger.restart().await,
            }
            ledger.assert_reachable().await;
        }
        let seconds: Vec<i64> = ledger.past.iter().map(|(second, _)| *second).collect();
        let id = id(&ledger.app, &ledger.project).await;
        let catalog = BackupCatalog::read(&ledger.app.app, id).await.unwrap();
        assert!(catalog.archives.len() > 1, "{catalog:?}");
        // A cluster has a backup of its own after an upgrade.
        let complete = catalog.bases.len() + usize::from(ledger.upgraded_after.is_some());
        until_complete(&ledger.app, &ledger.project, complete).await;
        for second in seconds {
            let is_restored = restore_or_gap(&mut ledger, second).await;
            let may_be_missing = ledger.upgraded_after.is_some_and(|after| second > after);
            assert!(is_restored || may_be_missing, "{second}: {:?}", ledger.past);
        }
    }
}
