//! Windows, gaps, plans and expiry of invented catalogs.

use proptest::prelude::*;

use super::*;
use crate::control::backups::archive_row::Fork;

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

/// An archive of the seconds from `from` to `until`, with the log up to `shipped`.
fn archive(id: i64, from: i64, until: i64, shipped: u64) -> Archive {
    Archive {
        id,
        system_id: 7,
        part: i32::try_from(id).unwrap(),
        timeline: 1,
        segment_bytes: 1 << 20,
        begin: Lsn(0),
        shipped: Lsn(shipped),
        shipped_at: at(until),
        last_commit_at: None,
        ended_at: None,
        ended_reason: None,
        created_at: at(from),
        fork: None,
    }
}

fn ended(mut archive: Archive, second: i64) -> Archive {
    archive.ended_at = Some(at(second));
    archive.ended_reason = Some("a restore".to_owned());
    archive
}

fn continuing(mut archive: Archive, parent: i64, fork: u64) -> Archive {
    let at = Lsn(fork);
    archive.fork = Some(Fork { parent, at });
    archive
}

fn base(id: i64, archive: i64, second: i64, stop: u64) -> RecoverableBase {
    RecoverableBase {
        id,
        archive,
        consistent_at: at(second),
        start: Lsn(stop.saturating_sub(10)),
        stop: Lsn(stop),
    }
}

fn plans(catalog: &BackupCatalog, second: i64) -> Vec<i64> {
    let plans = catalog.plans(None, Moment::Time(at(second)));
    plans.iter().map(|plan| plan.base).collect()
}

fn seconds(catalog: &BackupCatalog) -> Vec<(i64, i64)> {
    let windows = catalog.windows();
    let seconds = windows
        .iter()
        .map(|it| (it.earliest_unix(), it.latest_unix()));
    seconds.collect()
}

/// A restore at second 400, an undo of it at 600, and a backup at 700.
fn restored() -> BackupCatalog {
    BackupCatalog {
        archives: vec![
            ended(archive(1, 100, 400, 900), 400),
            ended(continuing(archive(2, 400, 600, 700), 1, 500), 600),
            continuing(archive(3, 600, 800, 1200), 1, 900),
        ],
        bases: vec![
            base(1, 1, 150, 100),
            base(2, 1, 300, 600),
            base(3, 3, 700, 1000),
        ],
    }
}

#[test]
fn moments_after_a_restore_need_no_new_backup() {
    let catalog = restored();
    assert_eq!(seconds(&catalog), [(150, 800)]);
    assert_eq!(catalog.gaps(), []);
    assert_eq!(plans(&catalog, 140), [0_i64; 0]);
    assert_eq!(plans(&catalog, 200), [1]);
    assert_eq!(plans(&catalog, 350), [2, 1]);
    // The second backup is later than the moment that was restored.
    assert_eq!(plans(&catalog, 450), [1]);
    assert_eq!(
        plans(&catalog, 650),
        [2, 1],
        "the undo continues the first archive"
    );
    assert_eq!(plans(&catalog, 750), [3, 2, 1]);
    assert_eq!(plans(&catalog, 801), [0_i64; 0]);
    let plan = &catalog.plans(None, Moment::Time(at(450)))[0];
    assert_eq!(plan.archives, [1, 2]);
    assert_eq!(plan.chain.end_of(0), Lsn(500));
}

#[test]
fn window_without_a_whole_second_is_not_offered_beside_another() {
    let mut catalog = BackupCatalog {
        archives: vec![archive(1, 100, 400, 900)],
        bases: vec![base(1, 1, 150, 100)],
    };
    catalog.archives[0].ended_at = Some(at(400));
    let mut second = archive(2, 500, 501, 900);
    second.shipped_at += chrono::TimeDelta::milliseconds(900);
    let mut first_of_second = base(2, 2, 501, 100);
    first_of_second.consistent_at += chrono::TimeDelta::milliseconds(200);
    catalog.archives.push(second);
    catalog.bases.push(first_of_second);
    assert_eq!(seconds(&catalog), [(150, 400)]);
    catalog.archives[1].shipped_at = at(502);
    assert_eq!(seconds(&catalog), [(150, 400), (502, 502)]);
    // The only one is named nevertheless.
    catalog.archives.remove(0);
    catalog.archives[0].shipped_at = at(501);
    assert_eq!(catalog.windows().len(), 1);
}

#[test]
fn position_is_recovered_in_its_archive() {
    let catalog = restored();
    let of = |archive, position| {
        let plans = catalog.plans(Some(archive), Moment::Position(Lsn(position)));
        plans.iter().map(|plan| plan.base).collect::<Vec<_>>()
    };
    assert_eq!(of(1, 550), [1]);
    assert_eq!(of(1, 900), [2, 1]);
    assert_eq!(of(2, 600), [1]);
    assert_eq!(of(2, 450), [0_i64; 0], "of the archive before");
    assert_eq!(of(2, 701), [0_i64; 0], "not in the store");
    assert_eq!(of(9, 100), [0_i64; 0]);
}

#[test]
fn windows_end_at_gaps_and_name_the_reason() {
    let catalog = BackupCatalog {
        archives: vec![
            ended(archive(1, 100, 300, 900), 350),
            archive(2, 360, 900, 900),
        ],
        bases: vec![base(1, 1, 150, 100), base(2, 2, 400, 100)],
    };
    assert_eq!(seconds(&catalog), [(150, 300), (400, 900)]);
    assert_eq!(catalog.window().unwrap().earliest, at(400));
    let gap = RecoveryGap {
        after: at(300),
        before: at(400),
        reason: "a restore".to_owned(),
    };
    assert_eq!(catalog.gaps(), [gap]);
    for second in [310, 355, 370] {
        assert_eq!(plans(&catalog, second), [0_i64; 0], "{second}");
    }
    assert_eq!(plans(&catalog, 500), [2]);
    assert_eq!(BackupCatalog::default().window(), None);
}

#[test]
fn expiry_keeps_the_window_and_the_last_ones() {
    let day = |day: i64| day * 86_400;
    let catalog = |archives, bases| BackupCatalog { archives, bases };
    let bases = [10, 15, 17, 18, 23].map(day);
    let bases: Vec<_> = (1..)
        .zip(bases)
        .map(|(id, second)| base(id, 1, second, 1))
        .collect();
    let one = catalog(vec![archive(1, 0, day(24), 900)], bases);
    let now = at(day(24) + 43_200);
    assert_eq!(one.expired(now, 7, 1), [1, 2]);
    assert_eq!(one.expired(now, 7, 4), [1]);
    assert_eq!(one.expired(now, 30, 1), [0_i64; 0]);
    assert_eq!(one.expired(now, 1, 1), [1, 2, 3, 4]);
    assert_eq!(one.expired(now, 0, 9), [0_i64; 0]);
    assert_eq!(BackupCatalog::default().expired(now, 7, 1), [0_i64; 0]);
    // The archive since day 20 continues the first one, which ended long ago, at a restore of the
    // second backup.
    let restored = catalog(
        vec![
            ended(archive(1, 0, day(3), 900), day(3)),
            ended(
                continuing(archive(2, day(3), day(20), 900), 1, 300),
                day(20),
            ),
            continuing(archive(3, day(20), day(24), 999), 1, 900),
        ],
        vec![
            base(1, 1, day(1), 100),
            base(2, 1, day(2), 200),
            base(3, 2, day(4), 400),
        ],
    );
    assert_eq!(restored.expired(now, 7, 1), [1]);
    let needed = |number: usize| restored.needed_from(&restored.archives[number]);
    assert_eq!(needed(0), Some(Lsn(90)));
    assert_eq!(needed(2), Some(Lsn(0)));
}

proptest! {
    /// Each archive ends, is restored to an earlier one, or has a gap behind it.
    #[test]
    fn every_second_of_a_window_has_a_plan_and_no_second_of_a_gap(
        steps in proptest::collection::vec((0..4_u8, 0..6_usize, 1..50_i64, any::<bool>()), 1..12),
    ) {
        let mut catalog = BackupCatalog::default();
        let (mut now, mut id) = (0_i64, 0_i64);
        for (kind, parent, length, has_base) in steps {
            id += 1;
            let mut next = archive(id, now, now + length, 1000 + u64::try_from(now).unwrap());
            if let Some(parent) = catalog.archives.get(parent).filter(|_| kind > 0) {
                let fork = parent.shipped;
                next = continuing(next, parent.id, fork.0);
                next.shipped = Lsn(next.shipped.0.max(fork.0));
            }
            if has_base {
                let stop = next.shipped.0;
                catalog.bases.push(base(id, id, now + length / 2, stop));
            }
            now += length;
            // The end of the log is in the store, or not.
            if kind == 3 {
                now += 5;
            }
            catalog.archives.push(ended(next, now));
        }
        let windows = seconds(&catalog);
        let gaps = catalog.gaps();
        for second in -5..now + 5 {
            let is_inside = windows.iter().any(|(from, to)| (*from..=*to).contains(&second));
            prop_assert_eq!(is_inside, !plans(&catalog, second).is_empty(), "{}", second);
            let is_missing = gaps
                .iter()
                .any(|gap| gap.after.timestamp() < second && second < gap.before.timestamp());
            prop_assert!(!(is_inside && is_missing), "{}", second);
        }
    }
}
