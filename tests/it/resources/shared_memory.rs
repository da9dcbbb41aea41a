//! System V shared memory of native code: its size, its number, and its end.

use std::{fs, os::unix::process::CommandExt, process::Command};

use gantry_node::supervisor::{namespaces_available, sandbox_available};

use super::{UIDS, attack, limits, project};
use crate::support::machine::{By, Machine, is_root, kill};

/// Returns the ids of shared memory segments that this user created.
fn segments(uid: u32) -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let made = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    made.filter(|columns| columns[9] == uid.to_string())
        .map(|columns| columns[1].to_owned())
        .collect()
}

#[tokio::test]
async fn shared_memory_is_released_after_removal_and_crash() {
    if !is_root() {
        // All projects have the user id of the test, and objects of that user are kept.
        return;
    }
    let machine = Machine::new().await;
    let project = project(&machine, 0).await;
    let uid = UIDS + std::process::id() % 100_000 * 4;
    // Creates objects as native code in the server would.
    let leave = || {
        for kind in [&["-M", "1048576"][..], &["-S", "1"], &["-Q"]] {
            assert!(
                Command::new("ipcmk")
                    .args(kind)
                    .uid(uid)
                    .gid(uid)
                    .output()
                    .unwrap()
                    .status
                    .success()
            );
        }
    };
    let left = || {
        let made = |file: &str| {
            fs::read_to_string(format!("/proc/sysvipc/{file}"))
                .unwrap()
                .matches(&format!(" {uid} "))
                .count()
        };
        (segments(uid).len(), made("sem") + made("msg"))
    };
    // PostgreSQL has one segment, in a namespace of its own where that is permitted.
    let own = usize::from(!namespaces_available());
    assert_eq!(segments(uid).len(), own);
    leave();
    assert_eq!(left().0, own + 1);
    kill(machine.pid(&project).await).await;
    machine.up(&project).await;
    assert_eq!(left(), (own, 0), "after an unclean end");
    leave();
    machine.clusters.remove(&project).await.unwrap();
    assert_eq!(left(), (0, 0), "after the removal");
}

#[tokio::test]
async fn shared_memory_of_a_server_is_bounded_and_ends_with_it() {
    if !sandbox_available() || !is_root() {
        return;
    }
    let machine = Machine::within(limits(), By::Watchdog).await;
    let (greedy, neighbour) = (project(&machine, 0).await, project(&machine, 1).await);
    let uid = UIDS + std::process::id() % 100_000 * 4;
    let denied = i64::from(rustix::io::Errno::PERM.raw_os_error());
    for megabytes in [8192, 201, 1] {
        let outcome = attack(&machine, &greedy, "segment", megabytes).await;
        assert_eq!(outcome, denied, "{megabytes} MB");
    }
    let namespaces = namespaces_available();
    // A namespace has at most 4096. Without one, the machine's are not used up here.
    let wanted = if namespaces { 5000 } else { 10 };
    let made = attack(&machine, &greedy, "segments", wanted).await;
    assert!((1..=4096).contains(&made), "{made}");
    let seen = segments(uid).len();
    assert_eq!(seen == 0, namespaces, "{seen} in the machine's table");
    // Others have room for theirs.
    machine.clusters.stop(&neighbour).await.unwrap();
    machine.up(&neighbour).await;
    machine.clusters.stop(&greedy).await.unwrap();
    assert_eq!(segments(uid), Vec::<String>::new());
    machine.up(&greedy).await;
    let again = attack(&machine, &greedy, "segments", wanted).await;
    assert_eq!(again, made, "none remained in a namespace");
    machine.pid(&greedy).await;
}
