//! Templates of data directories, created by `initdb` once per version and recipe.
//!
//! A copy of a template takes a tenth of the processor time of `initdb` and contains the roles.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use gantry_base::clock::Entropy;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::{
    home::Home,
    server::process::{Host, Server},
};
use crate::{
    background::blocking,
    clusters::{
        platform,
        platform_roles::{PLATFORM_LOGINS, SUPERUSER},
        shutdown::ShutdownMode,
    },
    error::{At, ClusterError, Result},
    files,
    supervisor::{Account, ProcessOwner},
};

/// Time limit of `initdb`, which usually takes half a second.
const INITDB_PATIENCE: Duration = Duration::from_mins(2);
const READY_PATIENCE: Duration = Duration::from_mins(1);
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Locales in order of preference. `C.UTF-8` has UTF-8 character classes; older C libraries lack
/// it.
const LOCALES: [&str; 2] = ["C.UTF-8", "C"];

/// The contents of a new data directory.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Name of the cluster during its creation, and prefix of the directories.
    pub(super) name: &'static str,
    pub(super) superuser: &'static str,
    /// Size of a WAL segment, in MB.
    pub(super) wal_segment_mb: u8,
    pub(super) conf: &'static str,
    /// Roles that Gantry's own account may log in as by peer authentication.
    pub(super) peers: &'static [&'static str],
    /// Whether other roles can log in with a password.
    pub(super) logins: bool,
    /// Script that runs as superuser in database `postgres`. The platform and the grants follow. If
    /// there is none, the server is not started.
    pub(super) sql: Option<&'static str>,
}

/// The recipe of a project's cluster.
pub(super) const PROJECT: Recipe = Recipe {
    name: "template",
    superuser: SUPERUSER,
    wal_segment_mb: 1,
    conf: include_str!("recipes/project.conf"),
    peers: &PLATFORM_LOGINS,
    logins: true,
    sql: Some(include_str!("recipes/project.sql")),
};

/// Returns whether this role of a project's cluster is reserved for the platform's logins.
pub fn is_platform_login(role: &str) -> bool {
    PROJECT.peers.contains(&role)
}

/// Grants of the roles, also for projects from an older template. Idempotent.
pub(super) const GRANTS: &str = concat!(
    include_str!("recipes/grants.sql"),
    // Rules of creating extensions.
    include_str!("recipes/extensions/background.sql"),
    include_str!("recipes/extensions/refusals.sql"),
    include_str!("recipes/extensions/access.sql"),
    include_str!("recipes/extensions/relocation.sql"),
    include_str!("recipes/extensions/triggers.sql"),
);

/// Returns an identifier of the platform's schemas and grants, which differs between versions.
pub(super) fn platform_version() -> String {
    let mut digest = Sha256::new();
    digest.update(GRANTS);
    platform::hash_into(&mut digest);
    hex::encode(&digest.finalize()[..4])
}

const HBA: &str = "\
# Gantry's own account gets in over the Unix socket, as the roles that pg_ident.conf names.
local all         PEERS   peer map=gantry
local replication all     reject
local all         all     OTHERS
host  all         all all reject
host  replication all all reject
";

/// Rules of authentication while a copy is isolated.
const QUARANTINE_HBA: &str = "local all all peer map=gantry\n";

/// Creates the extension for statistics of statements, if it is installed. The server loads it at
/// the start, and would not start without its library.
const STATEMENTS: &str = "create extension pg_stat_statements schema extensions";
const STATEMENTS_CONF: &str = "\nshared_preload_libraries = 'pg_stat_statements'\n";

/// Part of the digest of a template: pages have checksums.
const CHECKSUMS: &str = "data checksums";

/// Returns the path of the template for `host`'s engine, which need not exist. The name contains a
/// digest of the template's inputs.
pub(super) fn path(home: &Home, host: &Host) -> Result<PathBuf> {
    let recipe = PROJECT;
    let mut hash = Sha256::new();
    let user = Account::current()?;
    let hba = hba(&recipe);
    let ident = ident(&recipe, &user);
    for part in [
        recipe.conf,
        &hba,
        STATEMENTS,
        STATEMENTS_CONF,
        &ident,
        &home.account().name,
        recipe.sql.unwrap_or_default(),
        &platform_version(),
        CHECKSUMS,
        // The same version from another source can have other extensions.
        host.engine.origin(),
        &host.engine.has_extension("pg_stat_statements").to_string(),
    ] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let name = format!(
        "{}-{}",
        host.engine.text(),
        hex::encode(&hash.finalize()[..4])
    );
    Ok(home.templates().join(name))
}

/// Creates the template unless it exists. If two processes do this concurrently, one result is
/// kept.
pub(super) async fn prepare(home: &Home, host: &Host, entropy: &Entropy) -> Result<PathBuf> {
    let target = path(home, host)?;
    if target.exists() {
        return Ok(target);
    }
    let place = make(home, host, &PROJECT, entropy).await?;
    let installed = target.clone();
    blocking(move || {
        let kept = install(&place.join("data"), &installed);
        files::remove_tree(&place)?;
        // Another process may have created it meanwhile.
        if installed.exists() { Ok(()) } else { kept }
    })
    .await?;
    Ok(target)
}

/// Moves a complete data directory to `target` atomically, across file systems if necessary.
fn install(data: &Path, target: &Path) -> Result<()> {
    match files::commit(data, target) {
        Err(ClusterError::Io { cause, .. })
            if cause.kind() == std::io::ErrorKind::CrossesDevices =>
        {
            let mut beside = target.as_os_str().to_owned();
            beside.push(format!(".{}", std::process::id()));
            let beside = PathBuf::from(beside);
            files::remove_tree(&beside)?;
            files::copy_data(data, &beside, ProcessOwner::new(0, 0))?;
            files::sync_fs(&beside)?;
            let committed = files::commit(&beside, target);
            files::remove_tree(&beside)?;
            committed
        }
        other => other,
    }
}

/// Creates a complete, stopped and durable data directory `<tmp>/<recipe>-<random>/data`. Returns
/// the directory above `data`.
pub(super) async fn make(
    home: &Home,
    host: &Host,
    recipe: &Recipe,
    entropy: &Entropy,
) -> Result<PathBuf> {
    let place = home
        .tmp()
        .join(format!("{}-{}", recipe.name, entropy.letters(8)));
    let name = place
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let server = Server::new(
        host.clone(),
        &name,
        &place,
        home.socket_dir(&name),
        home.account().process_owner(),
        recipe.superuser,
    );
    let made = fill(home, host, recipe, &server, &place).await;
    if made.is_err() {
        // Errors are ignored: the next start removes the remaining files.
        let _ = server.stop(ShutdownMode::Immediate, STOP_PATIENCE).await;
        let _ = files::remove_tree(&place);
    }
    let _ = files::remove_tree(&home.socket_dir(&name));
    made.map(|()| place)
}

async fn fill(
    home: &Home,
    host: &Host,
    recipe: &Recipe,
    server: &Server,
    place: &Path,
) -> Result<()> {
    files::make_dir(place, 0o711)?;
    initdb(home.account(), host, recipe, server).await?;
    write_config(server, recipe, recipe.conf)?;
    if let Some(sql) = recipe.sql {
        server.start_ready(READY_PATIENCE).await?;
        let preload = furnish(server, sql).await?;
        server.stop(ShutdownMode::Fast, STOP_PATIENCE).await?;
        if preload {
            write_config(server, recipe, &format!("{}{STATEMENTS_CONF}", recipe.conf))?;
        }
    }
    let data = server.data().to_owned();
    blocking(move || {
        clean(&data)?;
        files::sync_fs(&data)
    })
    .await
}

/// Runs the recipe's SQL and creates the platform. Returns whether the statistics module is
/// installed.
async fn furnish(server: &Server, sql: &str) -> Result<bool> {
    let doing = "preparing a template";
    let sql_error = |cause| ClusterError::Sql { doing, cause };
    let session = server.superuser().await?;
    // No tenant has used this cluster.
    let scripts = session.scripts();
    scripts.batch_execute(sql).await.map_err(sql_error)?;
    if let Some(conflict) = platform::apply(&session).await?.first() {
        return Err(ClusterError::Template(conflict.to_string()));
    }
    platform::grant(&session).await?;
    let available = "select from pg_available_extensions where name = 'pg_stat_statements'";
    let available = scripts
        .query_opt(available, &[])
        .await
        .map_err(sql_error)?
        .is_some();
    if available {
        scripts.batch_execute(STATEMENTS).await.map_err(sql_error)?;
    }
    Ok(available)
}

async fn initdb(account: &Account, host: &Host, recipe: &Recipe, server: &Server) -> Result<()> {
    let mut last = String::new();
    for locale in LOCALES {
        files::remove_tree(server.data())?;
        files::make_dir(server.data(), 0o700)?;
        account
            .process_owner()
            .own(server.data())
            .at("handing over", server.data())?;
        let output = run_initdb(account, host, recipe, server.data(), locale).await?;
        if output.status.success() {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        last = String::from(
            complaint
                .lines()
                .rev()
                .find(|line| line.contains("error:"))
                .unwrap_or(complaint.trim()),
        );
    }
    Err(ClusterError::Initdb(last))
}

async fn run_initdb(
    account: &Account,
    host: &Host,
    recipe: &Recipe,
    data: &Path,
    locale: &str,
) -> Result<Output> {
    let program = host.engine.program("initdb");
    let mut initdb = Command::new(&program);
    initdb.args([
        "--no-sync",
        "--no-instructions",
        "--encoding=UTF8",
        "--auth=reject",
        // Damaged pages are found when they are read, and by the checks of backups.
        "--data-checksums",
    ]);
    initdb
        .arg(format!("--locale={locale}"))
        .arg(format!("--wal-segsize={}", recipe.wal_segment_mb));
    initdb.arg("-U").arg(recipe.superuser).arg("-D").arg(data);
    // `initdb` runs the server through a shell, which needs a PATH on some systems.
    initdb
        .env_clear()
        .env("TZ", "UTC")
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .kill_on_drop(true);
    if let Some((uid, gid)) = account.process_owner().ids() {
        initdb.uid(uid).gid(gid);
    }
    let run = tokio::time::timeout(INITDB_PATIENCE, initdb.output()).await;
    run.map_err(|_| {
        ClusterError::Initdb(format!(
            "not finished after {} s",
            INITDB_PATIENCE.as_secs()
        ))
    })?
    .at("running", &program)
}

/// Writes the three configuration files, which `initdb` created as samples.
fn write_config(server: &Server, recipe: &Recipe, conf: &str) -> Result<()> {
    let ident = ident(recipe, &Account::current()?);
    for (name, text) in [
        ("postgresql.conf", conf),
        ("pg_hba.conf", &hba(recipe)),
        ("pg_ident.conf", &ident),
    ] {
        let path = server.data().join(name);
        fs::write(&path, text).at("writing", &path)?;
        server.run_as().own(&path).at("handing over", &path)?;
    }
    Ok(())
}

/// Returns the authentication rules. Peer roles never use a password, other roles never use peer
/// authentication.
fn hba(recipe: &Recipe) -> String {
    HBA.replace("PEERS", &recipe.peers.join(",")).replace(
        "OTHERS",
        if recipe.logins {
            "scram-sha-256"
        } else {
            "reject"
        },
    )
}

/// Files with the rules of authentication of a project's server, and their contents.
pub(super) fn access_rules() -> Result<[(&'static str, String); 2]> {
    let account = Account::current()?;
    Ok([
        ("pg_hba.conf", hba(&PROJECT)),
        ("pg_ident.conf", ident(&PROJECT, &account)),
    ])
}

/// Files with the rules of authentication in quarantine: Gantry's account may log in as all roles,
/// which are named in `roles`, and other accounts as none.
pub(super) fn quarantine_rules(roles: &[&str]) -> Result<[(&'static str, String); 2]> {
    let account = Account::current()?;
    let mut map = ident(&PROJECT, &account);
    for role in roles {
        let quoted = role.replace('"', "\"\"");
        map.extend(["gantry \"", &account.name, "\" \"", &quoted, "\"\n"]);
    }
    Ok([
        ("pg_hba.conf", QUARANTINE_HBA.to_owned()),
        ("pg_ident.conf", map),
    ])
}

/// Writes configuration files that differ. Returns whether one did. Links of the tenant are not
/// followed, and the server never reads a partial file.
pub(super) fn write_rules(
    data: &Path,
    owner: ProcessOwner,
    rules: &[(&'static str, String)],
) -> Result<bool> {
    let mut changed = false;
    for (name, text) in rules {
        let path = data.join(name);
        let bytes_max = text.len() as u64 + 1;
        if files::read_untrusted(&path, bytes_max).is_ok_and(|there| there == *text) {
            continue;
        }
        files::replace(&path, text, 0o600, owner)?;
        changed = true;
    }
    Ok(changed)
}

/// Returns the lines of `pg_ident.conf`: map, operating system user, role.
fn ident(recipe: &Recipe, user: &Account) -> String {
    let lines: Vec<_> = recipe
        .peers
        .iter()
        .map(|role| format!("gantry \"{}\" {role}\n", user.name))
        .collect();
    lines.concat()
}

/// Removes files of a previous run that a copy must not contain.
fn clean(data: &Path) -> Result<()> {
    files::remove_tree(&data.join("log"))?;
    files::remove_file(&data.join("postmaster.opts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hba_limits_peer_login_to_platform_roles() {
        let text = hba(&PROJECT);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let peers: Vec<_> = lines.iter().filter(|line| line.contains("peer")).collect();
        assert_eq!(
            peers,
            [
                &"local all         supabase_admin,gantry_owner,gantry_rows,supabase_read_only_user   peer map=gantry"
            ]
        );
        assert!(
            lines[1..]
                .iter()
                .all(|line| line.ends_with("reject") || line.ends_with("scram-sha-256")),
            "{text}"
        );
    }

    #[test]
    fn ident_maps_gantrys_account_only() {
        let user = Account {
            uid: 1,
            gid: 1,
            name: "gan-try".to_owned(),
        };
        assert_eq!(
            ident(&PROJECT, &user),
            "gantry \"gan-try\" supabase_admin\ngantry \"gan-try\" gantry_owner\ngantry \"gan-try\" gantry_rows\ngantry \"gan-try\" supabase_read_only_user\n"
        );
    }
}
