//! A service with a hostile program: nothing outside its own folder and its own database can be
//! reached.

use std::{fs, sync::Arc};

use gantry::{
    app::Settings,
    control::{projects::Status, services::state::ServiceOptions},
    platform::http::Transport,
};
use gantry_node::{
    kits::{Service, shelf::KitShelf},
    supervisor::namespaces_available,
};
use libc::{EACCES, EPERM};
use uuid::Uuid;

use super::{Floor, acquire, get};
use crate::support::{
    TestApp,
    machine::{Machine, host, is_root},
    settings,
};

#[tokio::test]
async fn instance_reaches_neither_the_network_nor_files_nor_processes() {
    let floor = Floor::new("ok").await;
    if !host().launcher.sandbox {
        return;
    }
    let used = floor.acquire().await.unwrap();
    let outside = floor.node.machine.dir().join("secret");
    fs::write(&outside, "x").unwrap();
    let own = floor.folder();
    for (what, argument) in [
        ("read", outside.to_str().unwrap()),
        ("read", "/etc/passwd"),
        ("read", "/etc/shadow"),
        ("read", "/etc/hostname"),
        ("read", "/proc/1/environ"),
        ("write", outside.to_str().unwrap()),
        ("write", "/tmp/gantry-hostile"),
        ("write", own.join("new").to_str().unwrap()),
        (
            "write",
            floor.kits.join("rest/1.0/kit.toml").to_str().unwrap(),
        ),
        ("kill", &std::process::id().to_string()),
        ("kill", "1"),
        ("execute", "/bin/sh"),
        (
            "execute",
            floor.kits.join("rest/1.0/bin/fake").to_str().unwrap(),
        ),
        ("inet", ""),
        ("udp", ""),
    ] {
        let answer = get(&used, &format!("/try/{what}?{argument}")).await;
        let error: i32 = answer.parse().unwrap();
        assert!(
            [EACCES, EPERM, libc::ENOSYS].contains(&error),
            "{what} {argument}: {error}"
        );
    }
    if namespaces_available() {
        let name = get(&used, "/host-name").await;
        assert_eq!(name, floor.app.home.project.as_str());
    }
    // The attempts are real: the program may read its kit.
    let readable = floor.kits.join("rest/1.0/kit.toml");
    let answer = get(&used, &format!("/try/read?{}", readable.display())).await;
    assert_eq!(answer, "0");
}

#[tokio::test]
async fn instance_connects_to_its_own_database_only() {
    if !is_root() {
        return;
    }
    let app = TestApp::new().await;
    let machine = Arc::new(Machine::new().await);
    let mut floor = Floor::on(app, |_| machine.clone());
    let settings = Settings {
        services: ServiceOptions {
            shelf: KitShelf::new(None, floor.kits.clone()),
            launcher: host().launcher,
            ..ServiceOptions::default()
        },
        ..settings(Transport::default(), Uuid::from_u128(11))
    };
    floor.node = floor.app.another_with(settings, machine.clone());
    floor.install(
        "1.0",
        "ok",
        "10",
        "needs = { database = \"authenticator\" }\n",
    );
    floor.node.start();
    let mut projects = Vec::new();
    for name in ["own", "other"] {
        let created = floor
            .node
            .post("/v1/projects")
            .as_(&floor.app.owner)
            .json(&floor.app.new_project(name))
            .send()
            .await
            .expect(201)
            .json();
        let project = created["ref"].as_str().unwrap().parse().unwrap();
        floor.node.until(&project, Status::ActiveHealthy).await;
        projects.push(project);
    }
    let [own, other] = &projects[..] else {
        panic!()
    };
    let used = acquire(&floor.node, floor.id(own).await, own)
        .await
        .unwrap();
    let neighbour = acquire(&floor.node, floor.id(other).await, other)
        .await
        .unwrap();
    let database = |project| machine.home.socket(project).display().to_string();
    let connect = async |path: String| -> i32 {
        get(&used, &format!("/try/connect?{path}"))
            .await
            .parse()
            .unwrap()
    };
    assert_eq!(connect(database(own.as_str())).await, 0, "its own database");
    assert_eq!(connect(database(other.as_str())).await, EACCES);
    let instance = machine
        .home
        .socket_dir(&format!("{other}.rest"))
        .join("i/s");
    assert_eq!(connect(instance.display().to_string()).await, EACCES);
    let config = machine
        .home
        .socket_dir(&format!("{other}.rest"))
        .join("launched");
    let read = get(&used, &format!("/try/read?{}", config.display())).await;
    assert_eq!(read.parse::<i32>().unwrap(), EACCES);
    // Each instance has a user id of its own, and the group of its project.
    let ids = |text: String| {
        text.split(' ')
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, second) = (ids(get(&used, "/").await), ids(get(&neighbour, "/").await));
    assert_ne!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
    assert_ne!(first[0], first[1], "not the user of the database");
    drop((used, neighbour));
    let paused = format!("/v1/projects/{own}/pause");
    floor
        .node
        .post(&paused)
        .as_(&floor.app.owner)
        .send()
        .await
        .expect(200);
    floor.node.until(own, Status::Inactive).await;
    let id = floor.id(own).await;
    super::until(async || floor.node.app.services.pid(id, Service::Rest).is_none()).await;
    floor.node.stop().await;
}
