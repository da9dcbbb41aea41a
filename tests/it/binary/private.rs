//! File modes of a used data folder, as another account sees them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use rustix::process::Signal;

use super::machine::Machine;

/// Folders that servers with their own user ids pass through.
const PASSAGES: [&str; 6] = ["control", "functions", "projects", "run", "storage", "tmp"];

/// Whether other accounts may have this mode at this place in the data folder.
fn is_listed(place: &Path, mode: u32) -> bool {
    let parts: Vec<_> = place
        .components()
        .map(|part| part.as_os_str().to_str().unwrap())
        .collect();
    let allowed = match parts.as_slice() {
        // The folder itself, one that servers pass through, and a project's own folder in it.
        [] | ["projects" | "tmp" | "run", _] => 0o711,
        // The socket of a server: its project's group, which its services have.
        ["run", _, ".s.PGSQL.5432"] => 0o770,
        // The name of Gantry's account, which the server of the project sees.
        ["projects", _, "account"] => 0o640,
        [passage] if PASSAGES.contains(passage) => 0o711,
        // Programs, and the certificate that clients trust.
        ["engines" | "kits", ..] => 0o755,
        ["db-ca.pem"] => 0o644,
        _ => 0o700,
    };
    mode & !allowed == 0
}

/// Lists everything below a folder with its mode, without symbolic links.
fn walk(top: &Path, place: &Path, found: &mut Vec<(String, u32)>) {
    let mode = fs::symlink_metadata(top.join(place)).unwrap();
    if mode.is_symlink() {
        return;
    }
    let bits = mode.permissions().mode() & 0o777;
    if !is_listed(place, bits) {
        found.push((place.display().to_string(), bits));
    }
    if mode.is_dir() {
        for entry in fs::read_dir(top.join(place)).unwrap() {
            walk(top, &place.join(entry.unwrap().file_name()), found);
        }
    }
}

#[test]
fn data_folder_is_unreadable_for_other_accounts() {
    let machine = Machine::new();
    // The modes that an earlier version set.
    fs::create_dir_all(machine.data().join("logs")).unwrap();
    fs::set_permissions(machine.data(), fs::Permissions::from_mode(0o711)).unwrap();
    fs::set_permissions(
        machine.data().join("logs"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();

    let mut gantry = machine.dev(&[]);
    let project = gantry.create("used");
    gantry.healthy(&project);
    gantry
        .query(&project, "create table notes as select 1 n")
        .expect(201);
    gantry
        .get(&format!(
            "/v1/projects/{project}/analytics/endpoints/logs.all"
        ))
        .expect(200);
    gantry.stop(Signal::INT);

    let mut open = Vec::new();
    walk(&machine.data(), Path::new(""), &mut open);
    assert!(open.is_empty(), "{open:?}");
    assert!(
        machine.data().join("logs").read_dir().unwrap().count() > 0,
        "there are logs to be private"
    );
    if rustix::process::geteuid().is_root() {
        let find = [
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "find",
        ];
        let readable = [
            "(",
            "-readable",
            "-o",
            "-writable",
            ")",
            "-not",
            "-type",
            "l",
            "-not",
            "-path",
            "*/engines*",
        ];
        let output = Command::new("setpriv")
            .args(find)
            .arg(machine.data())
            .args(readable)
            .output()
            .unwrap();
        let seen = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            seen.lines().all(|line| line.ends_with("/db-ca.pem")),
            "{seen}"
        );
    }
}
