//! `gantry dev`, as the README tells a stranger to use it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use rustix::process::Signal;
use serde_json::json;

use super::{
    machine::{Gantry, Machine, field},
    wire::Answer,
};

/// Runs what stands in the greeting to be pasted, word for word. Only curl's own configuration file, which makes it show
/// the headers, is ours.
fn paste(machine: &Machine, gantry: &Gantry) -> Answer {
    let begin = gantry.greeting.iter().position(|line| line.contains("curl ")).expect("a curl");
    let lines = gantry.greeting[begin..].iter().take_while(|line| !line.is_empty());
    let text = lines.cloned().collect::<Vec<_>>().join("\n");
    fs::write(machine.dir().join(".curlrc"), "include\nno-progress-meter\nshow-error\n").unwrap();
    let output = Command::new("bash").args(["-c", &text]).current_dir("/").env("CURL_HOME", machine.dir()).output().unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
    Answer::parse(&String::from_utf8(output.stdout).unwrap())
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_first_start_says_what_to_do_and_a_second_finds_it_again() {
    let machine = Machine::new();
    let (env, profile) = (machine.data().join("dev.env"), machine.data().join("profile.yaml"));

    let mut first = machine.dev(&[]);
    let url = format!("http://{}", first.address);
    assert_eq!(field(&first.greeting, "API"), url);
    assert!(field(&first.greeting, "Token").starts_with(&first.token), "{:?}", first.greeting);
    assert!(field(&first.greeting, "Pages").starts_with(&format!("{url}/sign-in/link/")), "{:?}", first.greeting);
    assert!(field(&first.greeting, "CLI").contains(profile.to_str().unwrap()), "{:?}", first.greeting);
    let text = fs::read_to_string(&env).unwrap();
    assert_eq!(text, format!("GANTRY_URL={url}\nGANTRY_TOKEN={}\nGANTRY_ORG={}\n", first.token, first.organization));
    assert_eq!(mode(&env), 0o600, "it holds the token");
    assert_eq!(
        fs::read_to_string(&profile).unwrap(),
        format!("name: gantry\napi_url: {url}\ndashboard_url: {url}/d\nproject_host: localhost\n")
    );

    let created = paste(&machine, &first);
    let project = created.expect(201);
    assert_eq!((created.header("x-ratelimit-limit"), created.header("x-ratelimit-remaining")), ("120", "119"));
    assert_eq!(created.header("x-ratelimit-reset"), "60");
    assert_eq!(created.header("x-request-id").len(), 32);
    assert_eq!(created.header("x-gotrue-id").len(), 36);
    assert_eq!((&project["status"], &project["name"]), (&json!("COMING_UP"), &json!("first")));
    let reference = project["ref"].as_str().unwrap();
    first.healthy(reference);
    assert_eq!(first.query(reference, "create table kept (); select 1 as one").status, 201);
    assert_eq!(first.stop(Signal::INT).code(), Some(0), "{}", first.log());
    assert_eq!(machine.servers(), [], "{}", first.log());

    let mut second = machine.dev(&[]);
    assert_eq!((&second.token, &second.organization), (&first.token, &first.organization));
    assert!(!second.stdout.all().contains(&first.token), "shown once");
    // No word about when: what is asked right after the greeting is answered.
    let kept = second.query(reference, "select count(*)::int as tables from pg_class where relname = 'kept'");
    assert_eq!(kept.expect(201), json!([{ "tables": 1 }]), "{}", second.log());
    second.healthy(reference);
    // The pasted token is right: what is refused is the name.
    let again = paste(&machine, &second);
    assert!(again.expect(400)["message"].as_str().unwrap().contains("already exists"), "{again:?}");
    let organizations = second.get("/v1/organizations").expect(200);
    assert_eq!(organizations[0]["id"], second.organization.as_str());
    assert_eq!(second.stop(Signal::TERM).code(), Some(0), "{}", second.log());
    assert_eq!(machine.servers(), []);
}

#[test]
fn a_project_whose_server_died_while_nobody_looked_is_started_again() {
    let machine = Machine::new();
    let gantry = machine.dev(&[]);
    let project = gantry.create("fallen");
    gantry.healthy(&project);
    gantry.kill();
    let postmaster = machine.postmaster(&format!("projects/{project}")).unwrap();
    rustix::process::kill_process(postmaster, Signal::KILL).unwrap();
    super::machine::until("the end of the server", || (!super::machine::alive(postmaster)).then_some(()));

    let gantry = machine.dev(&[]);
    assert_eq!(gantry.query(&project, "select 1 as one").expect(201), json!([{ "one": 1 }]), "{}", gantry.log());
    gantry.healthy(&project);
}
