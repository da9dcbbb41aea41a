//! Comparison of the schemas of two projects, by a kit that runs in a sandbox of its own.
//!
//! The engine is JavaScript of others, and its input are names and definitions of tenants. It runs
//! under the account of the project's services, without network and without passwords, reaches two
//! databases by `sessions`, and is bounded in time, memory and output.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use gantry_base::ids::ProjectRef;
use gantry_node::{
    kits::{Service, kit::KitError},
    services::launch::ServiceLaunchPlan,
    supervisor::{Confinement, LaunchBounds, ProcessOwner},
};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    time::{Instant, timeout_at},
};

use super::start;
use crate::{
    control::{
        context::ControlContext,
        database_session::{
            OWNER,
            session::ConnectTarget,
            session_socket::{SessionLogin, SessionSocket},
        },
        services::kit_choice::find_kit,
    },
    platform::error::{Context as _, Error},
};
pub use gantry_node::kits::{
    schema_diff::{NAME, SchemaDiffKit, find, install},
    schema_diff_packages::VERSION,
};

/// Number of the account among those of a project: the one after those of services.
const ACCOUNT: u32 = Service::Functions as u32 + 2;
/// Time limit of a comparison.
pub const DIFF_MAX: Duration = Duration::from_mins(1);

/// Time that a comparison waits for another.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Largest output, in bytes.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;
/// Memory of the JavaScript heap, in megabytes.
const HEAP_MB: u32 = 256;
/// Data segment and private mappings of the process, in bytes. The runtime itself needs half.
const DATA_BYTES_MAX: u64 = 768 << 20;
/// Processes and threads of the account.
const PROCESSES_MAX: u64 = 2048;
/// Open descriptors of the process.
const DESCRIPTORS_MAX: u64 = 256;
/// Size of one file that the process writes, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The program of the process.
const PROGRAM: &str = include_str!("compare.mjs");
/// Name of the program in the folder of a comparison.
const PROGRAM_FILE: &str = "compare.mjs";
/// Message of a machine without the kit, with the remedy.
pub const NOT_INSTALLED: &str = "Comparing schemas needs a kit that is not installed; the operator \
    installs it with: gantry service install diff";

/// The two databases to compare.
#[derive(Debug, Clone)]
pub struct SchemaPair {
    /// The project that the process belongs to.
    pub project: ProjectRef,
    /// The database that the SQL is for.
    pub source: ConnectTarget,
    /// The database that it leads to.
    pub desired: ConnectTarget,
    /// The schemas to compare. `None`: all that belong to the owner.
    pub schemas: Option<Vec<String>>,
}

/// Output of the program.
#[derive(Debug, Deserialize)]
struct ComparisonOutput {
    #[serde(default)]
    sql: String,
    /// Objects that the engine does not compare.
    #[serde(default)]
    left: Vec<String>,
    error: Option<String>,
}

/// Returns whether schemas can be compared on this node.
pub async fn is_installed(context: &ControlContext) -> bool {
    programs(context).await.is_ok()
}

/// Returns the runtime's program and the folder of the kit.
async fn programs(context: &ControlContext) -> Result<(PathBuf, SchemaDiffKit), Error> {
    let missing = || Error::NotBuilt(NOT_INSTALLED.to_owned());
    let broken = |error: KitError| Error::NotBuilt(format!("{NOT_INSTALLED}. {error}"));
    let runtime = find_kit(context, Service::Functions);
    let runtime = runtime.map_err(broken)?.ok_or_else(missing)?;
    let shelf = context.control_settings.services.shelf.clone();
    let found = tokio::task::spawn_blocking(move || shelf.find_diff()).await;
    let kit = found.context("looking for a kit")?.map_err(broken)?;
    Ok((runtime.program(), kit.ok_or_else(missing)?))
}

/// Returns the SQL that turns the schema of one database into that of another. Empty if they are
/// equal. Comments at its end name objects that the engine does not compare.
///
/// Errors: [`Error::NotBuilt`] without the kit; [`Error::Rejected`] with the engine's message;
/// [`Error::TimedOut`]; [`Error::Unavailable`] while others are running.
pub async fn compare(context: &ControlContext, pair: &SchemaPair) -> Result<String, Error> {
    let (runtime, kit) = programs(context).await?;
    let waited = tokio::time::timeout(WAIT_MAX, context.services.diffs.acquire()).await;
    let Ok(Ok(_permit)) = waited else {
        return Err(Error::Unavailable {
            what: "The comparison of schemas".into(),
            retry: WAIT_MAX,
        });
    };
    let owner = account(context, &pair.project)?;
    let folder = ComparisonFolder::create(context, &pair.project, owner);
    let folder = folder.context("preparing a comparison of schemas")?;
    let listen = |port: u16, target: &ConnectTarget| {
        let login = SessionLogin::reading(OWNER, "gantry diff", DIFF_MAX);
        SessionSocket::listen(&folder.socket(port), owner, target.clone(), login)
    };
    let _source = listen(1, &pair.source).context("preparing a comparison of schemas")?;
    let _desired = listen(2, &pair.desired).context("preparing a comparison of schemas")?;
    let plan = plan(context, pair, (runtime, kit), &folder, owner);
    let text = run(context, &plan).await?;
    let output: ComparisonOutput =
        serde_json::from_slice(&text).context("reading a comparison of schemas")?;
    match output.error {
        Some(error) => {
            let error: String = error.chars().filter(|c| !c.is_control()).collect();
            Err(Error::Rejected(
                format!("The schemas cannot be compared: {error}").into(),
            ))
        }
        None => Ok(text_of(&output)),
    }
}

/// Returns the account of a process that compares schemas: one of its own beside those of the
/// project's services.
fn account(context: &ControlContext, project: &ProjectRef) -> Result<ProcessOwner, Error> {
    let found = fs::symlink_metadata(context.home.data_directory(project)).ok();
    let step = start::UID_STEP * ACCOUNT;
    let own = found.and_then(|found| found.uid().checked_add(step));
    let own = own.ok_or_else(crate::control::projects::removed)?;
    Ok(ProcessOwner::new(own, own))
}

/// Returns the SQL, followed by comments about what it leaves out.
fn text_of(output: &ComparisonOutput) -> String {
    let sql = output.sql.trim();
    if sql.is_empty() {
        return String::new();
    }
    let mut text = format!("{sql}\n");
    for line in &output.left {
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        text.extend(["-- not compared: ", &line, "\n"]);
    }
    text
}

fn plan(
    context: &ControlContext,
    pair: &SchemaPair,
    (runtime, kit): (PathBuf, SchemaDiffKit),
    folder: &ComparisonFolder,
    owner: ProcessOwner,
) -> ServiceLaunchPlan {
    let inner = folder.inner();
    let (modules, own, place) = (
        kit.folder.to_string_lossy().into_owned(),
        inner.to_string_lossy().into_owned(),
        folder.outer.to_string_lossy().into_owned(),
    );
    let input = json!({"kit": modules, "sockets": place, "schemas": pair.schemas});
    let sockets = [folder.socket(1), folder.socket(2)];
    let [first, second] = sockets.each_ref().map(|path| path.to_string_lossy());
    let program_arguments = vec![
        "run".to_owned(),
        "--no-prompt".to_owned(),
        "--cached-only".to_owned(),
        "--no-remote".to_owned(),
        "--no-lock".to_owned(),
        "--no-config".to_owned(),
        "--no-check".to_owned(),
        "--quiet".to_owned(),
        "--node-modules-dir=manual".to_owned(),
        format!("--v8-flags=--max-old-space-size={HEAP_MB}"),
        "--allow-env".to_owned(),
        // The runtime asks for all three rights to connect to a socket.
        format!("--allow-net=unix:{first},unix:{second}"),
        format!("--allow-read={modules},{own},{first},{second}"),
        format!("--allow-write={first},{second}"),
        inner.join(PROGRAM_FILE).to_string_lossy().into_owned(),
        input.to_string(),
    ];
    let bounds = LaunchBounds {
        data_max: Some(DATA_BYTES_MAX),
        descriptors_max: Some(DESCRIPTORS_MAX),
        processes_max: owner.ids().map(|_| PROCESSES_MAX),
        file_max: Some(FILE_BYTES_MAX),
        ..LaunchBounds::default()
    };
    let sandbox = context.control_settings.services.launcher.sandbox;
    ServiceLaunchPlan {
        program: runtime,
        kit: kit.folder,
        record: false,
        confinement: Confinement::new(owner, bounds, sandbox),
        write: vec![inner.clone()],
        connect: sockets.into(),
        network: true,
        variables: vec![
            format!("DENO_DIR={own}"),
            "DENO_NO_UPDATE_CHECK=1".to_owned(),
            "NO_COLOR=1".to_owned(),
            "TZ=UTC".to_owned(),
        ],
        program_arguments,
        folder: inner,
        ..ServiceLaunchPlan::default()
    }
}

/// Runs the process, and returns its output.
async fn run(context: &ControlContext, plan: &ServiceLaunchPlan) -> Result<Vec<u8>, Error> {
    let doing = "comparing schemas";
    let deadline = Instant::now() + DIFF_MAX;
    let launcher = &context.control_settings.services.launcher;
    let (read, write) = io::pipe().context(doing)?;
    let (problems, complaints) = io::pipe().context(doing)?;
    let mut command = launcher.command(plan.arguments());
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(write)
        .stderr(complaints);
    let child = launcher.run(command).await;
    // Killed and collected on drop.
    let child = super::functions::process::KilledOnDrop(child.context(doing)?);
    let output = pipe::Receiver::from_owned_fd(read.into()).context(doing)?;
    let problems = pipe::Receiver::from_owned_fd(problems.into()).context(doing)?;
    let (mut text, mut problem) = (Vec::new(), Vec::new());
    let mut output = output.take(OUTPUT_BYTES_MAX);
    let mut problems = problems.take(4096);
    let ended = async {
        tokio::join!(
            output.read_to_end(&mut text),
            problems.read_to_end(&mut problem)
        )
    };
    if timeout_at(deadline, ended).await.is_err() {
        return Err(Error::TimedOut(DIFF_MAX));
    }
    drop(child);
    if text.is_empty() {
        let problem = String::from_utf8_lossy(&problem).into_owned();
        return Err(Error::internal(
            "comparing schemas",
            io::Error::other(problem),
        ));
    }
    Ok(text)
}

/// The folder of one comparison, removed on drop.
///
/// ```text
/// run/<ref>.diff.<letters>/    accessible to Gantry's account, passable for the process
///     .s.PGSQL.1, .s.PGSQL.2   the sockets of the two databases
///     i/                       the program and its cache; the process' own account
/// ```
struct ComparisonFolder {
    outer: PathBuf,
}

impl ComparisonFolder {
    fn create(
        context: &ControlContext,
        project: &ProjectRef,
        owner: ProcessOwner,
    ) -> io::Result<Self> {
        let name = format!("{project}.{NAME}.{}", context.entropy.letters(6));
        let folder = Self {
            outer: context.home.socket_dir(&name),
        };
        DirBuilder::new().mode(0o711).create(&folder.outer)?;
        fs::set_permissions(&folder.outer, Permissions::from_mode(0o711))?;
        let inner = folder.inner();
        DirBuilder::new().mode(0o700).create(&inner)?;
        let program = inner.join(PROGRAM_FILE);
        fs::write(&program, PROGRAM)?;
        owner.own(&program)?;
        owner.own(&inner)?;
        Ok(folder)
    }

    fn inner(&self) -> PathBuf {
        self.outer.join("i")
    }

    /// The socket, as clients of PostgreSQL derive it from a folder and a port.
    fn socket(&self, port: u16) -> PathBuf {
        self.outer.join(format!(".s.PGSQL.{port}"))
    }
}

impl Drop for ComparisonFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.outer) {
            tracing::warn!(%error, "the folder of a comparison of schemas was not removed");
        }
    }
}

/// Returns whether a folder of sockets is that of a comparison.
pub(super) fn is_comparison(name: &str) -> bool {
    name.split('.').nth(1) == Some(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_schemas_are_an_empty_text_whatever_is_not_compared() {
        let output = |sql: &str| ComparisonOutput {
            sql: sql.to_owned(),
            left: vec!["cast\nx".to_owned()],
            error: None,
        };
        assert_eq!(text_of(&output(" \n")), "");
        assert_eq!(text_of(&output("a;")), "a;\n-- not compared: castx\n");
    }

    #[test]
    fn folders_of_comparisons_are_recognised() {
        assert!(is_comparison("abcdefghijklmnopqrst.diff.abcdef"));
        assert!(!is_comparison("abcdefghijklmnopqrst.rest"));
        assert!(!is_comparison("abcdefghijklmnopqrst"));
    }
}
