//! Discovery documents: authorization server metadata (RFC 8414) and protected resource metadata
//! (RFC 9728).

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    authorize::AUTHORIZE,
    operations::{EXCHANGE_STANDARD, INTROSPECT, REGISTER, REVOKE_FORM},
    token_exchange,
};
use crate::platform::{access::Scopes, http::Endpoint};

/// Metadata of the authorization server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OauthServerMetadata")]
#[expect(missing_docs, reason = "the fields of RFC 8414")]
pub struct ServerMetadata {
    pub issuer: String,
    pub authorization_endpoint: String,
    pub token_endpoint: String,
    pub revocation_endpoint: String,
    pub introspection_endpoint: String,
    pub registration_endpoint: String,
    pub scopes_supported: Vec<&'static str>,
    pub response_types_supported: [&'static str; 1],
    pub response_modes_supported: [&'static str; 1],
    pub grant_types_supported: [&'static str; 3],
    pub code_challenge_methods_supported: [&'static str; 1],
    pub token_endpoint_auth_methods_supported: [&'static str; 3],
    pub revocation_endpoint_auth_methods_supported: [&'static str; 3],
    pub introspection_endpoint_auth_methods_supported: [&'static str; 2],
    pub authorization_response_iss_parameter_supported: bool,
}

/// Returns the metadata of the server with this issuer.
pub fn server_metadata(issuer: &str) -> ServerMetadata {
    const METHODS: [&str; 3] = ["client_secret_basic", "client_secret_post", "none"];
    let at = |endpoint: &Endpoint| format!("{issuer}{}", endpoint.path);
    ServerMetadata {
        issuer: issuer.to_owned(),
        authorization_endpoint: at(&AUTHORIZE),
        token_endpoint: at(&EXCHANGE_STANDARD),
        revocation_endpoint: at(&REVOKE_FORM),
        introspection_endpoint: at(&INTROSPECT),
        registration_endpoint: at(&REGISTER),
        scopes_supported: Scopes::all().names(),
        response_types_supported: ["code"],
        response_modes_supported: ["query"],
        grant_types_supported: [
            "authorization_code",
            "refresh_token",
            token_exchange::GRANT_TYPE,
        ],
        code_challenge_methods_supported: ["S256"],
        token_endpoint_auth_methods_supported: METHODS,
        revocation_endpoint_auth_methods_supported: METHODS,
        introspection_endpoint_auth_methods_supported: [
            "client_secret_basic",
            "client_secret_post",
        ],
        authorization_response_iss_parameter_supported: true,
    }
}

/// Metadata of the protected resource.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OauthResourceMetadata")]
#[expect(missing_docs, reason = "the fields of RFC 9728")]
pub struct ResourceMetadata {
    pub resource: String,
    pub authorization_servers: [String; 1],
    pub scopes_supported: Vec<&'static str>,
    pub bearer_methods_supported: [&'static str; 1],
}

/// Returns the metadata of the resource at `path`.
pub fn resource_metadata(issuer: &str, path: &str) -> ResourceMetadata {
    ResourceMetadata {
        resource: format!("{issuer}{path}"),
        authorization_servers: [issuer.to_owned()],
        scopes_supported: Scopes::all().names(),
        bearer_methods_supported: ["header"],
    }
}
