//! Reloads the routes from the control plane.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::context::ServiceProxyContext;
use crate::platform::error::Error;

/// Reload interval without notifications, in case one was lost.
const RELOAD_INTERVAL_MAX: Duration = Duration::from_secs(30);
/// Minimum time between reloads for changes of project status, which are frequent and rarely
/// matter.
const RELOAD_INTERVAL_MIN: Duration = Duration::from_millis(500);
/// Time until a failed reload is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reloads the routes after each change. Runs until it is dropped.
pub(super) async fn run(context: ServiceProxyContext) {
    let routes = &context.proxy.routes;
    loop {
        let started = Instant::now();
        let announced = routes.begin_reload();
        let pause = match context.directory.routes().await {
            Ok(published) => {
                let domain = &context.settings.project_domain;
                routes.replace(announced, domain, published);
                RELOAD_INTERVAL_MAX
            }
            Err(error) => {
                if !routes.fail(matches!(error, Error::Unavailable { .. })) {
                    tracing::warn!(%error, "failed to reload routes; the previous routes remain in use");
                }
                RETRY_PAUSE
            }
        };
        // A change that is announced before this wait is not missed.
        let notified = timeout(pause, routes.announced()).await.is_ok();
        while notified && routes.is_settled() && started.elapsed() < RELOAD_INTERVAL_MIN {
            tokio::select! {
                () = routes.announced() => {}
                () = sleep_until(started + RELOAD_INTERVAL_MIN) => {}
            }
        }
    }
}
