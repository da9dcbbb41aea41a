//! A session with a project's PostgreSQL for one API request.
//!
//! Common client libraries hide the column types of the simple query protocol, which are needed to
//! print rows as JSON. This client supports text formats and one request at a time. A session is
//! never reused, because a customer's SQL may leave any state in it.
//!
//! Bounds: the deadline applies to everything after connecting; results are limited by
//! [`SessionLimits`]; notices and the contents of notifications are discarded.

use std::{error::Error as StdError, io, mem, ops::Range, time::Duration};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use gantry_node::clusters;
use postgres_protocol::{
    IsNull, Oid,
    message::{
        backend::{Header, Message, ParameterDescriptionBody, RowDescriptionBody},
        frontend,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep, timeout_at},
};

pub(crate) use super::rows::too_large;
use super::{
    DATABASE, concurrency_limit,
    sql_error::SqlError,
    stop,
    stop::{Backend, CANCEL_GRACE},
};
pub use super::{
    rows::{ResultColumn, ResultRows, SessionLimits},
    target::ConnectTarget,
};
use crate::platform::error::{Context as _, Error};

/// Maximum time for login. `behaviour.md` §8: a stopped project is answered with 544 after about 20
/// s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before another attempt to log in to a full server.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Buffer capacity of a read.
const READ_BYTES: usize = 32 * 1024;

/// Output of one request.
#[derive(Debug, Default)]
pub struct QueryOutput {
    /// The last result with rows, or an empty one.
    pub rows: ResultRows,
    /// Command tag of the last statement, such as `INSERT 0 1`.
    pub tag: String,
    /// Types of the parameters, after [`DatabaseSession::prepare`].
    parameters: Vec<Oid>,
}

/// An open session. Dropping it cancels its running statement.
pub struct DatabaseSession {
    target: ConnectTarget,
    limits: SessionLimits,
    stream: UnixStream,
    inbox: BytesMut,
    outbox: BytesMut,
    backend: Option<Backend>,
    /// Whether the server is executing a request, which must be cancelled on drop.
    busy: bool,
    /// Whether the deadline passed and a cancel request was sent.
    cancelled: bool,
    deadline: Instant,
    transaction: u8,
    failure_site: Option<FailureSite>,
    /// Whether a notification arrived that [`DatabaseSession::notified`] has not returned.
    notified: bool,
    /// Released after the session.
    permit: Option<OwnedSemaphorePermit>,
}

/// Place of the last error of the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailureSite {
    /// Number of statements of the text that completed before.
    pub(crate) completed: usize,
    /// Position in the text, in bytes, if the server reported one.
    pub(crate) position: Option<usize>,
}

impl DatabaseSession {
    /// Logs in as `role`. `settings` are server parameters that override those of the role and the
    /// database.
    ///
    /// Waits for a permit among the sessions of the project, and for room in a full server.
    ///
    /// Errors: [`Error::DatabaseUnreachable`] on timeout, or if the server is starting or stopping;
    /// [`Error::Busy`] if there is no permit or room in time; [`Error::DatabaseRefuses`] if the
    /// owner disabled the role and the repair failed.
    pub async fn open(
        target: &ConnectTarget,
        role: &str,
        database: &str,
        settings: &[(&str, &str)],
        limits: SessionLimits,
    ) -> Result<Self, Error> {
        let permit = target.session_permit().await?;
        let wait_until = Instant::now() + concurrency_limit::WAIT_MAX;
        let opened = loop {
            match Self::open_once(target, role, database, settings, limits).await {
                Err(Error::DatabaseRefuses(_))
                    if database == DATABASE && Box::pin(target.repair()).await =>
                {
                    break Self::open_once(target, role, database, settings, limits).await;
                }
                // No server announces that a session has ended.
                Err(Error::Busy { .. }) if Instant::now() < wait_until => sleep(FULL_PAUSE).await,
                opened => break opened,
            }
        };
        let mut session = opened?;
        session.permit = permit;
        Ok(session)
    }

    /// Logs in without repairing platform roles.
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
            // During login the outer timeout applies: it means an unreachable server, not a slow
            // statement.
            deadline: connect_by + CONNECT_TIMEOUT,
            transaction: b'I',
            failure_site: None,
            notified: false,
            permit: None,
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
            // The lexer in `statements` assumes this setting.
            ("standard_conforming_strings", "on"),
            // The server ends a statement within this time (ms) after the client disconnected, in
            // case the cancellation on drop fails.
            ("client_connection_check_interval", "2000"),
            clusters::NO_LIBRARIES,
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

    /// Runs one or more statements with the simple query protocol.
    ///
    /// Errors: [`Error::Sql`] with the server's message and the line of `sql`, or on timeout;
    /// [`Error::Invalid`] if the result exceeds the limits or the SQL contains `COPY` to or from
    /// the client.
    pub async fn simple_query(&mut self, sql: &str) -> Result<QueryOutput, Error> {
        self.encode(|out| frontend::query(sql, out))?;
        self.exchange(sql, QueryProtocol::Simple).await
    }

    /// Like [`DatabaseSession::simple_query`], but discards rows, in any number. Returns the last
    /// command tag.
    pub async fn batch_execute(&mut self, sql: &str) -> Result<String, Error> {
        self.encode(|out| frontend::query(sql, out))?;
        Ok(self.exchange(sql, QueryProtocol::Script).await?.tag)
    }

    /// Runs one statement of `sql` and discards its rows. Errors show the line in the whole text.
    pub(crate) async fn execute_statement(
        &mut self,
        sql: &str,
        part: Range<usize>,
    ) -> Result<String, Error> {
        let start = part.start;
        self.encode(|out| frontend::query(&sql[part], out))?;
        Ok(self
            .exchange_at(sql, start, QueryProtocol::Script)
            .await?
            .tag)
    }

    /// Like [`DatabaseSession::execute_statement`], but returns the rows.
    pub(crate) async fn query_statement(
        &mut self,
        sql: &str,
        part: Range<usize>,
    ) -> Result<QueryOutput, Error> {
        let start = part.start;
        self.encode(|out| frontend::query(&sql[part], out))?;
        self.exchange_at(sql, start, QueryProtocol::Simple).await
    }

    /// Parses one statement as `name`. Returns the types of its parameters.
    pub async fn prepare(&mut self, name: &str, sql: &str) -> Result<Vec<Oid>, Error> {
        self.encode(|out| frontend::parse(name, sql, [], out))?;
        frontend::describe(b'S', name, &mut self.outbox).context("writing a message")?;
        frontend::sync(&mut self.outbox);
        Ok(self
            .exchange(sql, QueryProtocol::Extended)
            .await?
            .parameters)
    }

    /// Runs the prepared statement `name` with parameters in text format. `sql` is only used in
    /// errors.
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

    /// Runs one internal statement with text parameters.
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

    /// Returns the place of the server's error in the last text, if there was one.
    pub(crate) fn failure_site(&self) -> Option<FailureSite> {
        self.failure_site
    }

    /// Gives the next requests the time of the limits, from now.
    pub(crate) fn renew_deadline(&mut self) {
        self.deadline = Instant::now() + self.limits.time;
    }

    /// Waits without a deadline for a notification. Returns at once if one arrived earlier.
    pub(crate) async fn notified(&mut self) -> Result<(), Error> {
        while !mem::take(&mut self.notified) {
            while let Some(message) = self.parse()? {
                self.notified |= matches!(message, Message::NotificationResponse(_));
            }
            if !self.notified {
                self.inbox.reserve(READ_BYTES);
                if let Ok(0) | Err(_) = self.stream.read_buf(&mut self.inbox).await {
                    return Err(Error::DatabaseUnreachable);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a transaction is open and has not failed.
    pub fn in_transaction(&self) -> bool {
        self.transaction == b'T'
    }

    async fn exchange(&mut self, sql: &str, protocol: QueryProtocol) -> Result<QueryOutput, Error> {
        self.exchange_at(sql, 0, protocol).await
    }

    /// `start` is the position in `sql` of the sent text, in bytes.
    async fn exchange_at(
        &mut self,
        sql: &str,
        start: usize,
        protocol: QueryProtocol,
    ) -> Result<QueryOutput, Error> {
        self.busy = true;
        self.failure_site = None;
        self.send().await?;
        let mut completed = 0;
        let mut answer = QueryOutput::default();
        let mut described = None;
        let mut failure = None;
        loop {
            let message = match self.receive().await {
                // The server sends an error message before it closes the connection.
                Err(SessionFailure::Lost) if failure.is_some() => break,
                received => received?,
            };
            match message {
                Message::RowDescription(body) => described = Some(columns(&body)?),
                Message::ParameterDescription(body) => answer.parameters = parameters(&body)?,
                Message::DataRow(_) if protocol == QueryProtocol::Script => {}
                Message::DataRow(row) => {
                    if let Some(columns) = described.take() {
                        answer.rows = ResultRows::new(columns);
                    }
                    answer.rows.push(&row, &self.limits)?;
                }
                Message::CommandComplete(body) => {
                    completed += 1;
                    body.tag()
                        .context("reading a command tag")?
                        .clone_into(&mut answer.tag);
                }
                Message::ErrorResponse(body) => failure = Some(SqlError::read(&body)),
                Message::CopyInResponse(_) => self.refuse_copy(protocol).await?,
                Message::CopyOutResponse(_) => {
                    return Err(Error::invalid("query", COPY_UNAVAILABLE));
                }
                Message::ReadyForQuery(ready) => {
                    self.set_ready(ready.status());
                    break;
                }
                Message::NotificationResponse(_) => self.notified = true,
                // Notices and parameter changes are discarded.
                _ => {}
            }
        }
        match failure {
            None => Ok(answer),
            // The server reports a cancellation without its cause.
            Some(error) if error.code == "57014" && self.cancelled => {
                Err(SqlError::statement_timeout().into_error(sql))
            }
            Some(error) => {
                let error = error.shifted_by(sql[..start].chars().count());
                self.failure_site = Some(FailureSite {
                    completed,
                    position: error.byte_position(sql),
                });
                Err(error.into_error(sql))
            }
        }
    }

    /// Writes a message with a customer's SQL.
    fn encode(&mut self, write: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<(), Error> {
        write(&mut self.outbox).map_err(|_| {
            // The message may be incomplete.
            self.outbox.clear();
            Error::invalid("query", "must be under 1 GiB and contain no NUL character")
        })
    }

    async fn refuse_copy(&mut self, protocol: QueryProtocol) -> Result<(), Error> {
        frontend::copy_fail(COPY_UNAVAILABLE, &mut self.outbox).context("writing a message")?;
        if protocol == QueryProtocol::Extended {
            // While the server waits for COPY data, it discards other messages, including the first
            // `Sync`.
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

    /// Receives the next message. After the deadline, cancels the statement and waits another
    /// [`CANCEL_GRACE`], because the statement may just be completing and then its result is valid.
    /// Then terminates the backend.
    async fn receive(&mut self) -> Result<Message, SessionFailure> {
        loop {
            if let Some(message) = self.parse()? {
                return Ok(message);
            }
            // Checked first, because a stream of notices may always be readable.
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
    /// Cancels the running statement after an early exit: an exceeded limit, an error, or a
    /// disconnected client.
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
    /// Simple protocol with discarded rows.
    Script,
    Extended,
}

const COPY_UNAVAILABLE: &str =
    "COPY from or to the client is not available here; use insert and select";

/// Reasons why a session cannot continue.
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

/// Returns the error for a rejected login.
fn login_error(error: SqlError, database: &str) -> Error {
    match error.code.get(..2) {
        // The server is full. A connection limit that the owner set on role or database has the
        // same code and another text.
        Some("53") if !error.summary().contains("too many connections for") => Error::Busy {
            retry: concurrency_limit::RETRY,
        },
        // The server is starting or stopping.
        Some("57") if !error.summary().contains("too many connections for") => {
            Error::DatabaseUnreachable
        }
        // The role may not log in, or does not exist.
        Some("28") => Error::DatabaseRefuses(error.summary()),
        // The default database rejects connections (55), does not exist (3D), denies access (42) or
        // has a connection limit (53), or the role to switch to does not exist or is not permitted
        // (22, 42).
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
