//! Secrets of a project that a copy of its data must not keep.

use secrecy::SecretString;

use super::{list, ring};
use crate::{
    control::context::ControlContext,
    platform::{access::Project, error::Error},
};

/// Returns the secrets of a project, each with its replacement in a copy of the project's data: the
/// JWT secret of the copy, and a placeholder for keys.
pub async fn replacements(
    context: &ControlContext,
    project: &Project,
    copy: &Project,
) -> Result<Vec<(SecretString, SecretString)>, Error> {
    let own = ring(context, project).await?.jwt_secret;
    let replacement = ring(context, copy).await?.jwt_secret;
    let mut secrets = vec![(own, replacement)];
    for key in list(context, project, true).await? {
        secrets.push((key.key.into(), "removed-key".into()));
    }
    Ok(secrets)
}
