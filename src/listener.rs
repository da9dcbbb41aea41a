//! Hears what other nodes changed: notifications of the control database clear caches and wake the reconciler.

use std::{future::poll_fn, time::Duration};

use tokio_postgres::AsyncMessage;

use crate::{
    app::App,
    error::{Context, Error},
};

/// Pause before a lost connection is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until the process ends, reconnecting as often as it must.
pub async fn run(app: App) {
    loop {
        if let Err(error) = listen(&app).await {
            tracing::warn!(%error, "not hearing what other nodes change; caches are cleared until this is mended");
        }
        app.forget_all();
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen(app: &App) -> Result<(), Error> {
    let (client, mut connection) = app.db.dedicated().await.context("connecting to hear notifications")?;
    let subscribe = client.batch_execute("listen gantry");
    tokio::pin!(subscribe);
    let mut subscribed = false;
    loop {
        tokio::select! {
            outcome = &mut subscribe, if !subscribed => {
                outcome.context("subscribing to notifications")?;
                subscribed = true;
                // What changed before the subscription stood was not heard.
                app.forget_all();
                app.reconciler.wake();
            }
            message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                Some(Ok(AsyncMessage::Notification(notification))) => hear(app, notification.payload()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("hearing notifications"),
                None => return Ok(()),
            },
        }
    }
}

fn hear(app: &App, table: &str) {
    app.forget(table);
    if table == "projects" {
        app.reconciler.wake();
    }
}
