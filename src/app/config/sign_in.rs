//! Options of signing in to the account pages.

use std::path::PathBuf;

use clap::Args;

use super::sections;

/// OpenID Connect provider for signing in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::SIGN_IN.heading)]
pub struct SignInFlags {
    /// Issuer URL of an OpenID Connect provider for signing in to the account pages, `https://…`.
    #[arg(long, env = "GANTRY_OIDC_ISSUER", requires_all = ["oidc_client_id", "oidc_client_secret", "oidc_email_domains"], value_name = "URL")]
    pub oidc_issuer: Option<String>,

    /// Client id of this server at the provider. Register `<address of this
    /// server>/sign-in/provider/return` as redirect URI.
    #[arg(
        long,
        env = "GANTRY_OIDC_CLIENT_ID",
        requires = "oidc_issuer",
        value_name = "ID"
    )]
    pub oidc_client_id: Option<String>,

    /// File with the client secret.
    #[arg(
        long,
        env = "GANTRY_OIDC_CLIENT_SECRET",
        requires = "oidc_issuer",
        value_name = "FILE"
    )]
    pub oidc_client_secret: Option<PathBuf>,

    /// Email domains that the provider is authoritative for. The first sign-in with a verified
    /// address of such a domain is linked to the account with that address. Comma separated.
    #[arg(
        long,
        env = "GANTRY_OIDC_EMAIL_DOMAINS",
        requires = "oidc_issuer",
        value_delimiter = ',',
        value_name = "DOMAIN"
    )]
    pub oidc_email_domains: Vec<String>,

    /// Name of the provider on the sign-in page. Default: the host of the issuer.
    #[arg(
        long,
        env = "GANTRY_OIDC_NAME",
        requires = "oidc_issuer",
        value_name = "NAME"
    )]
    pub oidc_name: Option<String>,
}
