//! Requests that did not reach a process before its end: they wait for the one that replaces it.

use super::{
    body::BodyError,
    directory::RunningService,
    forwarded::Forwarded,
    upstream_pool::{UpstreamConnection, UpstreamPool},
    upstreams::UpstreamAddress,
};
use crate::proxy::unavailable::Unavailable;

/// Maximum number of replaced processes that one request waits for.
pub(super) const REPLACEMENTS_MAX: usize = 3;

/// The process of a service ended before a request reached it, and there is no other.
#[derive(Debug, thiserror::Error)]
#[error("the service is not available")]
pub(super) struct NotReplaced(pub(super) Unavailable);

/// Waits for the process that replaces an ended one, and returns its address. Fails with `error`,
/// the failure to connect, if the process has not ended.
pub(super) async fn replace(
    service_use: &mut Option<Box<dyn RunningService>>,
    error: BodyError,
) -> Result<UpstreamAddress, BodyError> {
    let Some(used) = service_use else {
        return Err(error);
    };
    let replaced = used.replacement().await;
    let replaced = replaced.map_err(NotReplaced)?.ok_or(error)?;
    let address = replaced.upstream().address().clone();
    *service_use = Some(replaced);
    Ok(address)
}

/// Opens a connection to the upstream of a request, or to the process that replaces it.
pub(super) async fn connect(
    forwarded: &mut Forwarded<'_>,
) -> Result<UpstreamConnection, BodyError> {
    let mut address = forwarded.upstream.address().clone();
    for _ in 0..REPLACEMENTS_MAX {
        match UpstreamPool::connect(&address).await {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                address = replace(&mut forwarded.service_use, error).await?;
            }
        }
    }
    UpstreamPool::connect(&address).await
}
