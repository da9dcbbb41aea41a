//! Disk space for copies of clusters.

use gantry_node::{clusters::copy_needs, error::ClusterError};

use super::super::context::ApiContext;
use crate::platform::{
    access::Project,
    error::{Context, Error},
};

/// Most files that are counted.
const INODES_MAX: u64 = 1_000_000;

/// Checks that the copy of a project fits. The copy itself checks again, while it is made.
///
/// Errors: [`Error::Rejected`] with the needed and the free space.
pub(super) async fn check_space(context: &ApiContext, origin: &Project) -> Result<(), Error> {
    let doing = "measuring disk space";
    let driver = &context.driver;
    let usage = match driver.disk_usage(&origin.reference, INODES_MAX).await {
        // Not created yet, which another check reports.
        Err(ClusterError::Missing(_) | ClusterError::Unsupported(_)) => return Ok(()),
        usage => usage.context(doing)?,
    };
    let Some((free, _)) = driver.free_space() else {
        return Ok(());
    };
    let shares = driver.shares_blocks().await.context(doing)?;
    let needed = copy_needs(usage.bytes, shares);
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (needed >> 20, free >> 20);
    let text = format!(
        "Invalid branch configuration for this project: its copy needs {needed} MB, and {free} MB are free"
    );
    Err(Error::Rejected(text.into()))
}
