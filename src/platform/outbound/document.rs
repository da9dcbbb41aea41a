//! Documents at URLs that customers choose: over HTTPS, from public addresses, within bounds of
//! time and size. Redirects are not followed.

use std::borrow::Cow;

use bytes::Bytes;
use gantry_base::net::outbound::OutboundPolicy;
use http::{Request, header};
use http_body_util::Full;
use url::{Host, Url};

use super::{OutboundClient, OutboundError, OutboundUse, UrlOwner};

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 2048;

/// The reason why a document cannot be read, in a form for clients.
pub type DocumentProblem = Cow<'static, str>;

/// Parses a URL that clients may choose: HTTPS, or HTTP to a loopback address, which the policy
/// then has to permit.
pub fn parse_url(policy: &OutboundPolicy, text: &str) -> Result<Url, DocumentProblem> {
    let url = Url::parse(text).map_err(|_| "Invalid URL")?;
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    };
    let is_secure = url.scheme() == "https" || url.scheme() == "http" && is_loopback;
    let is_plain = url.username().is_empty() && url.password().is_none();
    if text.len() > URL_BYTES_MAX || !is_secure || !is_plain || url.fragment().is_some() {
        return Err("must be an https URL without user, password and fragment".into());
    }
    policy
        .check_literal(&url)
        .map_err(|refused| refused.to_string())?;
    Ok(url)
}

/// Reads a document.
pub async fn get(
    client: &OutboundClient,
    usage: &OutboundUse,
    owner: UrlOwner,
    (url, accept): (&Url, &'static str),
) -> Result<Bytes, DocumentProblem> {
    let request = Request::get(url.as_str())
        .header(header::ACCEPT, accept)
        .body(Full::default())
        .map_err(|_| "the URL cannot be requested")?;
    let sent = client.send(usage, owner, request).await;
    let response = sent.map_err(|error| problem(&error))?;
    let status = response.status;
    if !status.is_success() {
        return Err(format!("the server answered {status}; redirects are not followed").into());
    }
    Ok(response.body)
}

fn problem(error: &OutboundError) -> DocumentProblem {
    match error {
        // The cause would show the state of ports to the caller.
        OutboundError::Unreachable(_) => "the server cannot be reached".into(),
        OutboundError::Broken => "the response ends early".into(),
        OutboundError::TooLong(bytes_max) => {
            format!("the response is over {} KiB", bytes_max / 1024).into()
        }
        OutboundError::Refused(_) | OutboundError::TimedOut => error.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_other_schemes_and_private_addresses_are_rejected() {
        let strict = OutboundPolicy::default();
        let lenient = OutboundPolicy::new(["127.0.0.0/8".parse().unwrap()]);
        assert!(parse_url(&strict, "https://issuer.example.com/a").is_ok());
        assert!(parse_url(&lenient, "http://127.0.0.1:1/a").is_ok());
        for text in [
            "http://127.0.0.1:1/a",
            "https://127.0.0.1/a",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "http://issuer.example.com",
            "https://user:secret@issuer.example.com",
            "https://issuer.example.com/#a",
            "file:///etc/passwd",
            "issuer.example.com",
            &format!("https://issuer.example.com/{}", "a".repeat(2048)),
        ] {
            assert!(parse_url(&strict, text).is_err(), "{text}");
        }
    }
}
