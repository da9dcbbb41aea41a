//! The audience of OAuth access tokens: the resource they are issued for (RFC 8707).
//!
//! The server has two resources. One is the Management API, named by the issuer or by the issuer
//! with `/v1`. The other is the MCP server at `<issuer>/mcp`: tokens for it are accepted there and
//! not by the API. Tokens for the API are accepted by both, because the tools are operations of the
//! API.

use crate::platform::error::{Error, oauth_error};

/// A resource that tokens are issued for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The Management API.
    Api,
    /// The MCP server.
    Mcp,
    /// A resource that an earlier version issued tokens for.
    Other,
}

/// Path of the MCP server's resource, relative to the issuer.
const MCP: &str = "/mcp";

impl Audience {
    /// Returns the audience of an approval from its stored resource. An approval without one is for
    /// the API.
    pub fn stored(resource: Option<&str>) -> Self {
        let Some(resource) = resource else {
            return Self::Api;
        };
        // The stored resource starts with the issuer, which has no path.
        let path = resource
            .split_once("://")
            .map(|(_, rest)| rest.find('/').map_or("", |at| &rest[at..]));
        match path {
            Some("" | "/" | "/v1" | "/v1/") => Self::Api,
            Some(path) if path.strip_suffix('/').unwrap_or(path) == MCP => Self::Mcp,
            Some(_) | None => Self::Other,
        }
    }
}

/// Checks the `resource` parameter of an authorization request. It is stored unchanged, because the
/// token endpoint compares it.
pub fn check(resource: &str, issuer: &str) -> Result<String, Error> {
    let path = resource
        .strip_prefix(issuer)
        .map(|path| path.strip_suffix('/').unwrap_or(path));
    if matches!(path, Some("" | "/v1" | MCP)) {
        return Ok(resource.to_owned());
    }
    Err(oauth_error(
        "invalid_target",
        format!("This server issues tokens for {issuer} and {issuer}{MCP} only."),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://api.example";

    #[test]
    fn check_accepts_resources_of_this_server() {
        for (resource, audience) in [
            ("https://api.example", Audience::Api),
            ("https://api.example/", Audience::Api),
            ("https://api.example/v1", Audience::Api),
            ("https://api.example/v1/", Audience::Api),
            ("https://api.example/mcp", Audience::Mcp),
            ("https://api.example/mcp/", Audience::Mcp),
        ] {
            assert_eq!(check(resource, ISSUER).unwrap(), resource);
            assert_eq!(Audience::stored(Some(resource)), audience, "{resource}");
        }
        assert_eq!(Audience::stored(None), Audience::Api);
    }

    #[test]
    fn check_rejects_other_resources() {
        for other in [
            "https://api.example.evil.example",
            "https://evil.example",
            "https://api.example/v2",
            "https://api.example/v1/projects",
            "https://api.example/V1",
            "https://api.example/mcp/more",
            "https://api.example//",
            "https://api.example/v1/../mcp",
            "https://api.example/#x",
            "https://api.example/?x",
            "https://API.example",
            "mcp",
            "",
        ] {
            assert!(
                matches!(check(other, ISSUER), Err(Error::OAuth(fault)) if fault.error == "invalid_target"),
                "{other}"
            );
        }
    }

    #[test]
    fn stored_resource_of_earlier_version_is_other() {
        for stored in [
            "https://api.example/v1/projects",
            "https://api.example/anything",
            "nonsense",
            "",
        ] {
            assert_eq!(Audience::stored(Some(stored)), Audience::Other, "{stored}");
        }
    }
}
