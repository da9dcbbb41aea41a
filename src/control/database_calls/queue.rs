//! The tables of the extension in a project's database, as the owner of the project.
//!
//! The tables are the tenant's: they may be renamed, have triggers, or be views over anything. So a
//! session has the owner's rights only, each statement has a deadline, and the size of its result
//! is bounded by the statement and by the session.

use std::time::Duration;

use super::{answer::CallAnswer, call::QueuedCall};
use crate::{
    control::database_session::{ConnectTarget, DATABASE, DatabaseSession, OWNER, SessionLimits},
    platform::error::{Context, Error},
};

/// Longest URL, in bytes.
pub(super) const URL_BYTES_MAX: usize = 8 << 10;
/// Longest JSON object of header fields, in bytes.
pub(super) const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Longest body of a request, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// Limits of one statement.
const LIMITS: SessionLimits = SessionLimits {
    time: Duration::from_secs(15),
    rows_max: 1_000,
    bytes_max: 32 << 20,
};
/// Settings of the session, which override those that the tenant attached to role and database.
/// The extension and the idle pause recognise the session by its `application_name`.
const SETTINGS: &[(&str, &str)] = &[
    ("search_path", "pg_catalog"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_isolation", "read committed"),
    ("statement_timeout", "10s"),
    ("lock_timeout", "5s"),
    ("idle_session_timeout", "0"),
    ("client_min_messages", "error"),
    ("application_name", "gantry pg_net"),
];
/// Finds the bundled extension: that of an engine has a worker of its own, and its tables belong to
/// the superuser.
const FIND: &str = "select from pg_extension e \
    join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid \
        and d.deptype = 'e' and d.classid = 'pg_class'::regclass \
    join pg_class c on c.oid = d.objid \
    where e.extname = 'pg_net' and c.oid = to_regclass('net.http_request_queue') \
    and pg_get_userbyid(c.relowner) = current_user";
/// Finds the trigger that announces requests. Extensions of earlier versions have none.
const FIND_TRIGGER: &str = "select from pg_trigger t join pg_proc p on p.oid = t.tgfoid \
    where t.tgrelid = to_regclass('net.http_request_queue') and t.tgenabled in ('O', 'A') \
    and p.pronamespace = to_regnamespace('net') and p.proname = '_announce_requests'";
/// Reads requests in their order, without those in flight or parked (`$1`): at most `$2`, and none
/// after the bodies exceed `$3` bytes. Values that are too long are cut or replaced, and rejected
/// later.
const TAKE: &str = "select id::text, left(method, 16), left(url, $4::int), \
        case when octet_length(headers) > $5::int then '' else headers end, \
        case when bytes > $6::int then 'too long' else encode(body, 'hex') end, \
        timeout_milliseconds::text \
    from (select *, sum(case when bytes > $6::int then 0 else bytes end) \
            over (order by id rows between unbounded preceding and 1 preceding) as preceding \
        from (select id::bigint, method::text, url::text, headers::text, body::bytea, \
                coalesce(octet_length(body::bytea), 0) as bytes, timeout_milliseconds::int \
            from net.http_request_queue \
            where id is not null and id::bigint <> all ($1::bigint[]) \
            order by id limit $2::int) as queued) as measured \
    where coalesce(preceding, 0) < $3::bigint order by measured.id";
/// Stores responses and removes their requests, in one transaction. A request that the tenant
/// removed has no response. Returns the number of requests that were there.
const RECORD: &str = "with answer as materialized (select * from json_to_recordset($1::json) \
        as a (id bigint, status_code int, content_type text, headers jsonb, content text, \
            timed_out boolean, error_msg text)), \
    removed as (delete from net.http_request_queue q using answer a where q.id = a.id \
        returning q.id), \
    stored as (insert into net._http_response \
        (id, status_code, content_type, headers, content, timed_out, error_msg) \
        select * from answer where id in (select id from removed)) \
    select count(*)::text from removed";
/// Removes requests without storing their responses.
const REMOVE: &str = "delete from net.http_request_queue where id = any ($1::bigint[])";
/// Removes responses that are older than six hours, as the original does.
const EXPIRE: &str = "delete from net._http_response where ctid = any (array(\
    select ctid from net._http_response where created < now() - interval '6 hours' \
    order by created limit 10000))";

/// A session with the tables of the extension.
pub(super) struct CallQueue {
    session: DatabaseSession,
    /// Whether a notification announces requests.
    pub(super) is_announced: bool,
}

impl CallQueue {
    /// Opens the queue of a database. Returns `None` if it does not have the bundled extension.
    pub(super) async fn open(target: &ConnectTarget) -> Result<Option<Self>, Error> {
        let session = DatabaseSession::open_once(target, OWNER, DATABASE, SETTINGS, LIMITS);
        let mut session = session.await?;
        if session.simple_query(FIND).await?.rows.is_empty() {
            return Ok(None);
        }
        // Before the first look, so that no request is missed in between.
        session.batch_execute("listen gantry_pg_net").await?;
        let is_announced = !session.simple_query(FIND_TRIGGER).await?.rows.is_empty();
        Ok(Some(Self {
            session,
            is_announced,
        }))
    }

    /// Waits until a transaction with requests was committed.
    pub(super) async fn notified(&mut self) -> Result<(), Error> {
        self.session.notified().await
    }

    /// Reads at most `count` requests that are not among the excluded ones.
    pub(super) async fn take(
        &mut self,
        excluded: impl Iterator<Item = i64>,
        count: usize,
        bytes_max: usize,
    ) -> Result<Vec<QueuedCall>, Error> {
        self.session.renew_deadline();
        let ids = id_array(excluded);
        let numbers = [
            count,
            bytes_max,
            URL_BYTES_MAX + 1,
            HEADERS_BYTES_MAX,
            BODY_BYTES_MAX,
        ];
        let [count, bytes_max, url, headers, body] = numbers.map(|number| number.to_string());
        let parameters = [&ids, &count, &bytes_max, &url, &headers, &body];
        let parameters = parameters.map(|text| Some(text.as_str()));
        let found = self.session.query(TAKE, &parameters).await?;
        let mut calls = Vec::with_capacity(found.rows.len());
        for row in found.rows.records::<6>() {
            calls.extend(QueuedCall::of_row(row));
        }
        Ok(calls)
    }

    /// Stores responses and removes their requests. Returns the number of removed requests.
    pub(super) async fn record(&mut self, answers: &[CallAnswer]) -> Result<u64, Error> {
        let doing = "storing responses of calls";
        self.session.renew_deadline();
        let json = serde_json::to_string(answers).context(doing)?;
        let stored = self.session.query(RECORD, &[Some(&json)]).await?;
        let count = stored.rows.values().next().unwrap_or_default();
        count.parse().context(doing)
    }

    /// Removes requests without their responses.
    pub(super) async fn remove(&mut self, ids: impl Iterator<Item = i64>) -> Result<(), Error> {
        self.session.renew_deadline();
        let ids = id_array(ids);
        self.session.query(REMOVE, &[Some(&ids)]).await.map(drop)
    }

    /// Removes old responses.
    pub(super) async fn expire(&mut self) -> Result<(), Error> {
        self.session.renew_deadline();
        self.session.batch_execute(EXPIRE).await.map(drop)
    }
}

/// Returns an array in PostgreSQL's text format.
fn id_array(ids: impl Iterator<Item = i64>) -> String {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    format!("{{{}}}", ids.join(","))
}
