//! Cache invalidation between nodes by LISTEN/NOTIFY.
//!
//! Triggers publish every change in its transaction. [`settle`] sends a notification that each
//! listening node acknowledges with the process id of its session. After all acknowledgements no
//! cache holds a value from before the change.

use std::{future::poll_fn, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_postgres::AsyncMessage;

use crate::platform::{
    context::PlatformContext,
    db::Db,
    error::{Context, Error},
    tables::Table,
};

/// `application_name` of listening sessions in `pg_stat_activity`.
const LISTENER: &str = "gantry listener";
/// Prefix of a notification that requests an acknowledgement, followed by the channel for it.
const SETTLE: &str = "settle:";
/// Delay before reconnecting.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);
/// Interval between requests to nodes that have not acknowledged: a node may have subscribed after
/// the last one.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit of all acknowledgements.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens for notifications until the process ends, and reconnects after errors.
pub async fn run(context: PlatformContext) {
    // Not subscribed yet: disable caching.
    context.set_subscribed(false);
    loop {
        if let Err(error) = listen(&context).await {
            tracing::warn!(%error, "notifications lost; caching disabled until reconnected");
        }
        context.set_subscribed(false);
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

async fn listen(context: &PlatformContext) -> Result<(), Error> {
    context.db.until_available().await;
    let (client, mut connection) = tokio::select! {
        connected = context.db.dedicated(LISTENER) => connected.context("connecting to listen for notifications")?,
        () = context.db.until_away() => return Err(Error::control_database_away()),
    };
    let subscribe = async {
        client.batch_execute("listen gantry").await?;
        client
            .query_one("select pg_backend_pid()", &[])
            .await
            .map(|row| row.get::<_, i32>(0))
    };
    tokio::pin!(subscribe);
    let mut pid = None;
    loop {
        tokio::select! {
            outcome = &mut subscribe, if pid.is_none() => {
                pid = Some(outcome.context("subscribing to notifications")?);
                // Changes before the subscription were not received.
                context.set_subscribed(true);
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                Some(Ok(AsyncMessage::Notification(notification))) => handle(context, notification.payload(), pid),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("receiving notifications"),
                None => return Ok(()),
            },
            // The connection may hang and miss notifications.
            () = context.db.until_away() => return Err(Error::control_database_away()),
        }
    }
}

/// Acknowledges a settle request, or publishes a change to this node's listeners.
fn handle(context: &PlatformContext, payload: &str, pid: Option<i32>) {
    if let Some(channel) = payload.strip_prefix(SETTLE) {
        // Without a process id the subscription is incomplete; the request is repeated.
        if let Some(pid) = pid {
            let db = context.db.clone();
            let channel = channel.to_owned();
            tokio::spawn(async move {
                db.query("select pg_notify($1, $2)", &[&channel, &pid.to_string()])
                    .await
            });
        }
        return;
    }
    if let Some(table) = Table::from_name(payload) {
        context.table_notified(table);
    }
}

/// Returns when every listening node has processed all changes committed before the call, so the
/// next request on any node sees them. Takes one round trip without listeners, two with listeners.
///
/// Fails if a node does not acknowledge within five seconds. That node may use cached values until
/// they expire, at most half a minute.
pub async fn settle(db: &Db) -> Result<(), Error> {
    tokio::select! {
        settled = settle_over(db) => settled,
        () = db.until_away() => Err(Error::control_database_away()),
    }
}

async fn settle_over(db: &Db) -> Result<(), Error> {
    let (client, mut connection) = db
        .dedicated("gantry")
        .await
        .context("connecting to the control database")?;
    let (sender, mut answers) = mpsc::channel(64);
    let driver = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(notification) = message
                && let Ok(pid) = notification.payload().parse::<i32>()
                && sender.send(pid).await.is_err()
            {
                break;
            }
        }
    });
    let outcome = collect_acknowledgements(&client, &mut answers).await;
    driver.abort();
    outcome
}

async fn collect_acknowledgements(
    client: &tokio_postgres::Client,
    answers: &mut mpsc::Receiver<i32>,
) -> Result<(), Error> {
    let own = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .context("waiting for acknowledgements")?
        .get::<_, i32>(0);
    let channel = format!("gantry_settled_{own}");
    client
        .batch_execute(&format!("listen {channel}"))
        .await
        .context("waiting for acknowledgements")?;
    let listeners = "select pid from pg_stat_activity where datname = current_database() and application_name = $1";
    let mut answered = Vec::new();
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        // A node without a session has disabled its caches.
        let rows = client
            .query(listeners, &[&LISTENER])
            .await
            .context("waiting for acknowledgements")?;
        let mut pending: Vec<i32> = rows
            .iter()
            .map(|row| row.get(0))
            .filter(|pid| !answered.contains(pid))
            .collect();
        if pending.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::internal(
                "waiting for acknowledgements",
                "a node does not acknowledge; its caches may be stale for half a minute",
            ));
        }
        let request = format!("{SETTLE}{channel}");
        client
            .execute("select pg_notify('gantry', $1)", &[&request])
            .await
            .context("waiting for acknowledgements")?;
        let retry_at = deadline.min(Instant::now() + RETRY_INTERVAL);
        while !pending.is_empty() {
            let Ok(Some(pid)) = timeout_at(retry_at, answers.recv()).await else {
                break;
            };
            pending.retain(|waiting| *waiting != pid);
            answered.push(pid);
        }
    }
}
