//! Walls around a project's server, attacked from within by native code that a superuser loads, and
//! by other files and processes in the place of its socket.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use gantry::{
    api::database::query::{SqlQuery, run_query},
    control::database_session::session::ConnectTarget,
    platform::error::Error,
};
use gantry_base::ids::ProjectRef;
use gantry_node::{
    engines::Engines,
    error::ClusterError,
    supervisor::{Account, namespaces_available, sandbox_available},
};
use tokio::time::timeout;

use crate::{
    sql::LIMITS,
    support::machine::{Machine, PATIENCE, SuperuserClients as _, engines, is_root},
};

/// A verifier of an unknown password.
const VERIFIER: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2E=$k3JCUfEzTgPeFmAX8Z0CNPY0GQnO1fW3bnVQXbhCBbk=:5wTSkRZWTBRoMh8CgYHJ3v7XKpLAY8ZVsCbAXb4tPxY=";

/// Error codes of Landlock, the list of system calls and file permissions: `EPERM`, `EACCES`,
/// `EXDEV`, `ENOSYS`.
const REFUSALS: [i32; 4] = [1, 13, 18, 38];

/// Number of attempts of the attack program.
const ATTEMPTS: usize = 97;

/// Compiles the attack program to a library in the project's data directory.
fn library(machine: &Machine, project: &ProjectRef) -> PathBuf {
    let library = machine.data(project).join("attack.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/server.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(source)
        .status()
        .unwrap();
    assert!(compiled.success());
    let owner = fs::metadata(machine.data(project)).unwrap();
    chown(&library, Some(owner.uid()), Some(owner.gid())).unwrap();
    library
}

/// Loads the program as a superuser, with these arguments. Returns its output.
async fn attack(
    machine: &Machine,
    project: &ProjectRef,
    words: &[&str],
) -> BTreeMap<String, (bool, i32)> {
    let (library, data) = (library(machine, project), machine.data(project));
    fs::write(data.join("attack.in"), words.join("\n")).unwrap();
    fs::set_permissions(data.join("attack.in"), fs::Permissions::from_mode(0o644)).unwrap();
    let admin = machine.clusters.admin_session(project).await.unwrap();
    // PostgreSQL runs the library's constructor, then rejects it because it is no extension.
    let refused = admin
        .batch_execute(&format!("load '{}'", library.display()))
        .await
        .unwrap_err();
    assert!(
        format!("{refused:?}").contains("missing magic block"),
        "{refused:?}"
    );
    let written = fs::read_to_string(data.join("attack.out")).unwrap();
    assert!(written.ends_with("end\n"), "{written}");
    let outcome = |line: &str| {
        let [name, verdict, errno] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some((
            name.to_owned(),
            (verdict == "denied", errno.parse().unwrap()),
        ))
    };
    written.lines().filter_map(outcome).collect()
}

fn loader() -> &'static str {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    loaders
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("a loader of glibc")
}

#[tokio::test]
async fn native_code_of_superuser_cannot_leave_its_server() {
    if !sandbox_available() {
        return;
    }
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let (project, neighbour) = (machine.running(1).await, machine.running(2).await);
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let own = machine.clusters.socket_path(&project);
        let outcome = attack(
            &machine,
            &project,
            &[
                &text(machine.clusters.socket_path(&neighbour)),
                &text(machine.data(&neighbour).join("PG_VERSION")),
                &text(machine.dir().join("lock")),
                own.parent().unwrap().to_str().unwrap(),
                loader(),
                "/bin/true",
                &std::process::id().to_string(),
            ],
        )
        .await;
        let done: Vec<_> = outcome
            .iter()
            .filter(|(_, (denied, errno))| !denied || !REFUSALS.contains(errno))
            .collect();
        assert!(done.is_empty(), "{}: {done:?}", engine.text());
        assert!(
            outcome.len() >= ATTEMPTS,
            "{}: {} attempts",
            engine.text(),
            outcome.len()
        );
        // The server itself is unharmed.
        machine.clusters.admin_session(&project).await.unwrap();
    }
}

/// The names of the machine's accounts and of the machine itself are not those of a project.
#[tokio::test]
async fn server_sees_neither_accounts_nor_the_name_of_the_machine() {
    if !sandbox_available() || !namespaces_available() {
        return;
    }
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        let admin = machine.clusters.admin_session(&project).await.unwrap();
        let sql = "select pg_read_file('/etc/passwd')";
        let text: String = admin.query_one(sql, &[]).await.unwrap().get(0);
        let Account { uid, gid, name } = Account::current().unwrap();
        // Peer authentication of Gantry itself needs this line.
        assert_eq!(text, format!("{name}:x:{uid}:{gid}::/:\n"));
        for file in ["/etc/hostname", "/etc/hosts", "/etc/group", "/etc/shadow"] {
            let sql = format!("select pg_read_file('{file}')");
            assert!(admin.query_one(&sql, &[]).await.is_err(), "{file}");
        }
        let outcome = attack(&machine, &project, &["names"]).await;
        let expected = format!("host-name-is-{project}");
        assert!(outcome.contains_key(&expected), "{outcome:?}");
        // A file with the machine's accounts that the superuser names in the settings is the same.
        let conf = machine.data(&project).join("postgresql.conf");
        let text = fs::read_to_string(&conf).unwrap();
        fs::write(&conf, format!("{text}\ninclude '/etc/passwd'\n")).unwrap();
        let error = machine.clusters.check_settings(&project, &[]).await;
        let error = error.unwrap_err().to_string();
        assert!(!error.contains("daemon"), "{error}");
    }
}

/// Asserts that all parts of Gantry that connect to a project's server fail with this reason.
async fn assert_cut_off(machine: &Machine, project: &ProjectRef, reason: &str) {
    let error = machine.clusters.admin_session(project).await.unwrap_err();
    assert!(
        matches!(error, ClusterError::Unreached { .. }) && error.to_string().contains(reason),
        "{error}"
    );
    let target = ConnectTarget::new(machine.clusters.socket(project));
    let query = SqlQuery {
        text: "create table public.reached ()".into(),
        parameters: Vec::new(),
        read_only: false,
    };
    assert!(matches!(
        run_query(&target, &query, LIMITS).await,
        Err(Error::DatabaseUnreachable)
    ));
    let error = machine
        .clusters
        .set_password(project, "postgres", VERIFIER)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}

async fn passwords_and_tables(machine: &Machine, project: &ProjectRef) -> (Option<String>, i64) {
    let admin = machine.clusters.admin_session(project).await.unwrap();
    let sql = "select (select rolpassword from pg_authid where rolname = 'postgres'), (select count(*) from pg_tables)";
    let row = admin.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn link_to_socket_of_another_project_is_rejected() {
    let machine = Machine::new().await;
    let (project, neighbour) = (machine.running(1).await, machine.running(2).await);
    let before = passwords_and_tables(&machine, &neighbour).await;
    let socket = machine.clusters.socket_path(&project);

    fs::remove_file(&socket).unwrap();
    symlink(machine.clusters.socket_path(&neighbour), &socket).unwrap();
    assert_cut_off(&machine, &project, "is a symbolic link").await;

    // The folder itself is a link. Another protection prevents a tenant from creating it.
    let folder = socket.parent().unwrap();
    fs::rename(folder, folder.with_extension("away")).unwrap();
    symlink(
        machine.clusters.socket_path(&neighbour).parent().unwrap(),
        folder,
    )
    .unwrap();
    assert_cut_off(&machine, &project, "lies in a folder that is a link").await;

    assert_eq!(passwords_and_tables(&machine, &neighbour).await, before);
}

#[tokio::test]
async fn socket_of_another_server_is_rejected() {
    let machine = Machine::new().await;
    let (project, neighbour) = (machine.running(1).await, machine.running(2).await);
    let before = passwords_and_tables(&machine, &neighbour).await;
    let socket = machine.clusters.socket_path(&project);
    fs::remove_file(&socket).unwrap();
    // A hard link to the neighbour's socket. File permissions prevent a tenant from creating it.
    fs::hard_link(machine.clusters.socket_path(&neighbour), &socket).unwrap();
    let owner = fs::metadata(machine.data(&project)).unwrap();
    let reason = if is_root() {
        "is a socket of another user"
    } else {
        "is not the project's server"
    };
    assert_cut_off(&machine, &project, reason).await;
    if is_root() {
        chown(&socket, Some(owner.uid()), Some(owner.gid())).unwrap();
        assert_cut_off(&machine, &project, "is served by a process of another user").await;
        let theirs = fs::metadata(machine.data(&neighbour)).unwrap();
        chown(&socket, Some(theirs.uid()), Some(theirs.gid())).unwrap();
    }
    assert_eq!(passwords_and_tables(&machine, &neighbour).await, before);
}

#[tokio::test]
async fn listener_of_another_user_receives_nothing() {
    if !is_root() {
        return;
    }
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let socket = machine.clusters.socket_path(&project);
    let owner = fs::metadata(&socket).unwrap();
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_cut_off(&machine, &project, "is a socket of another user").await;
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);

    chown(&socket, Some(owner.uid()), Some(owner.gid())).unwrap();
    assert_cut_off(&machine, &project, "is served by a process of another user").await;
    let mut told = Vec::new();
    while let Ok((mut client, _)) = listener.accept() {
        client.read_to_end(&mut told).unwrap();
    }
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test]
async fn listener_of_the_tenant_receives_nothing() {
    if !sandbox_available() {
        return;
    }
    let machine = Machine::new().await;
    let project = machine.running(1).await;
    let folder = machine
        .clusters
        .socket_path(&project)
        .parent()
        .unwrap()
        .to_owned();
    let outcome = attack(&machine, &project, &["listen", folder.to_str().unwrap()]).await;
    assert_eq!(outcome["listen-instead"], (false, 0));
    assert_cut_off(&machine, &project, "is not the project's server").await;
    let told = async {
        loop {
            let told = fs::read_to_string(machine.data(&project).join("attack.told")).unwrap();
            if told.ends_with('\n') {
                return told;
            }
            tokio::task::yield_now().await;
        }
    };
    let told = timeout(PATIENCE, told)
        .await
        .expect("the listener was not connected to");
    assert!(told.lines().all(|length| length == "0"), "{told}");
    // A restart ends the listener and creates the socket again.
    machine.clusters.stop(&project).await.unwrap();
    machine.up(&project).await;
}

#[tokio::test]
async fn check_of_settings_reads_no_foreign_file() {
    if !sandbox_available() {
        return;
    }
    for engine in engines().offered() {
        let machine = Machine::on(&Engines::only(engine.clone())).await;
        let project = machine.running(1).await;
        machine
            .clusters
            .check_settings(&project, &[("work_mem".to_owned(), "8MB".to_owned())])
            .await
            .unwrap();
        let error = machine
            .clusters
            .check_settings(&project, &[("work_mem".to_owned(), "-1".to_owned())])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("work_mem"), "{error}");

        // Every user of the machine may read it; a server may not.
        let secret = machine.dir().join("secret.conf");
        fs::write(&secret, "work_mem = '4MB'\n").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        let conf = machine.data(&project).join("postgresql.conf");
        fs::write(
            &conf,
            format!(
                "{}\ninclude '{}'\n",
                fs::read_to_string(&conf).unwrap(),
                secret.display()
            ),
        )
        .unwrap();
        let error = machine
            .clusters
            .check_settings(&project, &[])
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ClusterError::Setting(said) if said.contains("ermission denied") || said.contains("contains errors")),
            "{error}"
        );
    }
}
