//! Targets of drains.

use super::config::{BackendType, Settings};
use crate::base::error::Error;

/// Checks settings that are valid field by field.
pub(super) fn check_settings(backend: BackendType, settings: &Settings) -> Result<(), Error> {
    if backend == BackendType::S3 {
        let text = |name: &str| settings.get(name).and_then(|it| it.as_str()).unwrap_or("");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let bucket = text("s3_bucket");
        if bucket.len() > 63 || !bucket.bytes().all(plain) {
            return Err(Error::invalid(
                "data.attributes.config.s3_bucket",
                "expected letters, digits, `.`, `-` and `_`, 63 at most",
            ));
        }
    }
    Ok(())
}
