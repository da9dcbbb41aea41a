//! Test fixture: a data folder per test and running `gantry` processes.

use std::{
    env,
    ffi::OsStr,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::wire::{self, Answer};
use crate::support::machine::{engine, first_uid};

/// Timeout of every wait, far longer than a slow machine needs.
const PATIENCE: Duration = Duration::from_mins(1);
/// Polling interval for states without an event, such as an emptied folder.
const POLL: Duration = Duration::from_millis(10);
/// Database password of the projects created here. The secrets test searches for it.
pub(super) const PASSWORD: &str = "correct horse battery staple";

/// Polls until the closure returns a value.
#[track_caller]
#[expect(
    clippy::disallowed_methods,
    reason = "the processes watched here live in real time"
)]
pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(POLL);
    }
    panic!("not within {PATIENCE:?}: {what}");
}

/// A folder that server accounts can enter, with the data folder in it.
pub(super) struct Machine {
    dir: TempDir,
}

impl Machine {
    /// Creates a machine with the templates of the test run, if there are any, to save startup
    /// time.
    pub(super) fn new() -> Self {
        let machine = Self::unprepared();
        if let Some(templates) = env::var_os("GANTRY_TEST_TEMPLATES") {
            fs::create_dir(machine.data()).unwrap();
            fs::set_permissions(machine.data(), Permissions::from_mode(0o711)).unwrap();
            // Owners and modes are part of a template.
            let copied = Command::new("cp")
                .arg("-a")
                .arg(templates)
                .arg(machine.data().join("templates"))
                .status()
                .unwrap();
            assert!(copied.success());
        }
        machine
    }

    /// Creates a machine without any data.
    pub(super) fn unprepared() -> Self {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        Self { dir }
    }

    /// Working directory of the executable.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Data folder. Its name contains a space to test quoting.
    pub(super) fn data(&self) -> PathBuf {
        self.dir().join("my data")
    }

    /// Returns a command with these arguments and a clean environment.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        for (name, _) in
            env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GANTRY_"))
        {
            command.env_remove(name);
        }
        command
            .current_dir(self.dir())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command on this data folder to its end.
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments)
            .env("GANTRY_DATA_DIR", self.data())
            .env("GANTRY_POSTGRES_BIN", engine().bin_dir())
            .output()
            .unwrap()
    }

    /// Returns the JSON output of a command.
    #[track_caller]
    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--output", "json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// Raises the rate limit of the organization, for tests that poll more often than clients do.
    pub(super) fn raise_limits(&self, gantry: &Gantry) {
        let organization = &gantry.organization;
        let arguments = [
            "limits",
            "set",
            "--org",
            organization,
            "--requests",
            "100000",
        ];
        self.json(&arguments);
    }

    /// Starts `gantry dev` and waits until it is ready.
    pub(super) fn dev(&self, arguments: &[&str]) -> Gantry {
        let mut gantry = self.begin("dev", arguments);
        gantry.greeting = gantry
            .stdout
            .lines_until("Ctrl-C stops everything")
            .unwrap_or_else(|problem| {
                let _ = gantry.child.kill();
                gantry.stderr.finish();
                panic!("{problem}\n{}", gantry.stderr.all())
            });
        gantry.address = field(&gantry.greeting, "API")
            .trim_start_matches("http://")
            .parse()
            .unwrap();
        let variables = fs::read_to_string(self.data().join("dev.env")).unwrap();
        let value = |name: &str| {
            variables
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
                .to_owned()
        };
        (gantry.token, gantry.organization) = (value("GANTRY_TOKEN="), value("GANTRY_ORG="));
        gantry
    }

    /// Starts `gantry serve` and waits until it listens.
    pub(super) fn serve(&self, arguments: &[&str]) -> Gantry {
        let mut gantry = self.begin("serve", arguments);
        let line = gantry.stderr.until_line("listening").pop().unwrap();
        gantry.address = line
            .rsplit_once("address=")
            .unwrap()
            .1
            .trim()
            .parse()
            .unwrap();
        gantry
    }

    /// Starts a server without waiting.
    pub(super) fn begin(&self, command: &str, arguments: &[&str]) -> Gantry {
        let mut command = self.command(&[&[command], arguments].concat());
        // Without it, `gantry dev` would install PostgreSQL.
        command.env("GANTRY_POSTGRES_BIN", engine().bin_dir());
        // No clusters are prepared unless a test requests it, because most tests count clusters.
        command
            .env("GANTRY_WARM_CLUSTERS", "0")
            .env("GANTRY_SPARE_CLUSTERS", "0");
        let uid = first_uid() + 2_500;
        command.env("GANTRY_PROJECT_UID_BASE", uid.to_string());
        // No registry: a test does not depend on the network of the machine.
        command.env("npm_config_registry", "http://127.0.0.1:9");
        command
            .env("GANTRY_LISTEN", "127.0.0.1:0")
            .env("GANTRY_DATA_DIR", self.data())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Gantry {
            stdout: Lines::of(child.stdout.take().unwrap()),
            stderr: Lines::of(child.stderr.take().unwrap()),
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            greeting: Vec::new(),
            token: String::new(),
            organization: String::new(),
        }
    }

    /// Returns the live processes of this data folder's servers, including `initdb`, which only has
    /// the folder in its arguments.
    pub(super) fn servers(&self) -> Vec<Pid> {
        let data = self.data();
        let ours = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let program = fs::read_to_string(entry.path().join("comm")).ok()?;
            let inside =
                fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&data));
            let named = || {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                matches!(program.trim(), "initdb" | "postgres")
                    && String::from_utf8_lossy(&line).contains(&*data.to_string_lossy())
            };
            (inside || named()).then_some(pid)
        };
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(ours)
            .collect()
    }

    /// Returns the postmaster with data directory `<data folder>/<place>/data`.
    pub(super) fn postmaster(&self, place: &str) -> Option<Pid> {
        let data = self.data().join(place).join("data");
        let pid = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid = Pid::from_raw(pid.lines().next()?.trim().parse().ok()?)?;
        let cwd = fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).ok()?;
        (cwd == data).then_some(pid)
    }

    /// Lists a folder of the data folder. A missing folder is empty.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.data().join(folder))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Machine {
    // A failed test must not leave servers running.
    fn drop(&mut self) {
        for pid in self.servers() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the text after a label of the greeting.
#[track_caller]
pub(super) fn field<'a>(greeting: &'a [String], label: &str) -> &'a str {
    let line = greeting
        .iter()
        .find_map(|line| line.trim_start().strip_prefix(label));
    line.unwrap_or_else(|| panic!("no {label} in {greeting:?}"))
        .trim()
}

/// Whether a server runs with this pid.
pub(super) fn alive(pid: Pid) -> bool {
    fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).is_ok()
}

/// A running process.
pub(super) struct Gantry {
    child: Child,
    pub(super) stdout: Lines,
    pub(super) stderr: Lines,
    pub(super) address: SocketAddr,
    /// Output until it was ready.
    pub(super) greeting: Vec<String>,
    pub(super) token: String,
    pub(super) organization: String,
}

impl Gantry {
    pub(super) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        wire::send(self.address, method, path, Some(&self.token), body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.log()))
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    /// Creates a project and returns its ref.
    pub(super) fn create(&self, name: &str) -> String {
        let body =
            json!({ "name": name, "organization_slug": self.organization, "db_pass": PASSWORD });
        let created = self.send("POST", "/v1/projects", Some(&body)).expect(201);
        created["ref"].as_str().unwrap().to_owned()
    }

    pub(super) fn query(&self, project: &str, sql: &str) -> Answer {
        self.send(
            "POST",
            &format!("/v1/projects/{project}/database/query"),
            Some(&json!({ "query": sql })),
        )
    }

    /// Waits until the project answers SQL and is reported as healthy.
    #[track_caller]
    pub(super) fn healthy(&self, project: &str) {
        let answer = until("a project that answers", || {
            Some(self.query(project, "select 1 as one")).filter(|answer| answer.status != 544)
        });
        assert_eq!(answer.expect(201), json!([{ "one": 1 }]), "{}", self.log());
        assert_eq!(
            self.get(&format!("/v1/projects/{project}")).expect(200)["status"],
            "ACTIVE_HEALTHY",
            "{}",
            self.log()
        );
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the process with SIGKILL.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    #[track_caller]
    pub(super) fn stop(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.ended()
    }

    #[track_caller]
    pub(super) fn ended(&mut self) -> ExitStatus {
        let status = until("the end of gantry", || self.child.try_wait().unwrap());
        self.stdout.finish();
        self.stderr.finish();
        status
    }

    /// Returns all lines of standard error so far.
    pub(super) fn log(&self) -> String {
        format!("{}\n{}", self.stdout.all(), self.stderr.all())
    }
}

impl Drop for Gantry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A standard stream, read line by line.
pub(super) struct Lines {
    seen: Arc<Mutex<String>>,
    coming: Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let seen = Arc::new(Mutex::new(String::new()));
        let (sender, coming) = channel();
        let copy = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let mut seen = copy.lock().unwrap();
                seen.push_str(&line);
                seen.push('\n');
                drop(seen);
                // The receiver may be gone.
                let _ = sender.send(line);
            }
        });
        Self {
            seen,
            coming,
            reader: Some(reader),
        }
    }

    /// Returns the lines up to and including the first that contains this text.
    #[track_caller]
    pub(super) fn until_line(&mut self, text: &str) -> Vec<String> {
        self.lines_until(text)
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn lines_until(&mut self, text: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            match self.coming.recv_timeout(PATIENCE) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no {text:?} within {PATIENCE:?}: {lines:?}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("it ended before it said {text:?}: {lines:?}"));
                }
            }
            if lines.last().is_some_and(|line| line.contains(text)) {
                return Ok(lines);
            }
        }
    }

    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }

    pub(super) fn all(&self) -> String {
        self.seen.lock().unwrap().clone()
    }
}

/// Runs another program to its end.
#[track_caller]
pub(super) fn program(name: &str, arguments: &[&OsStr]) -> Output {
    Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}
