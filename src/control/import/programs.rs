//! The client programs of an import: their environment, and the pipe between them.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use gantry_base::clock::Entropy;
use gantry_node::{clusters::ServerSocket, engines::Engine, supervisor::ProcessOwner};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::Command,
};

use super::{Import, ImportError, PROBLEMS_MAX, Result};
use crate::control::database_session::{
    OWNER,
    session::ConnectTarget,
    session_socket::{SessionLogin, SessionSocket},
};

/// Largest answer of a query to the source, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Longest line of a program's messages that is kept, in characters.
const LINE_CHARS_MAX: usize = 400;
/// Messages about objects that a project has from the beginning.
const EXPECTED: [&str; 3] = [
    "must be owner of schema public",
    "cannot drop schema public",
    "must be owner of extension",
];

/// The client programs, and a folder with what they need.
pub(super) struct ImportPrograms {
    engine: Engine,
    account: ProcessOwner,
    source: super::SourceDatabase,
    folder: ImportFolder,
    /// The project's database, as its owner.
    _owner: SessionSocket,
}

/// The folder of an import, removed on drop.
struct ImportFolder(PathBuf);

impl Drop for ImportFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, "the folder of an import was not removed");
        }
    }
}

/// Port in the name of the socket that leads to the project.
const OWNER_PORT: u16 = 1;

impl ImportPrograms {
    /// Checks that the programs are there, and makes the folder.
    pub(super) fn prepare(import: &Import, socket: &ServerSocket) -> Result<Self> {
        for name in ["pg_dump", "pg_restore", "psql"] {
            if !import.engine.program(name).is_file() {
                return Err(ImportError::Program(format!(
                    "{} has no {name}; install it with: gantry engine install {}",
                    import.engine,
                    import.engine.major()
                )));
            }
        }
        let letters = Entropy::system().letters(8);
        // Short, because the path of a socket is bounded.
        let folder = import.home.join("tmp").join(format!("import-{letters}"));
        fs::create_dir(&folder)?;
        let removed_on_drop = ImportFolder(folder.clone());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        import.account.own(&folder)?;
        let passfile = folder.join("pgpass");
        fs::write(&passfile, pass_line(import))?;
        fs::set_permissions(&passfile, fs::Permissions::from_mode(0o600))?;
        import.account.own(&passfile)?;
        let target = ConnectTarget::new(socket.clone());
        let place = folder.join(format!(".s.PGSQL.{OWNER_PORT}"));
        let owner = SessionSocket::listen(
            &place,
            import.account,
            target,
            SessionLogin::unbounded(OWNER, "gantry import"),
        )?;
        Ok(Self {
            engine: import.engine.clone(),
            account: import.account,
            source: import.source.clone(),
            folder: removed_on_drop,
            _owner: owner,
        })
    }

    /// Major version of the programs.
    pub(super) fn major(&self) -> u16 {
        self.engine.major()
    }

    /// The folder of sockets.
    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The account of the programs.
    pub(super) fn account(&self) -> ProcessOwner {
        self.account
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.engine.program(name));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TZ", "UTC")
            .env("PGAPPNAME", "gantry import")
            .env("PGCLIENTENCODING", "UTF8")
            .current_dir("/")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some((uid, gid)) = self.account.ids() {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Returns a program that reads the source.
    pub(super) fn of_source(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command
            .env("PGHOST", &self.source.host)
            .env("PGPORT", self.source.port.to_string())
            .env("PGUSER", &self.source.user)
            .env("PGDATABASE", &self.source.database)
            .env("PGSSLMODE", &self.source.tls)
            .env("PGPASSFILE", self.folder.0.join("pgpass"))
            .env("PGCONNECT_TIMEOUT", "15")
            // Settings of the role could change the form of the output.
            .env(
                "PGOPTIONS",
                "-c search_path= -c default_transaction_read_only=on",
            );
        command
    }

    /// Returns a program that writes to the project through the socket with this number.
    pub(super) fn of_target(&self, name: &str, port: u16) -> Command {
        let mut command = self.program(name);
        command
            .env("PGHOST", &self.folder.0)
            .env("PGPORT", port.to_string())
            .env("PGUSER", "gantry")
            .env("PGDATABASE", "postgres");
        command
    }

    /// Runs a query in the source and returns its unformatted output.
    pub(super) async fn query_source(&self, sql: &str) -> Result<String> {
        let mut psql = self.of_source("psql");
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--quiet"])
            .args(["--set=ON_ERROR_STOP=1", "--command", sql])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = bounded_output(psql).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().find(|line| !line.trim().is_empty());
            return Err(ImportError::Source(clean(line.unwrap_or("psql failed"))));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| ImportError::Source("it answered no UTF-8".to_owned()))
    }

    /// Copies schemas with their data. Returns the messages about rejected statements.
    pub(super) async fn copy_schemas(
        &self,
        schemas: &[String],
        replace: bool,
    ) -> Result<Vec<String>> {
        let mut dump = self.of_source("pg_dump");
        dump.args([
            "--format=custom",
            "--no-owner",
            "--no-publications",
            "--no-subscriptions",
        ])
        .args(["--no-tablespaces", "--compress=0"]);
        for schema in schemas {
            // A pattern: quotes make it a name.
            dump.arg(format!("--schema=\"{}\"", schema.replace('"', "\"\"")));
        }
        let mut restore = self.of_target("pg_restore", OWNER_PORT);
        restore.args(["--dbname=postgres", "--no-owner"]);
        if replace {
            restore.args(["--clean", "--if-exists"]);
        }
        let (dumped, said) = pipe(dump, restore).await?;
        if let Some(problem) = dumped {
            return Err(ImportError::Source(problem));
        }
        Ok(rejections(&said, schemas))
    }
}

/// Returns the line of libpq's file of passwords.
fn pass_line(import: &Import) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(':', "\\:");
    let password = escape(import.password.expose_secret());
    format!("*:*:*:{}:{password}\n", escape(&import.source.user))
}

/// Runs a program and returns its output. Its answer is bounded.
async fn bounded_output(mut command: Command) -> Result<Output> {
    let mut child = command.spawn()?;
    let missing = || io::Error::other("a pipe is missing");
    let mut stdout = child
        .stdout
        .take()
        .ok_or_else(missing)?
        .take(ANSWER_BYTES_MAX as u64);
    let stderr = child.stderr.take().ok_or_else(missing)?;
    let mut answer = Vec::new();
    let (read, said) = tokio::join!(stdout.read_to_end(&mut answer), lines(stderr));
    read?;
    Ok(Output {
        status: child.wait().await?,
        stdout: answer,
        stderr: said.join("\n").into_bytes(),
    })
}

/// Connects two programs by a pipe and waits for both. Returns the error of the first, and the
/// messages of the second.
pub(super) async fn pipe(
    mut from: Command,
    mut to: Command,
) -> Result<(Option<String>, Vec<String>)> {
    let missing = || io::Error::other("a pipe is missing");
    let mut reader = from.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let data: Stdio = reader.stdout.take().ok_or_else(missing)?.try_into()?;
    to.stdin(data).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut writer = to.spawn()?;
    // Its copy of the pipe would keep the first program from noticing the end of the second.
    drop(to);
    let problems = reader.stderr.take().ok_or_else(missing)?;
    let messages = writer.stderr.take().ok_or_else(missing)?;
    let (problems, messages) = tokio::join!(lines(problems), lines(messages));
    let (read, written) = tokio::join!(reader.wait(), writer.wait());
    let (read, written) = (read?, written?);
    let problem = problems.first().map_or("it failed", String::as_str);
    // If its reader ended, the pipe killed the program: the messages of the reader tell why.
    let failed = !read.success() && (written.success() || messages.is_empty());
    Ok((failed.then(|| clean(problem)), messages))
}

/// Returns the first lines of a stream, and reads it to its end.
async fn lines(stream: impl AsyncRead + Unpin) -> Vec<String> {
    /// Lines that are kept, before they are filtered.
    const LINES_MAX: usize = 10 * PROBLEMS_MAX;
    let mut reader = BufReader::new(stream);
    let mut kept = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut: its rest counts as further lines.
        let mut bounded = (&mut reader).take(64 << 10);
        match bounded.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return kept,
            Ok(_) if kept.len() < LINES_MAX => {
                kept.push(clean(&String::from_utf8_lossy(&line)));
            }
            Ok(_) => {}
        }
    }
}

/// Returns a line without control characters, shortened.
fn clean(line: &str) -> String {
    line.chars()
        .filter(|c| !c.is_control())
        .take(LINE_CHARS_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Returns the errors among the messages of `pg_restore`, without those that are expected: the
/// schemas were created before.
fn rejections(messages: &[String], schemas: &[String]) -> Vec<String> {
    let created: Vec<String> = schemas
        .iter()
        .map(|schema| format!("schema \"{schema}\" already exists"))
        .collect();
    let mut found = Vec::new();
    for line in messages {
        let Some((_, error)) = line.split_once("ERROR:") else {
            continue;
        };
        let is_expected = EXPECTED.iter().any(|expected| error.contains(expected))
            || created.iter().any(|expected| error.trim() == expected);
        if !is_expected && found.len() < PROBLEMS_MAX {
            found.push(error.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_errors_without_expected_ones() {
        let lines = [
            "pg_restore: while PROCESSING TOC:",
            "pg_restore: error: could not execute query: ERROR:  schema \"public\" already exists",
            "pg_restore: error: could not execute query: ERROR:  type \"x.y\" does not exist",
            "Command was: CREATE TABLE",
        ];
        let lines: Vec<String> = lines.map(str::to_owned).into();
        let schemas = ["public".to_owned()];
        let found = ["type \"x.y\" does not exist"];
        assert_eq!(rejections(&lines, &schemas), found);
        assert_eq!(rejections(&lines, &[]).len(), 2);
    }

    #[tokio::test]
    async fn pipe_reports_the_failed_program() {
        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdin(Stdio::null());
            command
        };
        let (problem, said) = pipe(shell("echo data"), shell("cat >/dev/null; echo x >&2"))
            .await
            .unwrap();
        assert_eq!((problem, said), (None, vec!["x".to_owned()]));
        let (problem, _) = pipe(shell("echo broken >&2; exit 1"), shell("cat >/dev/null"))
            .await
            .unwrap();
        assert_eq!(problem.as_deref(), Some("broken"));
    }
}
