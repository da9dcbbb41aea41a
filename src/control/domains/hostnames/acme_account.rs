//! The account at the ACME authority, shared by all nodes.

use instant_acme::{Account, AccountCredentials, NewAccount};
use secrecy::{ExposeSecret, SecretString};

use super::{acme::OrderError, state::CertificateAuthority};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Returns the account at the authority. Creates it on first use.
pub(super) async fn account(
    context: &ControlContext,
    authority: &CertificateAuthority,
) -> Result<Account, OrderError> {
    let doing = "reading the account at the authority";
    if credentials(context, authority).await?.is_none() {
        let contact: Vec<String> = authority
            .contact
            .iter()
            .map(|address| format!("mailto:{address}"))
            .collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let wanted = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (_, credentials) = authority
            .builder()?
            .create(&wanted, authority.directory.clone(), None)
            .await?;
        let text = SecretString::from(serde_json::to_string(&credentials).context(doing)?);
        let sealed = context
            .settings
            .sealing
            .seal(&context.entropy, &authority.place(), &text)?;
        // If two nodes create an account concurrently, the first one is used.
        let sql =
            "insert into acme_accounts (directory, sealed) values ($1, $2) on conflict do nothing";
        context
            .db
            .query(sql, &[&authority.directory, &sealed])
            .await
            .context(doing)?;
    }
    Ok(known_account(context, authority)
        .await?
        .ok_or("it is gone")
        .context(doing)?)
}

/// Returns the account at the authority, if there is one.
pub(super) async fn known_account(
    context: &ControlContext,
    authority: &CertificateAuthority,
) -> Result<Option<Account>, OrderError> {
    let Some(known) = credentials(context, authority).await? else {
        return Ok(None);
    };
    Ok(Some(authority.builder()?.from_credentials(known).await?))
}

async fn credentials(
    context: &ControlContext,
    authority: &CertificateAuthority,
) -> Result<Option<AccountCredentials>, Error> {
    let doing = "reading the account at the authority";
    let rows = context
        .db
        .query(
            "select sealed from acme_accounts where directory = $1",
            &[&authority.directory],
        )
        .await
        .context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let opened = context
        .settings
        .sealing
        .open(&authority.place(), row.get(0))?;
    serde_json::from_str(opened.expose_secret())
        .context(doing)
        .map(Some)
}
