//! The drill: everything but the store of backups is lost, and the installation comes back on an
//! empty machine.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use chrono::{DateTime, Utc};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{
    acknowledged::{Writer, now},
    crash::{let_pass, rows},
    machine::{Gantry, Machine, until},
};
use crate::traps;

const PASSPHRASE: &str = "four random words here";
const SOURCE: &str = "Deno.serve(() => new Response('hi'))";
/// Moments of a kill after the start of a recovery, in milliseconds: before, during and after the
/// control cluster is made, and the rows are written.
const MOMENTS_MS: [u64; 6] = [30, 150, 500, 1200, 2500, 4000];

/// A machine with its backups elsewhere.
struct Site {
    machine: Machine,
    elsewhere: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        Self {
            machine: Machine::new(),
            elsewhere: tempfile::tempdir_in("/tmp").unwrap(),
        }
    }

    fn store(&self) -> String {
        self.path("store")
    }

    fn path(&self, name: &str) -> String {
        self.elsewhere.path().join(name).display().to_string()
    }

    fn serve(&self) -> Gantry {
        let folder = self.store();
        let options = ["--backups-folder", &folder, "--backups-interval", "1"];
        self.machine.serve(&options)
    }

    /// Creates a user and returns a token of it.
    fn user(&self, email: &str) -> String {
        self.machine.json(&["user", "create", "--email", email]);
        let created = ["token", "create", "--email", email, "--name", "drill"];
        let created = self.machine.json(&created);
        created["token"].as_str().unwrap().to_owned()
    }

    /// Makes the requests of `gantry` those of an owner of an organization.
    fn with_owner(&self, mut gantry: Gantry) -> Gantry {
        gantry.token = self.user("ops@example.com");
        let owner = ["--owner", "ops@example.com"];
        let create = ["org", "create", "--name", "Ops", "--slug", "ops"];
        self.machine.json(&[&create[..], &owner].concat());
        "ops".clone_into(&mut gantry.organization);
        gantry
    }

    /// Exports the sealing key.
    fn export_key(&self) -> String {
        let (file, passphrase) = (self.path("key.json"), self.path("passphrase"));
        fs::write(&passphrase, format!("{PASSPHRASE}\n")).unwrap();
        let export = ["key", "export", "--out", &file];
        self.machine
            .json(&[&export[..], &["--passphrase-file", &passphrase]].concat());
        file
    }

    /// Kills all servers and removes the data folder.
    fn lose(&self, gantry: Gantry) {
        gantry.kill();
        for pid in self.machine.servers() {
            let _ = kill_process(pid, Signal::KILL);
        }
        until("the end of all servers", || {
            self.machine.servers().is_empty().then_some(())
        });
        // Templates are made from installed programs, and save the time of a test.
        let kept = self.machine.dir().join("templates");
        fs::rename(self.machine.data().join("templates"), &kept).unwrap();
        fs::remove_dir_all(self.machine.data()).unwrap();
        fs::create_dir(self.machine.data()).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(self.machine.data(), open).unwrap();
        fs::rename(kept, self.machine.data().join("templates")).unwrap();
    }

    fn recover(&self, key: &str, options: &[&str]) -> Output {
        let (store, passphrase) = (self.store(), self.path("passphrase"));
        let recover = [
            "recover",
            "--from",
            &store,
            "--key",
            key,
            "--passphrase-file",
        ];
        self.machine
            .run(&[&recover[..], &[&passphrase], options].concat())
    }

    /// Waits until the server has written a snapshot with everything that happened so far.
    fn until_kept(&self) {
        let folder = "store/objects/installation/snapshots";
        let folder = self.elsewhere.path().join(folder);
        let after = now().timestamp();
        // Names of snapshots have whole seconds.
        until("the next second", || {
            (now().timestamp() > after).then_some(())
        });
        // A later change makes a later snapshot necessary.
        let email = format!("mark-{after}@example.com");
        self.machine.json(&["user", "create", "--email", &email]);
        until("a snapshot in the store", || {
            let names = fs::read_dir(&folder).ok()?.flatten();
            let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let taken = names.filter_map(|name| name.rsplit_once('-')?.1.parse().ok());
            taken.max().filter(|at: &i64| *at > after)
        });
    }
}

/// Returns the moment up to which every commit of a project is in the store, if a backup is
/// complete.
fn archived_until(machine: &Machine, project: &str) -> Option<DateTime<Utc>> {
    let sql = format!(
        "select a.shipped_at from archives a join projects p on p.id = a.project_id
         where p.ref = '{project}' and a.ended_at is null
           and exists (select from base_backups b where b.archive_id = a.id and b.status = 'COMPLETED')"
    );
    let rows = rows(machine, "control", "gantry", &sql);
    rows.first().map(|row| row.get(0))
}

/// Returns the contents of the files of a project's functions.
fn sources(machine: &Machine, project: &str) -> Vec<String> {
    let below = |folder: PathBuf| {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    below(machine.data().join("functions").join(project))
        .flat_map(|deployment| below(deployment.join("source")))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect()
}

/// Returns the stored verifier of the owner's password.
fn verifier(machine: &Machine, project: &str) -> String {
    let sql = "select rolpassword from pg_authid where rolname = 'postgres'";
    rows(machine, project, "supabase_admin", sql)[0].get(0)
}

fn system_id(gantry: &Gantry, project: &str) -> Value {
    let sql = "select system_identifier::text as id from pg_control_system()";
    gantry.query(project, sql).expect(201)[0]["id"].clone()
}

#[track_caller]
fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

/// Plants code of a tenant in every place of a project's database.
fn plant_traps(gantry: &Gantry, project: &str) {
    let version = gantry.query(project, "show server_version").expect(201);
    let version = version[0]["server_version"].as_str().unwrap();
    let major = version.split('.').next().unwrap().parse().unwrap();
    gantry.query(project, &traps::script(major)).expect(201);
}

#[test]
fn installation_is_recovered_from_its_store_alone() {
    let site = Site::new();
    let gantry = site.with_owner(site.serve());
    let developer = site.user("dev@example.com");
    let member = [
        "member",
        "add",
        "--org",
        "ops",
        "--email",
        "dev@example.com",
        "--role",
        "developer",
    ];
    site.machine.json(&member);
    let key = site.export_key();
    let projects: Vec<String> = ["one", "two", "paused"]
        .map(|name| gantry.create(name))
        .into();
    for project in &projects {
        gantry.healthy(project);
    }
    let function = json!({ "slug": "hello", "name": "hello", "body": SOURCE });
    let functions = format!("/v1/projects/{}/functions", projects[0]);
    gantry.send("POST", &functions, Some(&function)).expect(201);
    assert_eq!(sources(&site.machine, &projects[0]), [SOURCE]);
    gantry
        .query(&projects[2], "create table kept as select 42 as n")
        .expect(201);
    plant_traps(&gantry, &projects[1]);
    for project in &projects {
        let begun = now();
        until("a backup with all of its log", || {
            archived_until(&site.machine, project).filter(|until| *until > begun)
        });
    }
    let pause = format!("/v1/projects/{}/pause", projects[2]);
    gantry.send("POST", &pause, None);
    until("a paused project", || {
        let shown = gantry.get(&format!("/v1/projects/{}", projects[2])).json();
        (shown["status"] == "INACTIVE").then_some(())
    });
    let keys = |gantry: &Gantry| {
        gantry
            .get(&format!(
                "/v1/projects/{}/api-keys?reveal=true",
                projects[0]
            ))
            .expect(200)
    };
    let keys_before = keys(&gantry);
    let ids_before: Vec<Value> = projects[..2]
        .iter()
        .map(|project| system_id(&gantry, project))
        .collect();
    let verifier_before = verifier(&site.machine, &projects[0]);
    site.until_kept();
    let writers: Vec<Writer> = projects[..2]
        .iter()
        .map(|project| Writer::begin(&gantry, project))
        .collect();
    // Until commits of the writers are in the store, and some are not.
    let begun = now();
    let archived: Vec<DateTime<Utc>> = projects[..2]
        .iter()
        .map(|project| {
            until("an archived part of the ledger", || {
                let until = archived_until(&site.machine, project)?;
                (until > begun + chrono::TimeDelta::seconds(3)).then_some(until)
            })
        })
        .collect();
    site.lose(gantry);
    let ledgers: Vec<_> = writers.into_iter().map(Writer::end).collect();

    let report = site.recover(&key, &["--no-wait", "--output", "json"]);
    assert!(report.status.success(), "{report:?}");
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["active"], json!(projects[..2]), "{report}");
    assert_eq!(report["paused"], json!(projects[2..]), "{report}");
    assert_eq!(
        (&report["without_backup"], &report["unknown"]),
        (&json!([]), &json!([]))
    );

    let mut gantry = site.serve();
    let made = [
        "token",
        "create",
        "--email",
        "ops@example.com",
        "--name",
        "after",
    ];
    gantry.token = site.machine.json(&made)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    for (project, (ledger, archived)) in projects.iter().zip(ledgers.iter().zip(archived)) {
        gantry.healthy(project);
        let found = gantry
            .query(project, "select n from ledger order by n")
            .expect(201);
        let found: Vec<i64> = found
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["n"].as_i64().unwrap())
            .collect();
        let unique: BTreeSet<i64> = found.iter().copied().collect();
        assert_eq!(unique.len(), found.len(), "nothing is there twice");
        let last = found.last().copied().unwrap_or(0);
        for (number, at) in ledger {
            let is_found = unique.contains(number);
            assert!(
                is_found || *at > archived,
                "{number} of {at} is lost, archived until {archived}"
            );
            // Found commits have no gap: each commit before one of them is found.
            assert!(
                is_found || *number > last,
                "{number} is lost, and {last} is not"
            );
        }
        assert!(!found.is_empty());
    }
    for (project, before) in projects.iter().zip(&ids_before) {
        assert_ne!(system_id(&gantry, project), *before);
    }
    assert_ne!(
        system_id(&gantry, &projects[0]),
        system_id(&gantry, &projects[1])
    );
    for sql in traps::SPRUNG {
        let sprung = &rows(&site.machine, &projects[1], "supabase_admin", sql)[0];
        assert_eq!(sprung.get::<_, Option<String>>(0), None);
    }
    assert_eq!(keys(&gantry), keys_before);
    let own = gantry.token.clone();
    gantry.token = developer;
    gantry
        .get(&format!("/v1/projects/{}", projects[0]))
        .expect(200);
    gantry.token = own;
    assert_eq!(sources(&site.machine, &projects[0]), [SOURCE]);
    assert_eq!(verifier(&site.machine, &projects[0]), verifier_before);

    let paused = format!("/v1/projects/{}", projects[2]);
    assert_eq!(gantry.get(&paused).expect(200)["status"], "INACTIVE");
    gantry.send("POST", &format!("{paused}/restore"), None);
    gantry.healthy(&projects[2]);
    assert_eq!(
        gantry.query(&projects[2], "select n from kept").expect(201),
        json!([{ "n": 42 }])
    );
    // The next loss is covered again.
    site.until_kept();
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
}

#[test]
fn recovery_is_refused_with_the_remedy() {
    let site = Site::new();
    let mut gantry = site.with_owner(site.serve());
    let key = site.export_key();
    site.until_kept();

    let occupied = stderr(&site.recover(&key, &["--no-wait"]));
    assert!(occupied.contains("is not empty: it has"), "{occupied}");
    let other = Machine::new();
    let run = |key: &str, store: &str, options: &[&str]| {
        let passphrase = site.path("passphrase");
        let recover = [
            "recover",
            "--from",
            store,
            "--key",
            key,
            "--passphrase-file",
            &passphrase,
        ];
        other.run(&[&recover[..], options].concat())
    };
    let store = site.store();
    let alive = stderr(&run(&key, &store, &[]));
    assert!(alive.contains("stop it there first"), "{alive}");

    let strange = site.path("strange-key");
    fs::write(&strange, "ab".repeat(32)).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&strange, open).unwrap();
    let wrong = stderr(&run(&strange, &store, &["--no-wait"]));
    assert!(
        wrong.contains("use the file that `gantry key export` wrote"),
        "{wrong}"
    );
    let no_store = stderr(&run(&key, &site.path("nothing"), &["--no-wait"]));
    assert!(
        no_store.contains("is not a folder of backups"),
        "{no_store}"
    );
    fs::write(site.path("passphrase"), "another passphrase").unwrap();
    let phrase = stderr(&run(&key, &store, &["--no-wait"]));
    assert!(phrase.contains("the passphrase is wrong"), "{phrase}");
    fs::write(site.path("passphrase"), PASSPHRASE).unwrap();
    let written = other.names(".");
    assert!(
        written.iter().all(|name| name == "templates"),
        "{written:?}"
    );

    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    // After a clean end there is nothing to wait for.
    let recovered = run(&key, &store, &[]);
    assert!(recovered.status.success(), "{recovered:?}");
    assert!(!String::from_utf8_lossy(&recovered.stderr).contains("Waiting"));
    // The first server finds out that it was replaced.
    let replaced = site.serve();
    until("the end of its backups", || {
        replaced
            .log()
            .contains("was recovered from its backups")
            .then_some(())
    });
    assert_eq!(
        other.json(&["user", "create", "--email", "new@example.com"])["email"],
        "new@example.com"
    );
}

#[test]
fn recovery_from_half_a_store_uses_the_newest_complete_snapshot() {
    let site = Site::new();
    let mut gantry = site.with_owner(site.serve());
    let key = site.export_key();
    site.until_kept();
    let folder = site.elsewhere.path().join("store/objects/installation");
    let names = |folder: &Path| -> BTreeSet<PathBuf> {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    };
    let before = names(&folder.join("chunks"));
    site.user("late@example.com");
    site.until_kept();
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    let verified = site
        .machine
        .run(&["backup", "verify", "--backups-folder", &site.store()]);
    assert!(verified.status.success(), "{verified:?}");

    let new: Vec<PathBuf> = names(&folder.join("chunks"))
        .difference(&before)
        .cloned()
        .collect();
    assert!(!new.is_empty());
    for path in &new {
        remove(path);
    }
    let verified = site
        .machine
        .run(&["backup", "verify", "--backups-folder", &site.store()]);
    assert!(
        stderr(&verified).contains("cannot be recovered"),
        "{verified:?}"
    );
    fs::rename(site.machine.data(), site.machine.dir().join("lost")).unwrap();
    let recovered = site.recover(&key, &[]);
    assert!(recovered.status.success(), "{recovered:?}");
    let said = String::from_utf8_lossy(&recovered.stderr).into_owned();
    assert!(said.contains("Trying an older one"), "{said}");
    let late = site
        .machine
        .run(&["token", "list", "--email", "late@example.com"]);
    assert!(stderr(&late).contains("not found"), "{late:?}");
    site.machine
        .json(&["token", "list", "--email", "ops@example.com"]);
}

#[test]
fn recovery_that_is_killed_at_any_moment_continues() {
    let site = Site::new();
    let mut gantry = site.with_owner(site.serve());
    let key = site.export_key();
    site.until_kept();
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
    fs::rename(site.machine.data(), site.machine.dir().join("lost")).unwrap();

    let (store, passphrase) = (site.store(), site.path("passphrase"));
    let arguments = [
        "recover",
        "--from",
        &store,
        "--key",
        &key,
        "--passphrase-file",
        &passphrase,
    ];
    let mut interrupted = 0;
    for moment in MOMENTS_MS {
        let mut child = site
            .machine
            .command(&arguments)
            .env("GANTRY_DATA_DIR", site.machine.data())
            .env(
                "GANTRY_POSTGRES_BIN",
                crate::support::machine::engine().bin_dir(),
            )
            .spawn()
            .unwrap();
        let_pass(moment);
        let ended = child.try_wait().unwrap();
        if ended.is_some() {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        interrupted += 1;
        if site.machine.data().join("recovering").exists() {
            let refused = site
                .machine
                .run(&["token", "list", "--email", "ops@example.com"]);
            assert!(
                stderr(&refused).contains("run `gantry recover` again"),
                "{refused:?}"
            );
        }
    }
    assert!(interrupted > 0);
    let data = site.machine.data();
    let is_complete = data.join("sealing-key").exists() && !data.join("recovering").exists();
    if !is_complete {
        let recovered = site.recover(&key, &[]);
        assert!(recovered.status.success(), "{recovered:?}");
    }
    let tokens = site
        .machine
        .json(&["token", "list", "--email", "ops@example.com"]);
    assert_eq!(tokens.as_array().map(Vec::len), Some(1), "{tokens}");
}
