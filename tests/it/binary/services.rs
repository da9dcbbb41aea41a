//! Services of projects, run by the executable: the Data API of `gantry dev`, and its process after
//! the end of Gantry.

use std::{fs, path::Path, process::Stdio};

use gantry_node::kits::Service;
use rustix::process::{Pid, Signal};

use super::{
    crash::let_pass,
    dev::{reached, request},
    machine::{Gantry, Machine, alive, until},
};
use crate::services::{install_archive, kits, kits_with};

/// Returns the processes of PostgREST in a data folder.
fn instances(data: &Path) -> Vec<Pid> {
    processes(data, "postgrest")
}

/// Returns the processes with this name that run in a folder of an instance.
fn processes(data: &Path, program: &str) -> Vec<Pid> {
    let run = data.canonicalize().unwrap().join("run");
    let is_instance = |pid: &Pid| {
        let proc = format!("/proc/{}", pid.as_raw_nonzero());
        fs::read_link(format!("{proc}/cwd")).is_ok_and(|cwd| cwd.starts_with(&run))
            && fs::read_to_string(format!("{proc}/comm")).is_ok_and(|name| name.trim() == program)
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(is_instance)
        .collect()
}

/// A line that PostgREST writes at its start and after SIGUSR1.
const LOADED: &str = "Schema cache loaded";

/// Returns the number of lines with this text in the logs of PostgREST.
fn logged(gantry: &Gantry, project: &str, text: &str) -> u64 {
    let sql =
        format!("select count(*) as n from postgrest_logs where event_message like '%25{text}%25'")
            .replace(' ', "+");
    let path = format!("/v1/projects/{project}/analytics/endpoints/logs.all?sql={sql}");
    let answer = gantry.get(&path);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["result"][0]["n"].as_u64().unwrap()
}

/// The flags of a node with PostgREST.
fn with_kits() -> Vec<String> {
    vec!["--services-dir".to_owned(), kits().display().to_string()]
}

#[test]
fn killed_gantry_finds_its_data_api_again_and_stopped_one_leaves_none() {
    let flags = with_kits();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let machine = Machine::new();
    let first = machine.dev(&flags);
    let project = first.create("served");
    first.query(
        &project,
        "create table t (n int); insert into t values (42); grant select on t to anon",
    );
    assert!(
        instances(&machine.data()).is_empty(),
        "nothing runs before the first request"
    );
    assert_eq!(reached(&first, &project, "/rest/v1/t"), "[{\"n\":42}]");
    let before = instances(&machine.data());
    assert_eq!(before.len(), 1);
    until("the line of the start", || {
        (logged(&first, &project, LOADED) == 1).then_some(())
    });
    first.kill();
    assert!(alive(before[0]));
    // It writes a line about the signal, which no Gantry reads now.
    rustix::process::kill_process(before[0], Signal::USR1).unwrap();
    let mut second = machine.dev(&flags);
    let answer = until("the adopted service", || {
        let answer = reached(&second, &project, "/rest/v1/t");
        answer.starts_with('[').then_some(answer)
    });
    assert_eq!(answer, "[{\"n\":42}]");
    assert_eq!(instances(&machine.data()), before, "no second instance");
    let loaded = || logged(&second, &project, LOADED);
    until("the line", || (loaded() >= 2).then_some(()));
    assert!(second.stop(Signal::INT).success());
    assert!(instances(&machine.data()).is_empty());
}

#[test]
fn gantry_killed_during_a_start_leaves_no_second_instance() {
    let flags = with_kits();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let machine = Machine::new();
    let mut gantry = machine.dev(&flags);
    let project = gantry.create("served");
    let folder = machine.data().join(format!("run/{project}.rest"));
    // The files of a start, in the order in which they appear.
    for step in [
        "i",
        "output",
        "i/jwks.json",
        "i/rest.conf",
        "launched",
        "i/s",
        "kit",
    ] {
        // Repeated while the start pauses after the end below. Ends with the server.
        let mut curl = request(&gantry, &project, "/rest/v1/")
            .args(["--retry", "20"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until(step, || folder.join(step).exists().then_some(()));
        gantry.kill();
        curl.wait().unwrap();
        gantry = machine.dev(&flags);
        until(step, || {
            let answer = reached(&gantry, &project, "/rest/v1/");
            answer.contains("swagger").then_some(())
        });
        assert_eq!(instances(&machine.data()).len(), 1, "killed at {step}");
        // The next round needs a start.
        for pid in instances(&machine.data()) {
            rustix::process::kill_process(pid, Signal::KILL).unwrap();
            until("its end", || (!alive(pid)).then_some(()));
        }
        let _ = fs::remove_dir_all(&folder);
    }
    assert!(gantry.stop(Signal::INT).success());
}

#[test]
fn killed_gantry_service_and_server_come_back_together() {
    let flags = with_kits();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let machine = Machine::new();
    let first = machine.dev(&flags);
    let project = first.create("served");
    first.query(
        &project,
        "create table t (n int); insert into t values (42); grant select on t to anon",
    );
    assert_eq!(reached(&first, &project, "/rest/v1/t"), "[{\"n\":42}]");
    let server = machine.postmaster(&format!("projects/{project}")).unwrap();
    let before = instances(&machine.data());
    first.kill();
    for pid in before.iter().chain([&server]) {
        rustix::process::kill_process(*pid, Signal::KILL).unwrap();
        until("its end", || (!alive(*pid)).then_some(()));
    }
    let mut second = machine.dev(&flags);
    until("the row", || {
        let answer = reached(&second, &project, "/rest/v1/t");
        (answer == "[{\"n\":42}]").then_some(())
    });
    assert_eq!(instances(&machine.data()).len(), 1);
    assert!(second.stop(Signal::INT).success());
}

#[test]
fn killed_gantry_leads_an_adopted_realtime_to_its_database_again() {
    let machine = Machine::new();
    let kits = machine.dir().join("kits");
    install_archive(&kits, Service::Realtime);
    let kits = kits.display().to_string();
    let flags = ["--services-dir", &kits];
    let first = machine.dev(&flags);
    let project = first.create("served");
    let process = |gantry: &Gantry| {
        let answer = reached(gantry, &project, "/realtime/v1/api/process");
        answer.split(' ').next().unwrap_or_default().to_owned()
    };
    let before = process(&first);
    assert!(before.parse::<u32>().is_ok(), "{before}");
    let environment = reached(&first, &project, "/realtime/v1/api/environment");
    let port = environment
        .lines()
        .find_map(|line| line.strip_prefix("DB_PORT="));
    let path = format!("/realtime/v1/api/try/reach?{}", port.unwrap());
    assert_eq!(reached(&first, &project, &path), "0");
    first.kill();
    let mut second = machine.dev(&flags);
    until("the adopted process", || {
        (process(&second) == before).then_some(())
    });
    assert_eq!(reached(&second, &project, &path), "0");
    assert!(second.stop(Signal::INT).success());
}

/// Delays after the begin of a deployment, in milliseconds: before, during and after writing the
/// files, fetching packages, the first start and storing the row.
const MOMENTS_MS: [u64; 10] = [0, 10, 20, 40, 70, 110, 160, 240, 400, 700];

#[test]
fn gantry_killed_during_a_deployment_serves_one_whole_version() {
    let kits = kits_with(Service::Functions);
    let kits = kits.display().to_string();
    let flags = ["--services-dir", &kits];
    let machine = Machine::new();
    let mut gantry = machine.dev(&flags);
    let project = gantry.create("served");
    // The text of each version that became live.
    let mut live: Vec<String> = Vec::new();
    for (round, moment) in std::iter::once(2000).chain(MOMENTS_MS).enumerate() {
        let file = machine.dir().join("index.ts");
        fs::write(
            &file,
            format!("Deno.serve(() => new Response('text {round}'))"),
        )
        .unwrap();
        let url = format!(
            "http://{}/v1/projects/{project}/functions/deploy?slug=hello",
            gantry.address
        );
        let mut deployment = std::process::Command::new("curl");
        deployment
            .args([
                "-s",
                "-F",
                "metadata={\"entrypoint_path\":\"index.ts\",\"verify_jwt\":false}",
            ])
            .args(["-F", &format!("file=@{}", file.display())])
            .args([
                "-H",
                &format!("Authorization: Bearer {}", gantry.token),
                &url,
            ])
            .stdout(Stdio::null());
        let mut deployment = deployment.spawn().unwrap();
        if round == 0 {
            assert!(deployment.wait().unwrap().success());
        } else {
            let_pass(moment);
            gantry.kill();
            deployment.wait().unwrap();
            gantry = machine.dev(&flags);
        }
        let path = format!("/v1/projects/{project}/functions/hello");
        let version = gantry.get(&path).json()["version"].as_u64().unwrap();
        let version = usize::try_from(version).unwrap();
        if version == live.len() + 1 {
            live.push(format!("text {round}"));
        }
        assert_eq!(version, live.len(), "killed after {moment} ms");
        until("an answer", || {
            let answer = reached(&gantry, &project, "/functions/v1/hello");
            (answer == live[version - 1]).then_some(())
        });
        until("one process", || {
            (processes(&machine.data(), "deno").len() == 1).then_some(())
        });
    }
    assert!(live.len() > 1, "the last deployments have time enough");
    assert!(gantry.stop(Signal::INT).success());
}

#[test]
fn dev_without_a_registry_says_so_and_goes_on() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    assert!(gantry.stop(Signal::INT).success());
    let log = gantry.log();
    assert!(
        log.contains("The Data API of projects is not available: "),
        "{log}"
    );
    assert!(log.contains("gantry service install rest"), "{log}");
}
