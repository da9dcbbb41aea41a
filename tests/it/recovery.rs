//! Snapshots of the control database in a store, and their recovery into an empty one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::TryStreamExt;
use gantry::{
    control::{
        backups::BackupStore,
        installation::{
            content::{ControlSnapshot, SnapshotName},
            fence::StoreEpoch,
            keeper::{Keeper, KeptInstallation},
            objects::InstallationStore,
            recovery::{self, RecoveryPlan},
        },
    },
    platform::{db::Db, sealing::SealingKey},
};
use gantry_base::clock::{Clock, Entropy};
use gantry_logs::object_store::{ObjectStore, ObjectStoreExt as _, memory::InMemory};
use tokio_postgres::Config;
use uuid::Uuid;

use crate::support::{TestApp, postgres};

/// Longer than the time until a sign of life is renewed.
const RENEWAL: Duration = Duration::from_secs(21);

fn store(objects: &Arc<dyn ObjectStore>, key: u8) -> InstallationStore {
    let sealing = SealingKey::new(&[key; 32]).unwrap();
    let store = BackupStore::new(objects.clone(), Entropy::system());
    InstallationStore::new(store, &sealing).unwrap()
}

/// The installation of an application. The bytes of its sealing key are 7.
struct Fixture {
    app: TestApp,
    objects: Arc<dyn ObjectStore>,
    kept: KeptInstallation,
    keeper: Keeper,
    _home: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let key = SealingKey::new(&[7; 32]).unwrap();
        assert!(key.fits(&app.app.db).await.unwrap());
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let home = tempfile::tempdir().unwrap();
        let kept = KeptInstallation {
            db: app.app.db.clone(),
            home: home.path().to_owned(),
            node: app.app.settings.node,
            host: "web-1".to_owned(),
            clock: app.clock.clone(),
            store: store(&objects, 7),
        };
        Self {
            app,
            objects,
            kept,
            keeper: Keeper::default(),
            _home: home,
        }
    }

    async fn snapshots(&self) -> Vec<SnapshotName> {
        SnapshotName::all(&self.kept.store).await.unwrap()
    }

    async fn plan(&self) -> RecoveryPlan {
        let name = self.snapshots().await.pop().unwrap();
        let snapshot = ControlSnapshot::get(&self.kept.store, name).await.unwrap();
        let (node, files) = recovery::choose_node(&self.kept.store, &snapshot, None)
            .await
            .unwrap();
        RecoveryPlan {
            about: recovery::identify(&self.kept.store).await.unwrap(),
            name,
            snapshot,
            node,
            files,
        }
    }
}

/// Returns the digest of the rows of every table, in any order.
async fn rows(config: &Config) -> BTreeMap<String, String> {
    let client = postgres::connect(config).await;
    let tables = "select relname::text from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' and relpersistence = 'p'";
    let mut found = BTreeMap::new();
    for row in client.query(tables, &[]).await.unwrap() {
        let table: String = row.get(0);
        let sql = format!(
            "select md5(coalesce(string_agg(r, '|' order by r), '')) from (select t::text as r from {table} t) s"
        );
        found.insert(table, client.query_one(&sql, &[]).await.unwrap().get(0));
    }
    found
}

#[tokio::test]
async fn recovered_control_database_equals_original() {
    let fixture = Fixture::new().await;
    let db = &fixture.app.app.db;
    let home = fixture.app.home.project.as_str();
    let foreign = fixture.app.foreign.project.as_str();
    // Text with every kind of escape.
    let odd = "tab\t line\n back\\slash \u{1F980} \\N";
    for (sql, text) in [
        ("update organizations set name = $1", odd),
        (
            "update projects set node = '00000000-0000-0000-0000-000000000001', status = 'ACTIVE_HEALTHY' where ref = $1",
            home,
        ),
        (
            "update projects set node = '00000000-0000-0000-0000-000000000001', status = 'REMOVED', desired = 'removed', held_until = '2100-01-01' where ref = $1",
            foreign,
        ),
    ] {
        db.client()
            .await
            .unwrap()
            .execute(sql, &[&text])
            .await
            .unwrap();
    }
    fixture.keeper.look(&fixture.kept).await.unwrap();
    let plan = fixture.plan().await;
    assert!(plan.snapshot.rows() > 20);

    let config = postgres::empty_database().await;
    let recovered = Db::new(config.clone()).unwrap();
    let now = fixture.app.clock.now();
    let store = &fixture.kept.store;
    // A second attempt does the same, as after a kill.
    for epoch in [3, 4] {
        let projects = recovery::load_database(&recovered, store, &plan, epoch, now)
            .await
            .unwrap();
        assert_eq!(projects.without_backup, [home]);
        assert_eq!(projects.active, [""; 0]);
    }
    let (mut before, mut after) = (rows(&fixture.app.config).await, rows(&config).await);
    for changed in [
        "installation",
        "projects",
        "restores",
        "node_leases",
        "refinery_schema_history",
    ] {
        before.remove(changed);
        after.remove(changed);
    }
    assert_eq!(before, after);

    let client = postgres::connect(&config).await;
    let row = client
        .query_one(
            "select p.status, p.desired, i.store_epoch, r.recovers, r.finished_at is null
             from projects p join restores r on r.project_id = p.id, installation i where p.ref = $1",
            &[&home],
        )
        .await
        .unwrap();
    let found: (&str, &str, i64, bool, bool) =
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    assert_eq!(found, ("RESTORING", "active", 4, true, true));
    let held = "select count(*) from restores r join projects p on p.id = r.project_id where recovers and p.ref = $1 and p.status = 'REMOVED'";
    let held = client.query_one(held, &[&foreign]).await.unwrap();
    assert_eq!(held.get::<_, i64>(0), 1, "it can still be brought back");
    // Identity columns continue, and foreign keys and triggers are back.
    let insert = "insert into users (gotrue_id, email, username, created_at) values (gen_random_uuid(), 'new@example.com', 'new', now())
                  returning id > (select max(id) from users)";
    assert!(
        client
            .query_one(insert, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
    let orphan = "insert into members (organization_id, user_id, role, created_at) values (0, 0, 'owner', now())";
    assert!(client.execute(orphan, &[]).await.is_err());
    let disabled = "select count(*) from pg_trigger where tgenabled <> 'O'";
    assert_eq!(
        client
            .query_one(disabled, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );
}

#[tokio::test]
async fn snapshot_is_written_only_after_a_change() {
    let fixture = Fixture::new().await;
    fixture.keeper.look(&fixture.kept).await.unwrap();
    let first = fixture.snapshots().await;
    assert_eq!(first.len(), 1);
    // Statistics of the preparation may arrive late; the rows are the same nevertheless.
    for _ in 0..3 {
        fixture.app.clock.advance(RENEWAL);
        fixture.keeper.look(&fixture.kept).await.unwrap();
    }
    assert_eq!(fixture.snapshots().await, first);

    let client = postgres::connect(&fixture.app.config).await;
    // The statement reports its own changes at once.
    client
        .batch_execute(
            "update organizations set name = name || '!'; select pg_stat_force_next_flush()",
        )
        .await
        .unwrap();
    fixture.keeper.look(&fixture.kept).await.unwrap();
    let second = fixture.snapshots().await;
    assert_eq!(second.len(), 2);
    assert_eq!(second[1].number, first[0].number + 1);
    // Another process goes on where this one ended, and stores only what is new.
    let written = Keeper::default()
        .write_now(&fixture.kept)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((written.name.number, written.written_bytes), (3, 0));
    // The counters are not trusted for ever.
    fixture.app.clock.advance(Duration::from_mins(11));
    fixture.keeper.look(&fixture.kept).await.unwrap();
    assert_eq!(fixture.keeper.health().problem, None);
    assert_eq!(
        fixture.keeper.health().kept_at,
        Some(fixture.app.clock.now())
    );
}

#[tokio::test]
async fn damaged_snapshot_writes_nothing() {
    let fixture = Fixture::new().await;
    fixture.keeper.look(&fixture.kept).await.unwrap();
    let plan = fixture.plan().await;
    let objects: Vec<_> = fixture.objects.list(None).try_collect().await.unwrap();
    let chunks: Vec<_> = objects
        .iter()
        .filter(|object| object.location.as_ref().contains("/chunks/"))
        .collect();
    assert!(chunks.len() > 3);
    let config = postgres::empty_database().await;
    let recovered = Db::new(config.clone()).unwrap();
    let now = fixture.app.clock.now();
    for (place, chunk) in chunks.iter().enumerate() {
        let path = &chunk.location;
        let content = fixture
            .objects
            .get(path)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        if place % 2 == 0 {
            fixture.objects.delete(path).await.unwrap();
        } else {
            let other: Bytes = content.slice(..content.len() - 1);
            fixture.objects.put(path, other.into()).await.unwrap();
        }
        let loaded = recovery::load_database(&recovered, &fixture.kept.store, &plan, 1, now).await;
        let error = loaded.unwrap_err();
        assert!(error.is_damage(), "{error}");
        fixture.objects.put(path, content.into()).await.unwrap();
    }
    let client = postgres::connect(&config).await;
    let users = client
        .query_one("select count(*) from users", &[])
        .await
        .unwrap();
    assert_eq!(users.get::<_, i64>(0), 0);
    recovery::load_database(&recovered, &fixture.kept.store, &plan, 1, now)
        .await
        .unwrap();
}

#[tokio::test]
async fn server_stops_writing_after_recovery_elsewhere() {
    let fixture = Fixture::new().await;
    fixture.keeper.look(&fixture.kept).await.unwrap();
    StoreEpoch::raise(&fixture.kept.store, "web-2", &Clock::system())
        .await
        .unwrap();
    let refused = fixture.keeper.write_now(&fixture.kept).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("was recovered from its backups on web-2"),
        "{text}"
    );
    fixture.app.clock.advance(RENEWAL);
    fixture.keeper.look(&fixture.kept).await.unwrap_err();
    assert!(fixture.keeper.health().problem.is_some());
    assert_eq!(fixture.snapshots().await.len(), 1);
    assert_eq!(fixture.app.log.take_errors().len(), 1, "logged once");
}

#[tokio::test]
async fn store_of_another_installation_or_key_is_left_alone() {
    let fixture = Fixture::new().await;
    fixture.keeper.look(&fixture.kept).await.unwrap();
    let other_key = store(&fixture.objects, 8);
    let refusal = recovery::identify(&other_key)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refusal.contains("use the file that `gantry key export` wrote"),
        "{refusal}"
    );

    let other = Fixture::new().await;
    // Databases of a test run are copies of one.
    let sql = "update installation set id = gen_random_uuid()";
    other.app.app.db.query(sql, &[]).await.unwrap();
    for (kept, text) in [
        (
            KeptInstallation {
                store: store(&fixture.objects, 7),
                ..other.kept.clone()
            },
            "of another installation",
        ),
        (
            KeptInstallation {
                store: other_key,
                ..fixture.kept.clone()
            },
            "set --sealing-key to the file of the first",
        ),
    ] {
        let refused = Keeper::default().look(&kept).await.unwrap_err().to_string();
        assert!(refused.contains(text), "{refused}");
    }
    assert_eq!(fixture.snapshots().await.len(), 1);
    for log in [&other.app.log, &fixture.app.log] {
        log.take_errors();
    }
    let empty: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let none = recovery::identify(&store(&empty, 7))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        none.contains("the store has no backups of an installation"),
        "{none}"
    );
}

#[tokio::test]
async fn recovery_of_several_nodes_asks_for_one() {
    let fixture = Fixture::new().await;
    let second = KeptInstallation {
        node: Uuid::from_u128(2),
        host: "web-2".to_owned(),
        ..fixture.kept.clone()
    };
    fixture.keeper.look(&fixture.kept).await.unwrap();
    Keeper::default().look(&second).await.unwrap();
    let name = fixture.snapshots().await.pop().unwrap();
    let store = &fixture.kept.store;
    let snapshot = ControlSnapshot::get(store, name).await.unwrap();
    let refused = recovery::choose_node(store, &snapshot, None).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("--node") && text.contains("web-2"), "{text}");
    let named = recovery::choose_node(store, &snapshot, Some(second.node)).await;
    assert_eq!(named.unwrap().1.unwrap().host, "web-2");
    assert!(
        recovery::choose_node(store, &snapshot, Some(Uuid::from_u128(9)))
            .await
            .is_err()
    );
}
