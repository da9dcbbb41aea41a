//! Faults of the store, hostile files, and interruptions.

use std::{fs, path::PathBuf, process::Command, sync::Arc, time::Duration};

use gantry::{
    control::{
        backups::{
            self,
            chain::LogChain,
            error::BackupError,
            manifest::Manifest,
            moment::Moment,
            restore,
            state::BackupOptions,
            store::{ProjectKey, ProjectStore},
            upkeep,
            window::BackupCatalog,
        },
        projects::Status,
    },
    platform::sealing::SealingKey,
};
use gantry_base::ids::{ProjectId, ProjectRef};
use gantry_node::clusters::archive_way::SPOOL;
use serde_json::json;
use tokio::time::sleep;

use super::{
    LOOK, at, backed_up, get, id, next_second, options, post, sql, until_complete, until_reached,
    until_restored,
};
use crate::{
    events,
    support::{TestApp, machine::engine, s3::Objects},
};

/// Returns the objects of a project, as a program with the platform's key reads them.
pub(super) async fn store(app: &TestApp, id: ProjectId, project: &ProjectRef) -> ProjectStore {
    let sql = "select sealed from backup_keys where project_id = $1";
    let rows = app.app.db.query(sql, &[&id.0]).await.unwrap();
    let sealed: Vec<u8> = rows[0].get(0);
    let key = ProjectKey::open(&app.app.settings.sealing, project, &sealed).unwrap();
    app.app.backups.store().unwrap().project(project, key)
}

/// Paths of a project's objects in the folder of backups with a text in their names.
pub(super) fn objects(app: &TestApp, project: &ProjectRef, part: &str) -> Vec<PathBuf> {
    let mut pending = vec![
        app.machine
            .dir()
            .join("backups/objects")
            .join(project.as_str()),
    ];
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.to_str().unwrap().contains(part) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn idle_project_ships_nothing() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(&app, &project, "create table public.notes (n int)").await;
    let look = || async { backups::look(&app.app).await.unwrap() };
    let times = || -> Vec<_> {
        let paths = objects(&app, &project, "");
        let modified = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        paths
            .iter()
            .map(|path| (path.clone(), modified(path)))
            .collect()
    };
    // The server itself writes once more, within 15 seconds of a commit.
    let mut before = times();
    let mut rounds = 0;
    while rounds < 17 {
        sleep(Duration::from_secs(1)).await;
        look().await;
        let now = times();
        rounds = if now == before { rounds + 1 } else { 0 };
        before = now;
    }
    assert!(before.len() > 3, "{before:?}");
    for _ in 0..20 {
        look().await;
        upkeep::round(&app.app).await.unwrap();
    }
    assert_eq!(times(), before);
    let leftover = fs::read_dir(app.machine.data(&project).join(SPOOL))
        .unwrap()
        .count();
    assert_eq!(leftover, 0, "shipped segments are removed");
}

#[tokio::test]
async fn damaged_objects_are_named_and_an_older_backup_is_used() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(
        &app,
        &project,
        "create table public.notes as select 7 as n from generate_series(1, 20000)",
    )
    .await;
    let made = upkeep::back_up_now(&app.app, &project).await.unwrap();
    assert!(made.is_some());
    let list = until_complete(&app, &project, 2).await;
    let newest = list["backups"][0]["id"].as_i64().unwrap();
    let moment = next_second().await;
    until_reached(&app, &project, moment).await;
    let packs = objects(&app, &project, &format!("packs/{newest:012}"));
    assert!(!packs.is_empty());
    for pack in packs {
        let mut bytes = fs::read(&pack).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&pack, bytes).unwrap();
    }
    let body = json!({"recovery_time_target_unix": moment});
    post(&app, &at(&project, "/restore-pitr"), &body)
        .await
        .expect(201);
    assert_eq!(until_restored(&app, &project).await, None);
    let rows = sql(&app, &project, "select count(*) from public.notes").await;
    assert_eq!(rows, json!([{"count": 20000}]));
    let list = get(&app, &at(&project, "")).await.expect(200).json();
    let backups = list["backups"].as_array().unwrap();
    let damaged = backups
        .iter()
        .find(|backup| backup["id"] == newest)
        .unwrap();
    assert!(
        damaged["problem"].as_str().unwrap().contains("is damaged"),
        "{damaged}"
    );
    let events = events::names(&app).await;
    for name in [
        "v1.project.backup.started",
        "gantry.backup.verification_failed",
    ] {
        assert!(events.iter().any(|it| it == name), "{name}: {events:?}");
    }
}

#[tokio::test]
async fn gap_in_the_log_ends_the_restore_and_keeps_the_data() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(
        &app,
        &project,
        "create table public.notes as select n from generate_series(1, 50000) n",
    )
    .await;
    let moment = next_second().await;
    until_reached(&app, &project, moment).await;
    sql(&app, &project, "insert into public.notes values (0)").await;
    let segments = objects(&app, &project, "/wal/");
    assert!(segments.len() > 3, "{segments:?}");
    let lost = &segments[segments.len() - 2];
    fs::remove_file(lost).unwrap();
    let body = json!({"recovery_time_target_unix": moment});
    post(&app, &at(&project, "/restore-pitr"), &body)
        .await
        .expect(201);
    let error = until_restored(&app, &project)
        .await
        .expect("the restore ended");
    let name = lost.file_name().unwrap().to_str().unwrap();
    assert!(error.contains("gap") && error.contains(name), "{error}");
    let rows = sql(&app, &project, "select count(*) from public.notes").await;
    assert_eq!(rows, json!([{"count": 50001}]));
}

#[tokio::test]
async fn wrong_key_is_told() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    let sealed = app
        .app
        .backups
        .store()
        .unwrap()
        .key(&project)
        .await
        .unwrap();
    let other = SealingKey::new(&[9; 32]).unwrap();
    let error = ProjectKey::open(&other, &project, &sealed).unwrap_err();
    assert!(matches!(error, BackupError::Key(_)));
    assert!(error.to_string().contains("another sealing key"), "{error}");
    assert!(ProjectKey::open(&app.app.settings.sealing, &project, &sealed).is_ok());
}

#[tokio::test]
async fn unavailable_store_ends_the_archive_at_the_bound_and_a_new_one_follows() {
    let objects = Objects::start().await;
    let backups = BackupOptions {
        place: Some(objects.place("backups")),
        backlog_bytes_max: 4 << 20,
        ..BackupOptions::default()
    };
    let app = backed_up(backups).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    // Windows are of whole seconds: one before the gap, two inside it, and one behind it.
    until_reached(&app, &project, next_second().await).await;
    objects.away(true);
    let fill = "create table if not exists public.filler (t text); insert into public.filler select repeat(md5(n::text), 30) from generate_series(1, 20000) n";
    sql(&app, &project, fill).await;
    let id = id(&app, &project).await;
    let ended = "select ended_reason from archives where project_id = $1 and ended_at is not null";
    let reason = async {
        loop {
            backups::look(&app.app).await.unwrap();
            let rows = app.app.db.query(ended, &[&id.0]).await.unwrap();
            if let Some(row) = rows.first() {
                return row.get::<_, String>(0);
            }
            sleep(LOOK).await;
        }
    };
    let reason = tokio::time::timeout(Duration::from_mins(3), reason)
        .await
        .unwrap();
    assert!(reason.contains("MB were waiting"), "{reason}");
    assert!(app.app.backups.problem(id).await.is_some());
    next_second().await;
    next_second().await;
    objects.away(false);
    until_complete(&app, &project, 2).await;
    until_reached(&app, &project, next_second().await).await;
    let list = get(&app, &at(&project, "")).await.expect(200).json();
    let gap = &list["physical_backup_data"]["gaps"][0];
    assert_eq!(gap["reason"], reason.as_str(), "{list}");
    let second = gap["after_unix"].as_i64().unwrap() + 1;
    assert!(second < gap["before_unix"].as_i64().unwrap(), "{list}");
    let body = json!({"recovery_time_target_unix": second});
    let refused = post(&app, &at(&project, "/restore-pitr"), &body).await;
    let refused = refused.expect(400);
    assert!(refused.message().contains(" or "), "{}", refused.message());
    assert!(
        refused.message().ends_with(&reason),
        "{}",
        refused.message()
    );
    let current = "select part from archives where project_id = $1 and ended_at is null";
    let rows = app.app.db.query(current, &[&id.0]).await.unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 2);
    // The backup of the installation is in the same store, and may have been due meanwhile.
    for error in app.log.take_errors() {
        assert!(
            error.contains("the installation is not backed up"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn verified_backup_is_shown() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    sql(&app, &project, "create table public.notes (n int primary key); insert into public.notes select generate_series(1, 1000)").await;
    until_complete(&app, &project, 1).await;
    assert!(upkeep::verify_now(&app.app, &project).await.unwrap());
    let list = get(&app, &at(&project, "")).await.expect(200).json();
    assert!(list["backups"][0]["verified_at"].is_string(), "{list}");
    assert!(list["backups"][0].get("problem").is_none(), "{list}");
    upkeep::round(&app.app).await.unwrap();
    let metrics = app.app.metrics.render();
    for moment in ["earliest", "latest"] {
        let name = format!("gantry_backup_{moment}_recoverable_timestamp_seconds");
        let series = format!("{name}{{project=\"{project}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        let seconds: f64 = line.expect(&metrics).parse().unwrap();
        let window = format!("{moment}_physical_backup_date_unix");
        let shown = list["physical_backup_data"][&window].as_f64().unwrap();
        assert!(
            (seconds - shown).abs() < 60.0,
            "{moment}: {seconds}, {shown}"
        );
    }
    assert!(metrics.contains("gantry_backup_unverified_projects 0"));
}

#[tokio::test]
async fn download_is_started_by_plain_postgresql() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    sql(
        &app,
        &project,
        "create table public.notes (n int); insert into public.notes values (42)",
    )
    .await;
    let list = until_complete(&app, &project, 1).await;
    let backup = list["backups"][0]["id"].as_i64().unwrap();
    let path = format!("/v2/projects/{project}/backups/download");
    let body = json!({"data": {"type": "project_backup_file_url", "id": backup}});
    let link = post(&app, &path, &body).await.expect(201).json();
    let url = link["data"]["attributes"]["file_url"].as_str().unwrap();
    let rest = url.strip_prefix(crate::support::ISSUER).unwrap();
    app.get(&rest.replace("token=", "token=0"))
        .send()
        .await
        .expect(400);
    let archive = app.get(rest).send().await.expect(200);
    assert_eq!(archive.header("content-type"), Some("application/x-tar"));

    let folder = crate::support::machine::place();
    let mut unpacked = tar::Archive::new(&archive.body[..]);
    unpacked.unpack(&folder).unwrap();
    let data = folder.join("data");
    let owner = gantry_node::supervisor::Account::for_servers().unwrap();
    let chown = Command::new("chown")
        .arg("-R")
        .arg(format!("{}:{}", owner.uid, owner.gid))
        .arg(&folder)
        .status();
    assert!(chown.unwrap().success());
    // A single-user server recovers the log as any other start does.
    let mut postgres = Command::new(engine().program("postgres"));
    postgres
        .arg("--single")
        .arg("-D")
        .arg(&data)
        .arg("postgres")
        .current_dir(&data);
    if let Some((uid, gid)) = owner.process_owner().ids() {
        std::os::unix::process::CommandExt::uid(&mut postgres, uid);
        std::os::unix::process::CommandExt::gid(&mut postgres, gid);
    }
    postgres
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut server = postgres.spawn().unwrap();
    std::io::Write::write_all(
        &mut server.stdin.take().unwrap(),
        b"select n from public.notes\n",
    )
    .unwrap();
    let output = tokio::task::spawn_blocking(move || server.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("42"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn killed_restore_is_completed_by_the_next_process() {
    let mut app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    sql(
        &app,
        &project,
        "create table public.notes (n int); insert into public.notes values (1)",
    )
    .await;
    let moment = next_second().await;
    next_second().await;
    sql(&app, &project, "insert into public.notes values (2)").await;
    until_reached(&app, &project, moment).await;
    for delay in [0, 150, 400, 800, 1500, 2500] {
        let body = json!({"recovery_time_target_unix": moment});
        post(&app, &at(&project, "/restore-pitr"), &body)
            .await
            .expect(201);
        sleep(Duration::from_millis(delay)).await;
        app.node.kill();
        let machine = Arc::clone(&app.node.machine);
        app.node = app.another_in_real_time(options(BackupOptions::default()), machine);
        gantry::control::projects::lease::claim(&app.app)
            .await
            .unwrap();
        gantry::control::projects::reconciler::recover_on_startup(&app.app)
            .await
            .unwrap();
        app.node.start();
        assert_eq!(until_restored(&app, &project).await, None, "{delay}");
        let notes = sql(&app, &project, "select n from public.notes order by n").await;
        assert_eq!(notes, json!([{"n": 1}]), "{delay}");
    }
    let id = id(&app, &project).await;
    let open = "select count(*) from restores where project_id = $1 and finished_at is null";
    let rows = app.app.db.query(open, &[&id.0]).await.unwrap();
    assert_eq!(rows[0].get::<_, i64>(0), 0);
    assert!(
        app.machine
            .clusters
            .kept_clusters()
            .await
            .unwrap()
            .iter()
            .all(|kept| kept.is_replaced)
    );
}

#[tokio::test]
async fn removed_project_leaves_no_objects() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    assert!(!objects(&app, &project, "key").is_empty());
    let path = format!("/v1/projects/{project}");
    app.delete(&path).as_(&app.owner).send().await.expect(200);
    app.until(&project, Status::Removed).await;
    assert_eq!(objects(&app, &project, ""), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn log_of_a_base_can_be_read_without_a_cluster() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    let id = id(&app, &project).await;
    let store = store(&app, id, &project).await;
    let catalog = BackupCatalog::read(&app.app, id).await.unwrap();
    let manifest = Manifest::get(&store, catalog.bases[0].id).await.unwrap();
    let (chain, end) = (LogChain::own(&manifest), Moment::Position(manifest.stop));
    let log = restore::fetch_log(&store, &manifest, &chain, end, None)
        .await
        .unwrap();
    assert_eq!(log.end, manifest.stop);
    assert!(
        manifest.extensions.contains_key("plpgsql"),
        "{:?}",
        manifest.extensions
    );
    assert!(manifest.vault_key.is_some());
}
