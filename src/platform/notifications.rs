//! Keeps nodes of one mind: each hears what the others changed, and who takes something away can wait until all have.
//!
//! Triggers announce every change in its transaction. A node answers a `settle` that follows with its own process id,
//! so whoever sees all answers knows that no cache still believes the old.

use std::{future::poll_fn, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_postgres::AsyncMessage;

use crate::{
    base::{
        db::Db,
        error::{Context, Error},
    },
    platform::{context::PlatformContext, tables::Table},
};

/// By this name a listening connection is known in `pg_stat_activity`.
const LISTENER: &str = "gantry listener";
/// Begins a notification that asks to be answered; what follows is the channel for it.
const SETTLE: &str = "settle:";
/// Pause before a lost connection is made again.
const PAUSE: Duration = Duration::from_millis(200);
/// After this time those who have not answered are asked again: they may have begun to listen a moment too late.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long to wait for nodes that do not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the process ends, reconnecting as often as it must.
pub async fn run(context: PlatformContext) {
    // Deaf: what is read now may be untrue a moment later, and nobody would say so.
    context.set_subscribed(false);
    loop {
        if let Err(error) = listen(&context).await {
            tracing::warn!(%error, "not hearing what other nodes change; nothing is cached until this is mended");
        }
        context.set_subscribed(false);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen(context: &PlatformContext) -> Result<(), Error> {
    context.db.until_available().await;
    let (client, mut connection) = tokio::select! {
        connected = context.db.dedicated(LISTENER) => connected.context("connecting to hear notifications")?,
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
                // What changed before the subscription stood was not heard.
                context.set_subscribed(true);
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                Some(Ok(AsyncMessage::Notification(notification))) => hear(context, notification.payload(), pid),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("hearing notifications"),
                None => return Ok(()),
            },
            // It hangs: what others change meanwhile may never be heard on this connection.
            () = context.db.until_away() => return Err(Error::control_database_away()),
        }
    }
}

fn hear(context: &PlatformContext, payload: &str, pid: Option<i32>) {
    if let Some(channel) = payload.strip_prefix(SETTLE) {
        // Not subscribed for long enough to know our own name: we are asked again.
        if let Some(pid) = pid {
            let (db, channel) = (context.db.clone(), channel.to_owned());
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

/// Returns when every listening node has heard everything committed before the call: the next request anywhere is
/// decided by it. One round trip where nobody listens, two where somebody does.
///
/// Fails if a node does not answer within five seconds. It still believes what it knows for as long as its cache
/// lives, half a minute at most.
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
    let outcome = ask(&client, &mut answers).await;
    driver.abort();
    outcome
}

async fn ask(
    client: &tokio_postgres::Client,
    answers: &mut mpsc::Receiver<i32>,
) -> Result<(), Error> {
    let own = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .context("asking nodes")?
        .get::<_, i32>(0);
    let channel = format!("gantry_settled_{own}");
    client
        .batch_execute(&format!("listen {channel}"))
        .await
        .context("asking nodes")?;
    let listeners = "select pid from pg_stat_activity where datname = current_database() and application_name = $1";
    let mut answered = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Who went away meanwhile heard nothing, and believes nothing.
        let rows = client
            .query(listeners, &[&LISTENER])
            .await
            .context("asking nodes")?;
        let mut silent: Vec<i32> = rows
            .iter()
            .map(|row| row.get(0))
            .filter(|pid| !answered.contains(pid))
            .collect();
        if silent.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::internal(
                "asking nodes",
                "a node does not answer; it may believe the old for half a minute",
            ));
        }
        let question = format!("{SETTLE}{channel}");
        client
            .execute("select pg_notify('gantry', $1)", &[&question])
            .await
            .context("asking nodes")?;
        let again = deadline.min(Instant::now() + ASK_AGAIN);
        while !silent.is_empty() {
            let Ok(Some(pid)) = timeout_at(again, answers.recv()).await else {
                break;
            };
            silent.retain(|waited| *waited != pid);
            answered.push(pid);
        }
    }
}
