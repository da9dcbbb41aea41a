//! Generated passwords of the owner `postgres` in the databases of branches (decision 0173).
//!
//! The password is stored sealed, and is returned until the owner sets another one.

use secrecy::SecretString;
use uuid::Uuid;

use super::branch_row::BranchRow;
use crate::{
    api::context::ApiContext,
    control::projects::verifier,
    platform::error::{Context as _, Error},
};

/// Length of a password, in letters and digits.
const LENGTH: usize = 40;

/// A generated password in its stored forms.
pub(super) struct GeneratedPassword {
    /// The form that the server compares logins with.
    pub(super) verifier: String,
    /// The form that [`open`] reads.
    pub(super) sealed: Vec<u8>,
}

impl GeneratedPassword {
    /// Generates the password of a branch.
    pub(super) async fn generate(context: &ApiContext, branch: Uuid) -> Result<Self, Error> {
        let password = SecretString::from(context.entropy.letters(LENGTH));
        let sealing = &context.settings.sealing;
        let sealed = sealing.seal(&context.entropy, &seal_context(branch), &password)?;
        Ok(Self {
            verifier: verifier(password).await?,
            sealed,
        })
    }
}

/// Returns the password of a branch. `None` if the owner set another one, or if the branch was
/// created before passwords were stored.
pub(super) async fn open(
    context: &ApiContext,
    branch: &BranchRow,
) -> Result<Option<SecretString>, Error> {
    let sql = "select sealed_password from branches where id = $1 and sealed_password is not null";
    let rows = context.db.query(sql, &[&branch.id]).await;
    let rows = rows.context("reading the password of a branch")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let place = seal_context(branch.id);
    context.settings.sealing.open(&place, row.get(0)).map(Some)
}

/// Authenticated context of the sealed password: that of another branch cannot be opened.
fn seal_context(branch: Uuid) -> String {
    format!("branch {branch} password")
}
