//! `cargo bench --bench platform`: the cost of the platform's schemas in a new project. Fails if a
//! project is ready later than [`READY_RATIO_MAX`] times a project without them, or takes more than
//! [`DISK_RATIO_MAX`] times its disk space.
//!
//! Both kinds are copied from templates of the same engine in interleaved rounds. The template
//! without the platform has the roles and grants only. *Warm* is the time from prepared files to
//! the first answer, which a project with a warm cluster takes; *cold* includes the copy of the
//! template. `GANTRY_BENCH_ROUNDS` makes it shorter, `GANTRY_TEST_ENGINES` is the folder of
//! engines.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    error::Error,
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use gantry_base::{clock::Entropy, ids::ProjectRef};
use gantry_node::clusters::platform_roles::SUPERUSER;
use gantry_node::{
    clusters::{ClusterSpec, CopyPriority, Home, Host, LocalDriver, superuser},
    engines::{Engine, Installed, LayoutOptions, OldVersions},
    supervisor::{Account, Launcher},
};
use tokio_postgres::{Config, NoTls};

const ROUNDS: usize = 15;
/// Maximum ratio of the times until the first answer to SQL, with a warm cluster.
const READY_RATIO_MAX: f64 = 1.15;
/// Maximum ratio of the sizes of data folders after the first answer.
const DISK_RATIO_MAX: f64 = 1.5;
const READY_PATIENCE: Duration = Duration::from_mins(1);
/// First user id of the projects, if this process may choose it.
const FIRST_UID: u32 = 710_000;
/// The contents of a template before the platform's schemas.
const ROLES: [&str; 2] = [
    include_str!("../crates/node/src/clusters/recipes/project.sql"),
    include_str!("../crates/node/src/clusters/recipes/grants.sql"),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let engine = engine()?;
    println!("PostgreSQL {} from {}", engine.text(), engine.origin());
    let with = driver(dir.path(), "with", &engine)?;
    let without = driver(dir.path(), "without", &engine)?;
    with.prepare().await?;
    let name = with.template_name(&engine)?;
    let complete = dir.path().join("templates-with").join(&name);
    let bare = dir.path().join("templates-without").join(&name);
    make_bare_template(&engine, &complete, dir.path(), &bare).await?;
    without.prepare().await?;

    let rounds = std::env::var("GANTRY_BENCH_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(ROUNDS);
    let mut contests = [
        ("without the platform", &without, Vec::new()),
        ("with the platform", &with, Vec::new()),
    ];
    for round in 0..=rounds {
        for (_, clusters, creations) in &mut contests {
            let creation = create_once(clusters, engine.major()).await?;
            // The first round fills caches.
            if round > 0 {
                creations.push(creation);
            }
        }
    }
    println!("{rounds} interleaved rounds, medians, until the first answer");
    println!(
        "  {:<22} {:>10} {:>10} {:>10}",
        "", "warm ms", "cold ms", "disk MB"
    );
    let [without, with] = contests.map(|(name, _, creations)| {
        let medians = Creation {
            warm: median(creations.iter().map(|creation| creation.warm)),
            cold: median(creations.iter().map(|creation| creation.cold)),
            megabytes: median(creations.iter().map(|creation| creation.megabytes)),
        };
        let Creation {
            warm,
            cold,
            megabytes,
        } = medians;
        println!("  {name:<22} {warm:10.0} {cold:10.0} {megabytes:10.1}");
        medians
    });
    let ready = with.warm / without.warm;
    let cold = with.cold / without.cold;
    let disk = with.megabytes / without.megabytes;
    println!("  {:<22} {ready:10.2} {cold:10.2} {disk:10.2}", "ratio");
    if ready > READY_RATIO_MAX || disk > DISK_RATIO_MAX {
        return Err(format!("more than {READY_RATIO_MAX} or {DISK_RATIO_MAX}").into());
    }
    Ok(())
}

/// Cost of one project.
struct Creation {
    /// Milliseconds from prepared files to the first answer.
    warm: f64,
    /// Milliseconds from the copy of the template to the first answer.
    cold: f64,
    /// Size of the data folder after the first answer.
    megabytes: f64,
}

/// Returns the default engine for new projects.
fn engine() -> Outcome<Engine> {
    let folder = std::env::var_os("GANTRY_TEST_ENGINES").map_or_else(
        || PathBuf::from("/var/tmp/gantry-test-engines"),
        PathBuf::from,
    );
    let engines = Installed::find(None, &folder)?
        .laid_out(&LayoutOptions::beside(&folder), &Entropy::system())
        .offer(OldVersions::Offered)?;
    Ok(engines.default_engine().clone())
}

fn driver(dir: &Path, name: &str, engine: &Engine) -> Outcome<LocalDriver> {
    let home = Home::open(&dir.join(name), Account::for_servers()?)?;
    let templates = dir.join(format!("templates-{name}"));
    fs::create_dir(&templates)?;
    let host = Host {
        engine: engine.clone(),
        launcher: Launcher {
            program: env!("CARGO_BIN_EXE_gantry").into(),
            ..Launcher::default()
        },
    };
    let home = Arc::new(home.with_templates(templates)?);
    Ok(LocalDriver::open(home, host, Entropy::system()))
}

/// Makes a template with the configuration of `complete`, and without the platform.
async fn make_bare_template(
    engine: &Engine,
    complete: &Path,
    dir: &Path,
    bare: &Path,
) -> Outcome<()> {
    let account = Account::for_servers()?;
    let own = |path: &Path| chown(path, Some(account.uid), Some(account.gid));
    let (data, socket) = (dir.join("bare"), dir.join("bare-socket"));
    for folder in [&data, &socket] {
        fs::create_dir(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        own(folder)?;
    }
    let program = |name: &str, arguments: &[&str]| -> Outcome<()> {
        let mut command = Command::new(engine.program(name));
        command.arg("-D").arg(&data).args(arguments);
        command
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if Account::current()?.uid == 0 {
            command.uid(account.uid).gid(account.gid);
        }
        let status = command.status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{name} ended with {status}").into())
        }
    };
    program(
        "initdb",
        &[
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--wal-segsize=1",
            "--auth=trust",
            "-U",
            SUPERUSER,
        ],
    )?;
    fs::copy(
        complete.join("postgresql.conf"),
        data.join("postgresql.conf"),
    )?;
    let options = format!("-c unix_socket_directories={}", socket.display());
    program(
        "pg_ctl",
        &["start", "-w", "-l", "/dev/null", "-o", &options],
    )?;
    let mut config = Config::new();
    config.host_path(&socket).user(SUPERUSER).dbname("postgres");
    let (client, connection) = config.connect(NoTls).await?;
    let connection = tokio::spawn(connection);
    for sql in ROLES {
        client.batch_execute(sql).await?;
    }
    if engine.has_extension("pg_stat_statements") {
        client
            .batch_execute("create extension pg_stat_statements schema extensions")
            .await?;
    }
    drop(client);
    connection.await??;
    program("pg_ctl", &["stop", "-m", "fast"])?;
    for file in ["pg_hba.conf", "pg_ident.conf"] {
        fs::copy(complete.join(file), data.join(file))?;
    }
    fs::remove_file(data.join("postmaster.opts"))?;
    if data.join("log").exists() {
        fs::remove_dir_all(data.join("log"))?;
    }
    fs::rename(data, bare)?;
    Ok(())
}

/// Creates a project and measures until it answers SQL. Removes the project.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock"
)]
async fn create_once(clusters: &LocalDriver, major: u16) -> Outcome<Creation> {
    let cluster = ClusterSpec {
        project: ProjectRef::generate(&Entropy::system()),
        uid: FIRST_UID,
        major,
    };
    let project = &cluster.project;
    let begun = Instant::now();
    clusters.create(&cluster, CopyPriority::Foreground).await?;
    let prepared = Instant::now();
    clusters.start(project).await?;
    clusters.wait_ready(project, READY_PATIENCE).await?;
    let admin = clusters.superuser_session(project).await?;
    admin.query_one(&superuser::HAS_SESSIONS, &[]).await?;
    let answered = Instant::now();
    drop(admin);
    let megabytes = disk_megabytes(&clusters.home().data_directory(project))?;
    clusters.stop(project).await?;
    clusters.remove(project).await?;
    clusters.empty_trash().await?;
    let millis = |from| answered.duration_since(from).as_secs_f64() * 1e3;
    Ok(Creation {
        warm: millis(prepared),
        cold: millis(begun),
        megabytes,
    })
}

/// Returns the allocated space below a folder.
#[expect(clippy::cast_precision_loss, reason = "there are not as many")]
fn disk_megabytes(dir: &Path) -> Outcome<f64> {
    let mut megabytes = 0.0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata()?;
        megabytes += found.blocks() as f64 * 512.0 / 1e6;
        if found.is_dir() {
            megabytes += disk_megabytes(&entry.path())?;
        }
    }
    Ok(megabytes)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
