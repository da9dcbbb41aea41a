//! Recovery to many moments: exactly the commits before each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gantry::control::backups::{
    chain::LogChain,
    manifest::Manifest,
    moment::Moment,
    restore::{self, BuildOptions},
    state::BackupOptions,
    upkeep,
    window::BackupCatalog,
};
use gantry_base::{clock::Clock, ids::ProjectRef};
use gantry_node::{
    cluster_driver::ClusterDriver,
    clusters::{ClusterSpec, RecoveredIdentity, RecoveryChecks},
};
use tokio_postgres::Client;

use super::{backed_up, now, until_complete, until_reached};
use crate::support::machine::{SuperuserClients as _, first_uid};

const CLIENTS: usize = 3;
const MOMENTS: usize = 20;

/// A commit as its client saw it, in microseconds since 1970.
struct Acknowledged {
    client: usize,
    sequence: i64,
    begun: i64,
    ended: i64,
}

fn micros() -> i64 {
    Clock::system().now().timestamp_micros()
}

async fn write(client: Client, number: usize, stop: Arc<AtomicBool>) -> Vec<Acknowledged> {
    let mut done = Vec::new();
    for sequence in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begun = micros();
        let sql = format!("insert into public.ledger values ({number}, {sequence})");
        client.batch_execute(&sql).await.unwrap();
        done.push(Acknowledged {
            client: number,
            sequence,
            begun,
            ended: micros(),
        });
    }
    done
}

#[tokio::test]
async fn recovery_has_exactly_the_commits_before_each_moment() {
    let app = backed_up(BackupOptions::default()).await;
    let project = app.real_project().await;
    until_complete(&app, &project, 1).await;
    let clusters = &app.machine.clusters;
    let admin = clusters.admin_session(&project).await.unwrap();
    let table = "create table public.ledger (client int, sequence bigint)";
    admin.batch_execute(table).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for number in 0..CLIENTS {
        let client = clusters.admin_session(&project).await.unwrap();
        writers.push(tokio::spawn(write(client, number, Arc::clone(&stop))));
    }
    let begin = micros();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let end = micros();
    stop.store(true, Ordering::Relaxed);
    let mut ledger = Vec::new();
    for writer in writers {
        ledger.extend(writer.await.unwrap());
    }
    assert!(ledger.len() > 200, "{} commits", ledger.len());
    until_reached(&app, &project, now()).await;
    upkeep::round(&app.app).await.unwrap();

    let id = super::id(&app, &project).await;
    let store = super::faults::store(&app, id, &project).await;
    let catalog = BackupCatalog::read(&app.app, id).await.unwrap();
    let manifest = Manifest::get(&store, catalog.bases[0].id).await.unwrap();
    let driver: Arc<dyn ClusterDriver> = Arc::new(clusters.clone());
    let moments = i64::try_from(MOMENTS).unwrap();
    for number in 0..moments {
        let moment = begin + (end - begin) / moments * number + 1;
        let time = chrono::DateTime::from_timestamp_micros(moment).unwrap();
        let reference = ProjectRef::generate(&app.app.entropy);
        let cluster = ClusterSpec {
            project: reference.clone(),
            uid: first_uid() + 300,
            major: manifest.major,
        };
        let options = BuildOptions {
            chain: &LogChain::own(&manifest),
            moment: Moment::Time(time),
            checks: RecoveryChecks::Quick,
            identity: RecoveredIdentity::New,
        };
        let built = restore::build(&driver, &store, &manifest, &cluster, options)
            .await
            .unwrap();
        let name = format!("{reference}-1");
        clusters.keep_restored(built.cluster, &name).await.unwrap();
        clusters.exchange(&reference, &name).await.unwrap();
        app.machine.up(&reference).await;
        let restored = clusters.admin_session(&reference).await.unwrap();
        for client in 0..CLIENTS {
            let sql = format!(
                "select count(*), coalesce(max(sequence), 0) from public.ledger where client = {client}"
            );
            let row = restored.query_one(&sql, &[]).await.unwrap();
            let (count, last): (i64, i64) = (row.get(0), row.get(1));
            assert_eq!(count, last, "the ledger has a gap");
            for commit in ledger.iter().filter(|commit| commit.client == client) {
                if commit.ended < moment {
                    assert!(commit.sequence <= last, "{} is missing", commit.sequence);
                }
                if commit.begun > moment {
                    assert!(commit.sequence > last, "{} is too new", commit.sequence);
                }
            }
        }
        drop(restored);
        clusters.remove(&reference).await.unwrap();
    }
}
