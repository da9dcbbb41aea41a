//! Installations of engines and extensions that are killed: nothing incomplete is ever used.

use std::{
    fs::{self, File, FileTimes},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Files of the made-up engine besides its programs.
const FILES: usize = 300;
/// Time limit of one command.
const PATIENCE: Duration = Duration::from_mins(1);

fn gantry(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command
        .args(arguments)
        .arg("--data-dir")
        .arg(home)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command to its end and returns its output.
fn run(home: &Path, arguments: &[&str]) -> String {
    let output = gantry(home, arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Kills a command as soon as `is_reached`. Returns false if it ended before.
#[expect(
    clippy::disallowed_methods,
    reason = "the processes watched here live in real time"
)]
fn kill_when(mut child: Child, is_reached: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_reached() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(start.elapsed() < PATIENCE);
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    true
}

/// Returns the number of files below a folder.
fn files_below(dir: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        count += if path.is_dir() { files_below(&path) } else { 1 };
    }
    count
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// Writes an engine as an unpacked archive: programs that print their version, and files.
fn write_archive(dir: &Path) {
    for folder in ["bin", "lib", "share"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for program in ["postgres", "initdb"] {
        let path = dir.join("bin").join(program);
        fs::write(&path, "#!/bin/sh\necho 'postgres (PostgreSQL) 17.98'\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for number in 0..FILES {
        fs::write(
            dir.join("share").join(format!("{number}.dat")),
            vec![1; 50_000],
        )
        .unwrap();
    }
}

#[test]
fn killed_installation_of_an_engine_is_not_used_and_is_removed_later() {
    let root = tempfile::tempdir().unwrap();
    let (home, archive) = (root.path().join("home"), root.path().join("archive"));
    write_archive(&archive);
    let from = archive.to_str().unwrap();
    let install = ["engine", "install", "supabase-17", "--from", from];
    let engines = home.join("engines");
    let mut killed = 0;
    for files in [1, FILES / 10, FILES / 2, FILES] {
        let before = files_below(&engines);
        let child = gantry(&home, &install).spawn().unwrap();
        if kill_when(child, || files_below(&engines) >= before + files) {
            killed += 1;
            let visible: Vec<_> = names(&engines)
                .into_iter()
                .filter(|name| !name.starts_with('.'))
                .collect();
            // The last moment may be after the folder was moved to its place.
            if visible.is_empty() {
                assert!(!run(&home, &["engine", "list"]).contains("17.98"));
            } else {
                assert_eq!(files_below(&engines.join(&visible[0])), FILES + 3);
            }
        }
    }
    assert!(killed >= 2, "{killed} installations were killed");
    run(&home, &install);
    assert!(run(&home, &["engine", "list"]).contains("17.98"));
    assert_eq!(files_below(&engines.join("17.98-archive")), FILES + 3);

    // A later installation removes interrupted ones that cannot be in progress any more.
    let leftovers = || {
        let mut found = names(&engines);
        found.retain(|name| name.starts_with('.'));
        found
    };
    assert!(!leftovers().is_empty());
    for name in leftovers() {
        let folder = File::open(engines.join(name)).unwrap();
        folder
            .set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH))
            .unwrap();
    }
    run(&home, &install);
    assert_eq!(leftovers(), Vec::<String>::new());
}

#[test]
fn killed_installation_of_an_extension_is_not_offered() {
    let root = tempfile::tempdir().unwrap();
    let (home, from) = (root.path().join("home"), root.path().join("from"));
    fs::create_dir_all(&from).unwrap();
    let scripts: Vec<String> = (0..20).map(|n| format!("big--1.{n}.sql")).collect();
    for script in &scripts {
        fs::write(from.join(script), vec![b' '; 2_000_000]).unwrap();
    }
    fs::write(from.join("big.control"), "default_version = '1.0'\n").unwrap();
    let install = [
        "extension",
        "install",
        "big",
        "--engine",
        "17",
        "--from",
        from.to_str().unwrap(),
    ];
    let target = home.join("extensions/17");
    let mut killed = 0;
    for files in [1, 5, 15] {
        let _ = fs::remove_dir_all(&target);
        let child = gantry(&home, &install).spawn().unwrap();
        if kill_when(child, || files_below(&target) >= files)
            && !target.join("big.control").exists()
        {
            killed += 1;
            // Files under their own names are complete.
            for name in names(&target).iter().filter(|name| !name.starts_with('.')) {
                assert_eq!(
                    fs::metadata(target.join(name)).unwrap().len(),
                    2_000_000,
                    "{name}"
                );
            }
        }
    }
    assert!(killed >= 1, "no installation was killed");
    run(&home, &install);
    let mut installed = names(&target);
    installed.sort();
    let mut expected = scripts.clone();
    expected.push("big.control".to_owned());
    expected.sort();
    assert_eq!(installed, expected);
}
