//! Access tokens, as pages handle them.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// What the operation answers that makes a token.
#[derive(Deserialize)]
pub(super) struct Made {
    token: SecretString,
}

impl Made {
    /// In clear, to be handed on.
    pub(super) fn expose(&self) -> &str {
        self.token.expose_secret()
    }
}
