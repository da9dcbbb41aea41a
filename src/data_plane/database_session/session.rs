//! One session with a project's PostgreSQL, for one request.
//!
//! A client of our own, because the usual ones hide the column types of the simple protocol, and without them no
//! answer can be printed as JSON. It is deliberately small: text formats, one request at a time, no reuse. A
//! customer's SQL leaves any state it likes behind, so the session is closed after it.
//!
//! Bounds: the deadline holds for everything from connecting on; what the server sends is kept only as far as
//! [`SessionLimits`] allow, and notices and notifications not at all.

use std::{error::Error as StdError, io, mem, ops::Range, sync::Arc, time::Duration};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::{
    IsNull, Oid,
    message::{
        backend::{DataRowBody, Header, Message, ParameterDescriptionBody, RowDescriptionBody},
        frontend,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{Instant, timeout, timeout_at},
};

use super::{
    DATABASE,
    sql_error::SqlError,
    stop,
    stop::{Backend, CANCEL_GRACE},
};
use crate::{
    base::{
        error::{Context as _, Error},
        ids::ProjectRef,
    },
    data_plane::{cluster_driver::ClusterDriver, clusters, clusters::ServerSocket},
};

/// How long the server has to accept a session. `behaviour.md` §8: a stopped project answers 544 after some 20 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a repair of the platform's roles may take.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes asked of the socket at once.
const READ_BYTES: usize = 32 * 1024;

/// Where a project's PostgreSQL listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTarget {
    socket: ServerSocket,
    /// The project whose platform roles are repaired when they are login_error.
    repair: Option<RoleRepair>,
}

/// A project whose platform roles can be repaired.
#[derive(Debug, Clone)]
struct RoleRepair {
    driver: Arc<dyn ClusterDriver>,
    project: ProjectRef,
}

impl PartialEq for RoleRepair {
    fn eq(&self, other: &Self) -> bool {
        self.project == other.project
    }
}

impl Eq for RoleRepair {}

impl ConnectTarget {
    /// The server behind this socket.
    pub fn new(socket: ServerSocket) -> Self {
        Self {
            socket,
            repair: None,
        }
    }

    /// The server of a project. If its owner shut the platform's roles out, they are repaired by the next session that is refused.
    pub fn of(driver: &Arc<dyn ClusterDriver>, project: &ProjectRef) -> Self {
        let repair = RoleRepair {
            driver: driver.clone(),
            project: project.clone(),
        };
        Self {
            socket: driver.socket(project),
            repair: Some(repair),
        }
    }

    /// Repairs the platform's roles. Returns whether it may have helped.
    pub(crate) async fn repair(&self) -> bool {
        let Some(RoleRepair { driver, project }) = &self.repair else {
            return false;
        };
        match timeout(REPAIR_TIMEOUT, driver.repair_roles(project)).await {
            Ok(Ok(())) => {
                tracing::warn!(%project, "the project refused the platform's roles; repaired them");
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%project, %error, "the project refuses the platform's roles, and they could not be repaired");
                false
            }
            Err(_) => {
                tracing::warn!(%project, "the project refuses the platform's roles, and repairing them took too long");
                false
            }
        }
    }

    /// The server's socket.
    pub fn socket(&self) -> &ServerSocket {
        &self.socket
    }

    /// A connection to the server, whose identity was checked.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        self.socket.connect().await
    }
}

/// What one request may take.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// From connecting to the last byte read. A statement that runs then is cancelled, and ended a second later.
    pub time: Duration,
    /// ResultRows of one result.
    pub rows_max: usize,
    /// Bytes of one result as the server sends it, and again as JSON.
    pub bytes_max: usize,
}

impl Default for SessionLimits {
    /// 60 s, 100 000 rows, 32 MiB.
    fn default() -> Self {
        Self {
            time: Duration::from_mins(1),
            rows_max: 100_000,
            bytes_max: 32 << 20,
        }
    }
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultColumn {
    /// Name, as the server gives it; not unique.
    pub name: String,
    /// Type; of a domain, the type under it.
    pub kind: Oid,
}

/// ResultRows as the server sent them: of every cell its length (-1 is null), then its text.
#[derive(Debug, Default)]
pub struct ResultRows {
    /// What the rows consist of.
    pub columns: Vec<ResultColumn>,
    count: usize,
    // One buffer for all rows: slices of the read buffer would keep its pages, and with them any notice sent in between.
    cells: Vec<u8>,
}

impl ResultRows {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all rows together.
    pub fn bytes(&self) -> usize {
        self.cells.len()
    }

    /// Every cell, row by row, `columns.len()` to the row.
    pub fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut rest = self.cells.as_slice();
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first_chunk()?;
            let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
                rest = after;
                return Some(None);
            };
            let (cell, after) = after.split_at_checked(length)?;
            rest = after;
            Some(Some(cell))
        })
    }

    /// The rows as text. For our own small queries; bytes that are no UTF-8 are replaced.
    pub(crate) fn texts(&self) -> Vec<Vec<Option<String>>> {
        let cells: Vec<_> = self
            .cells()
            .map(|cell| cell.map(|text| String::from_utf8_lossy(text).into_owned()))
            .collect();
        cells
            .chunks(self.columns.len().max(1))
            .map(<[_]>::to_vec)
            .collect()
    }

    fn push(&mut self, row: &DataRowBody, limits: &SessionLimits) -> Result<(), Error> {
        if self.count == limits.rows_max {
            return Err(Error::invalid(
                "query",
                format!(
                    "the result has more than {} rows; add a limit",
                    limits.rows_max
                ),
            ));
        }
        if self.cells.len() + row.buffer().len() > limits.bytes_max {
            return Err(too_large(limits));
        }
        self.cells.extend_from_slice(row.buffer());
        self.count += 1;
        Ok(())
    }
}

/// What the server answered to one request.
#[derive(Debug, Default)]
pub struct QueryOutput {
    /// The last result that has rows; empty if none has.
    pub rows: ResultRows,
    /// Tag of the last statement, such as `INSERT 0 1`.
    pub tag: String,
    /// Types of the parameters, after [`DatabaseSession::prepare`].
    parameters: Vec<Oid>,
}

/// An open session, logged in as the role its SQL runs as. Dropping it ends what it runs.
pub struct DatabaseSession {
    target: ConnectTarget,
    limits: SessionLimits,
    stream: UnixStream,
    inbox: BytesMut,
    outbox: BytesMut,
    backend: Option<Backend>,
    /// The server works for us: it has to be stopped should we leave now.
    busy: bool,
    /// The deadline passed and the server was asked to stop.
    cancelled: bool,
    deadline: Instant,
    transaction: u8,
}

impl DatabaseSession {
    /// Logs in as `role`. `settings` are server parameters, over the role's and the database's own.
    ///
    /// Errors: [`Error::DatabaseUnreachable`] if nothing accepts us in time, or the server is starting, stopping or full;
    /// [`Error::DatabaseRefuses`] if the owner shut the role out and it could not be repaired.
    pub async fn open(
        target: &ConnectTarget,
        role: &str,
        database: &str,
        settings: &[(&str, &str)],
        limits: SessionLimits,
    ) -> Result<Self, Error> {
        match Self::open_once(target, role, database, settings, limits).await {
            Err(Error::DatabaseRefuses(_))
                if database == DATABASE && Box::pin(target.repair()).await =>
            {
                Self::open_once(target, role, database, settings, limits).await
            }
            opened => opened,
        }
    }

    /// Logs in without a repair.
    pub(crate) async fn open_once(
        target: &ConnectTarget,
        role: &str,
        database: &str,
        settings: &[(&str, &str)],
        limits: SessionLimits,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + limits.time;
        let connect_by = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let Ok(Ok(stream)) = timeout_at(connect_by, target.connect()).await else {
            return Err(Error::DatabaseUnreachable);
        };
        let mut session = Self {
            target: target.clone(),
            limits,
            stream,
            inbox: BytesMut::with_capacity(READ_BYTES),
            outbox: BytesMut::new(),
            backend: None,
            busy: false,
            cancelled: false,
            // While logging in the outer timeout rules: it means unreachable, not a statement that took too long.
            deadline: connect_by + CONNECT_TIMEOUT,
            transaction: b'I',
        };
        match timeout_at(connect_by, session.log_in(role, database, settings)).await {
            Ok(logged_in) => logged_in?,
            Err(_) => return Err(Error::DatabaseUnreachable),
        }
        session.deadline = deadline;
        Ok(session)
    }

    async fn log_in(
        &mut self,
        role: &str,
        database: &str,
        settings: &[(&str, &str)],
    ) -> Result<(), Error> {
        let (user, setting) = clusters::peer_login(role);
        let ours = [
            ("user", user),
            ("database", database),
            ("client_encoding", "UTF8"),
            ("datestyle", "ISO"),
            // `statements` reads string literals by this rule.
            ("standard_conforming_strings", "on"),
            // A statement whose client is gone ends within this time (ms), should our own effort in `drop` fail.
            ("client_connection_check_interval", "2000"),
        ];
        frontend::startup_message(
            ours.into_iter()
                .chain(setting)
                .chain(settings.iter().copied()),
            &mut self.outbox,
        )
        .context("writing the startup message")?;
        self.send().await?;
        loop {
            match self.receive().await? {
                Message::BackendKeyData(key) => {
                    self.backend = Some(Backend {
                        pid: key.process_id(),
                        secret: key.secret_key(),
                    });
                }
                Message::ReadyForQuery(ready) => {
                    self.set_ready(ready.status());
                    return Ok(());
                }
                Message::ErrorResponse(body) => {
                    return Err(login_error(SqlError::read(&body), database));
                }
                Message::AuthenticationOk
                | Message::ParameterStatus(_)
                | Message::NoticeResponse(_) => {}
                _ => {
                    return Err(io::Error::other(
                        "the server asks for a password; it must trust the peer",
                    ))
                    .context("logging in");
                }
            }
        }
    }

    /// Runs `sql`, which may be several statements, by the simple protocol.
    ///
    /// Errors: [`Error::Sql`] as the server says, with the line of `sql`, or if the deadline passes;
    /// [`Error::Invalid`] if the result is over the limits or the text asks for `COPY` to or from the client.
    pub async fn simple_query(&mut self, sql: &str) -> Result<QueryOutput, Error> {
        self.encode(|out| frontend::query(sql, out))?;
        self.exchange(sql, QueryProtocol::Simple).await
    }

    /// Like [`DatabaseSession::simple_query`], for a text whose rows nobody wants: there may be any number. Answers the last tag.
    pub async fn batch_execute(&mut self, sql: &str) -> Result<String, Error> {
        self.encode(|out| frontend::query(sql, out))?;
        Ok(self
            .exchange(sql, QueryProtocol::TransactionScript)
            .await?
            .tag)
    }

    /// Runs one statement of `sql`, like [`DatabaseSession::batch_execute`]. An error shows its line in the whole.
    pub(crate) async fn execute_statement(
        &mut self,
        sql: &str,
        part: Range<usize>,
    ) -> Result<String, Error> {
        let before = sql[..part.start].chars().count();
        self.encode(|out| frontend::query(&sql[part], out))?;
        Ok(self
            .exchange_at(sql, before, QueryProtocol::TransactionScript)
            .await?
            .tag)
    }

    /// Parses `sql`, one statement, under `name`. Answers the types of its parameters.
    pub async fn prepare(&mut self, name: &str, sql: &str) -> Result<Vec<Oid>, Error> {
        self.encode(|out| frontend::parse(name, sql, [], out))?;
        frontend::describe(b'S', name, &mut self.outbox).context("writing a message")?;
        frontend::sync(&mut self.outbox);
        Ok(self
            .exchange(sql, QueryProtocol::Extended)
            .await?
            .parameters)
    }

    /// Runs what was prepared under `name`, with its parameters as text. `sql` is only shown in an error.
    pub async fn execute(
        &mut self,
        name: &str,
        sql: &str,
        parameters: &[Option<String>],
    ) -> Result<QueryOutput, Error> {
        let write = |value: &Option<String>,
                     out: &mut BytesMut|
         -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
            Ok(value.as_ref().map_or(IsNull::Yes, |text| {
                out.extend_from_slice(text.as_bytes());
                IsNull::No
            }))
        };
        if frontend::bind("", name, [], parameters, write, [], &mut self.outbox).is_err() {
            self.outbox.clear();
            return Err(Error::invalid(
                "parameters",
                "there are too many, or they are too long",
            ));
        }
        frontend::describe(b'P', "", &mut self.outbox).context("writing a message")?;
        frontend::execute("", 0, &mut self.outbox).context("writing a message")?;
        frontend::sync(&mut self.outbox);
        self.exchange(sql, QueryProtocol::Extended).await
    }

    /// One statement of ours with text parameters.
    pub(crate) async fn query(
        &mut self,
        sql: &str,
        parameters: &[Option<&str>],
    ) -> Result<QueryOutput, Error> {
        self.prepare("", sql).await?;
        let parameters: Vec<_> = parameters
            .iter()
            .map(|value| value.map(str::to_owned))
            .collect();
        self.execute("", sql, &parameters).await
    }

    /// Whether a transaction is open and sound.
    pub fn in_transaction(&self) -> bool {
        self.transaction == b'T'
    }

    async fn exchange(&mut self, sql: &str, protocol: QueryProtocol) -> Result<QueryOutput, Error> {
        self.exchange_at(sql, 0, protocol).await
    }

    /// `before` are the characters of `sql` in front of what was sent.
    async fn exchange_at(
        &mut self,
        sql: &str,
        before: usize,
        protocol: QueryProtocol,
    ) -> Result<QueryOutput, Error> {
        self.busy = true;
        self.send().await?;
        let mut answer = QueryOutput::default();
        let mut described = None;
        let mut failure = None;
        loop {
            let message = match self.receive().await {
                // The server says why before it hangs up.
                Err(SessionFailure::Lost) if failure.is_some() => break,
                received => received?,
            };
            match message {
                Message::RowDescription(body) => described = Some(columns(&body)?),
                Message::ParameterDescription(body) => answer.parameters = parameters(&body)?,
                Message::DataRow(_) if protocol == QueryProtocol::TransactionScript => {}
                Message::DataRow(row) => {
                    if let Some(columns) = described.take() {
                        answer.rows = ResultRows {
                            columns,
                            ..ResultRows::default()
                        };
                    }
                    answer.rows.push(&row, &self.limits)?;
                }
                Message::CommandComplete(body) => body
                    .tag()
                    .context("reading a command tag")?
                    .clone_into(&mut answer.tag),
                Message::ErrorResponse(body) => failure = Some(SqlError::read(&body)),
                Message::CopyInResponse(_) => self.refuse_copy(protocol).await?,
                Message::CopyOutResponse(_) => {
                    return Err(Error::invalid("query", COPY_UNAVAILABLE));
                }
                Message::ReadyForQuery(ready) => {
                    self.set_ready(ready.status());
                    break;
                }
                // Notices, notifications, parameter changes: nobody asked.
                _ => {}
            }
        }
        match failure {
            None => Ok(answer),
            // The server only knows that somebody cancelled.
            Some(error) if error.code == "57014" && self.cancelled => {
                Err(SqlError::statement_timeout().into_error(sql))
            }
            Some(error) => Err(error.shifted_by(before).into_error(sql)),
        }
    }

    /// Writes a message that carries a customer's text.
    fn encode(&mut self, write: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<(), Error> {
        write(&mut self.outbox).map_err(|_| {
            // It may stand there by half.
            self.outbox.clear();
            Error::invalid("query", "must be under 1 GiB and contain no NUL character")
        })
    }

    async fn refuse_copy(&mut self, protocol: QueryProtocol) -> Result<(), Error> {
        frontend::copy_fail(COPY_UNAVAILABLE, &mut self.outbox).context("writing a message")?;
        if protocol == QueryProtocol::Extended {
            // The server has thrown away the one sent along, as it does with all but data while it waits for data.
            frontend::sync(&mut self.outbox);
        }
        Ok(self.send().await?)
    }

    fn set_ready(&mut self, transaction: u8) {
        self.transaction = transaction;
        self.busy = false;
    }

    async fn send(&mut self) -> Result<(), SessionFailure> {
        let bytes = mem::take(&mut self.outbox);
        match timeout_at(self.deadline, self.stream.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SessionFailure::Lost),
            Err(_) => Err(SessionFailure::DeadlineExceeded),
        }
    }

    /// The next message. Past the deadline it cancels and gives [`CANCEL_GRACE`] more, as the statement may just be done:
    /// then its own outcome is the truth. Past that it ends the backend.
    async fn receive(&mut self) -> Result<Message, SessionFailure> {
        loop {
            if let Some(message) = self.parse()? {
                return Ok(message);
            }
            // Asked first: a flood of notices is always ready to be read.
            if Instant::now() >= self.deadline {
                self.handle_deadline().await?;
            }
            self.inbox.reserve(READ_BYTES);
            if let Ok(Ok(0) | Err(_)) =
                timeout_at(self.deadline, self.stream.read_buf(&mut self.inbox)).await
            {
                return Err(SessionFailure::Lost);
            }
        }
    }

    fn parse(&mut self) -> Result<Option<Message>, SessionFailure> {
        let Some(header) = Header::parse(&self.inbox).map_err(SessionFailure::Garbled)? else {
            return Ok(None);
        };
        if usize::try_from(header.len())
            .is_ok_and(|length| length > self.limits.bytes_max.max(READ_BYTES))
        {
            return Err(SessionFailure::TooLarge(self.limits));
        }
        Message::parse(&mut self.inbox).map_err(SessionFailure::Garbled)
    }

    async fn handle_deadline(&mut self) -> Result<(), SessionFailure> {
        let Some(backend) = self.backend else {
            return Err(SessionFailure::DeadlineExceeded);
        };
        if self.cancelled {
            self.busy = false;
            stop::terminate(&self.target, backend).await;
            return Err(SessionFailure::DeadlineExceeded);
        }
        self.cancelled = true;
        stop::cancel(&self.target, backend).await;
        self.deadline = Instant::now() + CANCEL_GRACE;
        Ok(())
    }
}

impl Drop for DatabaseSession {
    /// Whatever made us leave early — a limit, a fault, a client that hung up — the server shall not work on.
    fn drop(&mut self) {
        let (Some(backend), Ok(runtime)) = (self.backend, tokio::runtime::Handle::try_current())
        else {
            return;
        };
        if self.busy {
            runtime.spawn(stop::cancel_and_terminate(self.target.clone(), backend));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueryProtocol {
    Simple,
    /// Simple, and rows are dropped as they come.
    TransactionScript,
    Extended,
}

const COPY_UNAVAILABLE: &str =
    "COPY from or to the client is not available here; use insert and select";

/// Why a session cannot go on.
enum SessionFailure {
    Lost,
    DeadlineExceeded,
    TooLarge(SessionLimits),
    Garbled(io::Error),
}

impl From<SessionFailure> for Error {
    fn from(broken: SessionFailure) -> Self {
        match broken {
            SessionFailure::Lost => Self::DatabaseUnreachable,
            SessionFailure::DeadlineExceeded => SqlError::statement_timeout().into_error(""),
            SessionFailure::TooLarge(limits) => too_large(&limits),
            SessionFailure::Garbled(cause) => {
                match Err::<(), _>(cause).context("reading a message of a project's database") {
                    Err(error) => error,
                    Ok(()) => Self::DatabaseUnreachable,
                }
            }
        }
    }
}

/// A result is over [`SessionLimits::bytes_max`].
pub(crate) fn too_large(limits: &SessionLimits) -> Error {
    Error::invalid(
        "query",
        format!("the result is over {} bytes; select less", limits.bytes_max),
    )
}

/// Why the server did not let us in.
fn login_error(error: SqlError, database: &str) -> Error {
    match error.code.get(..2) {
        // The server has no room, starts or stops. A bound that the owner set on the role or the database is told apart by its text.
        Some("53" | "57") if !error.summary().contains("too many connections for") => {
            Error::DatabaseUnreachable
        }
        // The role may not log in, or is gone.
        Some("28") => Error::DatabaseRefuses(error.summary()),
        // The database that every project has is closed (55) or gone (3D), may not be connected to (42), or has a bound (53); or what
        // the role is to become is gone or not allowed (22, 42).
        Some("55" | "3D" | "42" | "22" | "53") if database == DATABASE => {
            Error::DatabaseRefuses(error.summary())
        }
        _ => error.into_error(""),
    }
}

fn columns(body: &RowDescriptionBody) -> Result<Vec<ResultColumn>, Error> {
    body.fields()
        .map(|field| {
            Ok(ResultColumn {
                name: field.name().to_owned(),
                kind: field.type_oid(),
            })
        })
        .collect()
        .context("reading a row description")
}

fn parameters(body: &ParameterDescriptionBody) -> Result<Vec<Oid>, Error> {
    body.parameters()
        .collect()
        .context("reading a parameter description")
}
