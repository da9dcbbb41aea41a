//! Start, stop, failure and adoption of instances, with a fake program.

use std::fs;

use futures_util::future::join_all;
use gantry::{
    control::{
        projects::lease,
        services::{pressure, state::ServiceState, sweep},
    },
    proxy::unavailable::UnavailableReason,
};
use gantry_node::kits::Service;
use rustix::process::{Pid, Signal, kill_process};

use super::{Floor, get, until};
use crate::support::machine::{kill, processes_under};

#[tokio::test]
async fn concurrent_first_requests_share_one_instance() {
    let floor = Floor::new("ok").await;
    assert_eq!(floor.pid(&floor.node).await, None, "nothing runs before");
    let uses = join_all((0..30).map(|_| floor.acquire())).await;
    let pids: Vec<String> = join_all(
        uses.iter()
            .map(|used| async { get(used.as_ref().unwrap(), "/").await }),
    )
    .await;
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    assert_eq!(get(uses[0].as_ref().unwrap(), "/variables").await, "1 UTC");
}

#[tokio::test]
async fn requests_beyond_the_waiting_room_are_rejected_at_once() {
    let floor = Floor::new("slow").await;
    let id = floor.id(&floor.app.home.project).await;
    let all = (0..10_000).map(|_| super::acquire(&floor.node, id, &floor.app.home.project));
    let release = async {
        until(async || !processes_under(&floor.folder()).is_empty()).await;
        fs::write(floor.kits.join("rest/1.0/go"), "").unwrap();
    };
    let (outcomes, ()) = tokio::join!(join_all(all), release);
    let rejected: Vec<_> = outcomes
        .iter()
        .filter_map(|one| one.as_ref().err())
        .collect();
    assert_eq!(rejected.len(), 10_000 - 64);
    assert!(
        rejected
            .iter()
            .all(|one| one.reason == UnavailableReason::Full)
    );
    // The room is empty again.
    drop(outcomes);
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn cancelled_request_does_not_cancel_the_start() {
    let floor = Floor::new("slow").await;
    let first = Box::pin(floor.acquire());
    tokio::select! {
        _ = first => panic!("it did not wait"),
        () = until(async || !processes_under(&floor.folder()).is_empty()) => {}
    }
    let started = processes_under(&floor.folder())[0].0;
    fs::write(floor.kits.join("rest/1.0/go"), "").unwrap();
    floor.acquire().await.unwrap();
    let pid = floor.pid(&floor.node).await;
    assert_eq!(pid, Some(started.as_raw_nonzero().get()));
}

#[tokio::test]
async fn crash_loop_ends_with_one_start_a_minute() {
    let floor = Floor::new("die").await;
    for pause in [1, 2, 4, 8, 60] {
        let failure = floor.acquire().await.unwrap_err();
        assert_eq!(failure.retry_secs, pause, "{failure:?}");
        let again = floor.acquire().await.unwrap_err();
        assert_eq!(again, failure, "not started again");
        floor.app.advance(pause);
    }
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.retry_secs),
        (UnavailableReason::Crashing, 60)
    );
    // A newer version of the kit works: the next start takes it.
    floor.install("2.0", "ok", "10", "");
    floor.app.advance(60);
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn program_that_never_listens_is_ended() {
    let floor = Floor::new("ok").await;
    floor.install("2.0", "never", "1", "");
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::Failed);
    assert!(processes_under(&floor.folder()).is_empty());
}

#[tokio::test]
async fn killed_instance_that_served_is_replaced_at_once() {
    let floor = Floor::new("ok").await;
    for _ in 0..8 {
        drop(floor.acquire().await.unwrap());
        floor.kill_instance().await;
        // Without a request: the clock of the test stands still, so no pause ends.
        until(async || floor.pid(&floor.node).await.is_some()).await;
    }
    // One that ends before its first request waits for the next one.
    floor.kill_instance().await;
    let id = floor.id(&floor.app.home.project).await;
    let state = || floor.node.app.services.state(id, Service::Rest);
    until(async || state() == ServiceState::Asleep).await;
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn caller_whose_requests_end_processes_is_limited_alone() {
    let floor = Floor::new("ok").await;
    let (hostile, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    for _ in 0..3 {
        let used = floor.acquire_for(hostile).await.unwrap();
        // An answered request is not charged.
        let answered = floor.acquire_for(other).await.unwrap();
        answered.answered();
        floor.kill_instance().await;
        drop((used, answered));
    }
    until(async || floor.pid(&floor.node).await.is_some()).await;
    let limited = floor.acquire_for(hostile).await.unwrap_err();
    let expected = (UnavailableReason::CallerLimited, 60);
    assert_eq!((limited.reason, limited.retry_secs), expected);
    floor.acquire_for(other).await.unwrap();
    floor.acquire().await.unwrap();
    floor.app.advance(59);
    floor.acquire_for(hostile).await.unwrap_err();
    floor.app.advance(1);
    floor.acquire_for(hostile).await.unwrap();
}

#[tokio::test]
async fn service_that_ends_for_many_callers_is_slowed() {
    let floor = Floor::new("ok").await;
    for client in 1..=20 {
        let used = floor.acquire_for([192, 0, 2, client]).await.unwrap();
        floor.kill_instance().await;
        drop(used);
    }
    let id = floor.id(&floor.app.home.project).await;
    let state = || floor.node.app.services.state(id, Service::Rest);
    until(async || matches!(state(), ServiceState::Failed(_))).await;
    floor.app.advance(4);
    assert!(matches!(state(), ServiceState::Failed(_)), "not started");
    floor.app.advance(1);
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn idle_instance_stops_and_used_one_does_not() {
    let floor = Floor::new("ok").await;
    let used = floor.acquire().await.unwrap();
    floor.app.advance(3600);
    sweep::stop_idle(&floor.node.app);
    assert!(floor.pid(&floor.node).await.is_some(), "in use");
    drop(used);
    drop(floor.acquire().await.unwrap());
    floor.app.advance(299);
    sweep::stop_idle(&floor.node.app);
    assert!(floor.pid(&floor.node).await.is_some(), "not idle yet");
    floor.app.advance(1);
    sweep::stop_idle(&floor.node.app);
    until(async || !floor.folder().exists()).await;
    assert!(processes_under(&floor.folder()).is_empty());
    floor.acquire().await.unwrap();
}

#[tokio::test]
async fn instances_that_are_idle_for_longest_are_stopped_under_memory_pressure() {
    let floor = Floor::new("ok").await;
    let projects = super::kits::projects(6);
    for (id, project) in &projects {
        drop(super::acquire(&floor.node, *id, project).await.unwrap());
        floor.app.advance(1);
    }
    let runs = |index: usize| {
        let id = projects[index].0;
        floor.node.app.services.pid(id, Service::Rest).is_some()
    };
    let (id, project) = &projects[0];
    let used = super::acquire(&floor.node, *id, project).await.unwrap();
    // The first one is in use, and the last one was used a moment ago.
    assert_eq!(pressure::stop_longest_idle(&floor.node.app), 4);
    until(async || (1..5).all(|index| !runs(index))).await;
    assert!(runs(0) && runs(5));
    drop(used);
    assert_eq!(pressure::stop_longest_idle(&floor.node.app), 0);
}

#[tokio::test]
async fn restarted_gantry_adopts_the_instance() {
    let mut floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    let pid = floor.pid(&floor.node).await;
    floor.node.kill();
    let second = floor.again();
    lease::claim(&second.app).await.unwrap();
    floor.acquire_on(&second).await.unwrap();
    assert_eq!(floor.pid(&second).await, pid, "one instance");
    // An adopted instance is stopped like any other.
    floor.app.advance(300);
    sweep::stop_idle(&second.app);
    until(async || processes_under(&floor.folder()).is_empty()).await;
}

#[tokio::test]
async fn request_right_after_a_crash_with_all_services_is_answered() {
    let mut floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    for _ in 0..5 {
        floor.node.kill();
        for (pid, _) in processes_under(&floor.folder()) {
            kill(pid).await;
        }
        let mut next = floor.again();
        lease::claim(&next.app).await.unwrap();
        // From here on, the folders that are left are removed.
        next.start();
        let uses = join_all((0..10).map(|_| floor.acquire_on(&next))).await;
        for used in uses {
            get(&used.unwrap(), "/").await;
        }
        floor.node = next;
    }
    floor.node.stop().await;
}

#[tokio::test]
async fn instance_of_another_kit_version_is_not_adopted() {
    let mut floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    let old = floor.pid(&floor.node).await;
    floor.node.kill();
    floor.install("2.0", "ok", "10", "");
    let second = floor.again();
    lease::claim(&second.app).await.unwrap();
    let used = floor.acquire_on(&second).await.unwrap();
    let now = floor.pid(&second).await;
    assert!(now.is_some() && now != old);
    let ours = now.map(|pid| Pid::from_raw(pid).unwrap());
    let left = processes_under(&floor.folder());
    let mains: Vec<_> = left.iter().filter(|(pid, _)| Some(*pid) == ours).collect();
    assert_eq!(mains.len(), 1);
    assert!(
        left.iter()
            .all(|(pid, _)| Some(pid.as_raw_nonzero().get()) != old)
    );
    drop(used);
}

#[tokio::test]
async fn left_instance_of_a_removed_project_is_ended() {
    let mut floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    floor.node.kill();
    let sql = "update projects set desired = 'removed', status = 'REMOVED' where ref = $1";
    let project = floor.app.home.project.clone();
    floor
        .app
        .app
        .db
        .query(sql, &[&project.as_str()])
        .await
        .unwrap();
    let mut second = floor.again();
    lease::claim(&second.app).await.unwrap();
    second.start();
    until(async || !floor.folder().exists()).await;
    assert!(processes_under(&floor.folder()).is_empty());
    second.stop().await;
}

#[tokio::test]
async fn stopped_instance_leaves_no_process_of_a_forking_program() {
    let floor = Floor::new("ok").await;
    let used = floor.acquire().await.unwrap();
    // A connection that stays open holds a child of the program.
    let gantry::proxy::service_proxy::upstreams::UpstreamAddress::Unix(socket) =
        used.upstream().address()
    else {
        panic!("not an instance");
    };
    let connection = socket.connect().await.unwrap();
    until(async || processes_under(&floor.folder()).len() == 2).await;
    drop(used);
    floor.app.advance(300);
    sweep::stop_idle(&floor.node.app);
    until(async || processes_under(&floor.folder()).is_empty()).await;
    drop(connection);
}

#[tokio::test]
async fn missing_kit_and_missing_lease_are_reported() {
    let floor = Floor::new("ok").await;
    fs::rename(floor.kits.join("rest"), floor.kits.join("other")).unwrap();
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::NoKit);
    fs::rename(floor.kits.join("other"), floor.kits.join("rest")).unwrap();
    let program = floor.kits.join("rest/1.0/bin/fake");
    fs::remove_file(&program).unwrap();
    floor.app.advance(1);
    let failure = floor.acquire().await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::BrokenKit);
    let without_lease = floor.again();
    floor.install("1.0", "ok", "10", "");
    let failure = floor.acquire_on(&without_lease).await.unwrap_err();
    assert_eq!(failure.reason, UnavailableReason::Elsewhere);
}

#[tokio::test]
async fn suspended_instance_is_killed_at_its_stop() {
    let floor = Floor::new("ok").await;
    drop(floor.acquire().await.unwrap());
    let pid = Pid::from_raw(floor.pid(&floor.node).await.unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    floor.app.advance(300);
    sweep::stop_idle(&floor.node.app);
    until(async || processes_under(&floor.folder()).is_empty()).await;
}

#[tokio::test]
async fn output_of_a_failed_start_is_reported() {
    let floor = Floor::new("die").await;
    floor.acquire().await.unwrap_err();
    assert_eq!(floor.failure().await, "mode die");
}
