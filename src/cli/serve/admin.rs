//! The admin listener: health, readiness and metrics, without authentication.

use std::iter::once;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use futures_util::TryFutureExt;
use tower::ServiceExt;

use crate::{
    app::App,
    control::{installation, projects::usage_metrics},
    platform::http::{Body, server},
};

/// Adapts the router to the HTTP server.
pub(super) fn service(router: Router) -> impl server::Service {
    hyper::service::service_fn(move |request| {
        router
            .clone()
            .oneshot(request)
            .map_ok(|answer| answer.map(Body::new))
    })
}

/// Returns the routes of the admin listener. They are neither rate limited nor authenticated.
pub(super) fn router(app: App, warnings: &[&str]) -> Router {
    let health: String = once("ok\n".to_owned())
        .chain(
            warnings
                .iter()
                .map(|warning| format!("warning: {warning}\n")),
        )
        .collect();
    Router::new()
        .route("/healthz", get(|| async { health }))
        .route("/readyz", get(ready))
        .route(
            "/metrics",
            get(|State(app): State<App>| async move {
                usage_metrics::publish(&app.control);
                app.metrics.render()
            }),
        )
        .with_state(app)
}

/// Responds 200 while the control database responds. Damaged log files do not make the server
/// unready, because it answers without their lines, but the body names them. It also names problems
/// of the installation's backups.
async fn ready(State(app): State<App>) -> (StatusCode, String) {
    if app.db.query("select 1", &[]).await.is_err() {
        let text = "the control database does not respond\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    }
    let damage = app.analytics.damage().await.warning();
    let backups = installation::warnings(&app).await;
    let warnings = damage.into_iter().chain(backups);
    let lines =
        once("ready".to_owned()).chain(warnings.map(|warning| format!("warning: {warning}")));
    let mut text = lines.collect::<Vec<_>>().join("\n");
    text.push('\n');
    (StatusCode::OK, text)
}
