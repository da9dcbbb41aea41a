//! Full disks: that of clusters in the making, and that of the store.

use std::fs::{self, File};

use gantry::control::backups::{state::BackupOptions, upkeep};
use gantry_base::ids::ProjectRef;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    LOOK, at, backed_up, get, next_second, post, sql, until_complete, until_reached, until_restored,
};
use crate::support::{
    TestApp,
    machine::{PATIENCE, SmallDisk, SuperuserClients as _, is_root, place},
};

const FULL: &str = "No space left on device";

/// Waits until an attempt of the reconciler failed with this text.
async fn until_failed(app: &TestApp, project: &ProjectRef, text: &str) {
    let sql = "select coalesce(last_error, '') from projects where ref = $1";
    let failed = async {
        loop {
            let rows = app.app.db.query(sql, &[&project.as_str()]).await.unwrap();
            if rows[0].get::<_, &str>(0).contains(text) {
                return;
            }
            sleep(LOOK).await;
        }
    };
    timeout(PATIENCE, failed)
        .await
        .expect("no attempt failed with this text");
}

#[tokio::test]
async fn restore_on_a_full_disk_keeps_the_project_and_succeeds_with_space() {
    // Mounting needs root.
    if !is_root() {
        return;
    }
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    let table = "create table public.notes (n int); insert into public.notes values (1)";
    sql(&app, &project, table).await;
    let moment = next_second().await;
    next_second().await;
    sql(&app, &project, "insert into public.notes values (2)").await;
    until_reached(&app, &project, moment).await;

    let disk = SmallDisk::mount(&app.machine.dir().join("tmp"), 8);
    let failed = upkeep::back_up_now(&app.app, &project).await.unwrap_err();
    let failed = failed.to_string();
    assert!(
        failed.contains("MB are free") || failed.contains(FULL),
        "{failed}"
    );
    let list = get(&app, &at(&project, "")).await.expect(200).json();
    assert_eq!(list["backups"][0]["status"], "FAILED", "{list}");
    assert!(list["backups"][0]["problem"].is_string(), "{list}");
    let events = crate::events::names(&app).await;
    assert_eq!(events.last().unwrap(), "gantry.backup.failed", "{events:?}");
    let body = json!({"recovery_time_target_unix": moment});
    post(&app, &at(&project, "/restore-pitr"), &body)
        .await
        .expect(201);
    until_failed(&app, &project, FULL).await;
    let admin = app.machine.clusters.admin_session(&project).await.unwrap();
    let row = admin.query_one("select count(*) from public.notes", &[]);
    assert_eq!(row.await.unwrap().get::<_, i64>(0), 2, "it still answers");
    drop(admin);
    drop(disk);
    assert_eq!(until_restored(&app, &project).await, None);
    let notes = sql(&app, &project, "select n from public.notes").await;
    assert_eq!(notes, json!([{"n": 1}]));
    app.log.take_errors();
}

#[tokio::test]
async fn backup_to_a_full_disk_fails_and_succeeds_with_space() {
    if !is_root() {
        return;
    }
    let folder = place();
    let disk = SmallDisk::mount(&folder, 64);
    let app = backed_up(BackupOptions {
        folder: Some(folder.clone()),
        ..BackupOptions::default()
    })
    .await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    let filler = folder.join("filler");
    let free = statvfs(&folder).unwrap();
    let file = File::create(&filler).unwrap();
    let bytes = free.f_bavail * free.f_frsize;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
    // An open file keeps its space after its removal.
    drop(file);
    let rows = "create table public.notes as
                select md5(n::text) t from generate_series(1, 20000) n";
    sql(&app, &project, rows).await;
    let failed = upkeep::back_up_now(&app.app, &project).await.unwrap_err();
    assert!(failed.to_string().contains(FULL), "{failed}");
    // Writes are not refused.
    sql(&app, &project, "insert into public.notes values ('')").await;
    fs::remove_file(filler).unwrap();
    assert!(
        upkeep::back_up_now(&app.app, &project)
            .await
            .unwrap()
            .is_some()
    );
    until_complete(&app, &project, 2).await;
    assert!(upkeep::verify_now(&app.app, &project).await.unwrap());
    let list = get(&app, &at(&project, "")).await.expect(200).json();
    assert!(list["backups"][0]["verified_at"].is_string(), "{list}");
    app.log.take_errors();
    drop(disk);
    fs::remove_dir_all(folder).unwrap();
}
