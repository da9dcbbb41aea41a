//! File work outside the async threads.

use std::path::Path;

use crate::error::{At, ClusterError, Result};

/// Runs file work in the background, at the lowest scheduling priority.
pub(crate) async fn idle<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    /// The lowest scheduling priority.
    const NICE: i32 = 19;
    let (sender, outcome) = tokio::sync::oneshot::channel();
    let run = move || {
        // On Linux the priority is per thread. Without the permission the work runs at normal
        // priority.
        let _ = rustix::process::setpriority_process(None, NICE);
        // Fails if the caller was cancelled.
        let _ = sender.send(work());
    };
    // In a separate thread: an unprivileged thread cannot raise its priority again.
    std::thread::Builder::new()
        .name("idle".to_owned())
        .spawn(run)
        .at("starting a thread for", Path::new("idle work"))?;
    outcome.await.unwrap_or(Err(ClusterError::ShuttingDown))
}

/// Runs blocking file work outside the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
        Err(_) => Err(ClusterError::ShuttingDown),
    }
}
