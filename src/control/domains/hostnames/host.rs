//! Parsing of custom hostnames into their normalized DNS form.

use std::{fmt, net::IpAddr};

use smol_str::SmolStr;

/// Longest DNS name, without trailing dot.
const BYTES_MAX: usize = 253;
/// Top-level domains without public registrations.
const RESERVED: [&str; 6] = ["arpa", "example", "invalid", "local", "localhost", "onion"];
/// Domains reserved for documentation.
const FOR_DOCUMENTS: [&str; 3] = ["example.com", "example.net", "example.org"];

/// Normalizes a name: lower case, A-labels, no trailing dot.
pub(crate) fn ascii(text: &str) -> Option<String> {
    let name = idna::domain_to_ascii_strict(text.strip_suffix('.').unwrap_or(text)).ok()?;
    (!name.is_empty() && name.len() <= BYTES_MAX).then_some(name)
}

/// A hostname: lower case, A-labels, below a registrable domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host(SmolStr);

/// The reason for rejecting a hostname.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Not a DNS name.
    #[error("expected a hostname such as api.customer.com, without scheme, port or path")]
    Malformed,
    /// An IP address.
    #[error("expected a hostname, not an address")]
    Address,
    /// A reserved domain.
    #[error("this name is reserved")]
    Reserved,
    /// At or below the projects' domain.
    #[error("names below this server's own domain are vanity subdomains")]
    Ours,
    /// A registrable domain itself, which cannot have a CNAME record.
    #[error("expected a subdomain: a CNAME record cannot stand at the top of a domain")]
    Apex,
}

impl Host {
    /// Parses user input. `ours` is the projects' domain.
    pub fn parse(text: &str, ours: &str) -> Result<Self, HostError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.parse::<IpAddr>().is_ok() {
            return Err(HostError::Address);
        }
        let name = idna::domain_to_ascii_strict(text).map_err(|_| HostError::Malformed)?;
        let last = name.rsplit('.').next().unwrap_or_default();
        // Some programs parse such a name as an IP address.
        if last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(if last.is_empty() {
                HostError::Malformed
            } else {
                HostError::Address
            });
        }
        if name.len() > BYTES_MAX || !name.contains('.') {
            return Err(HostError::Malformed);
        }
        let below = |domain: &str| {
            name.strip_suffix(domain)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if below(&ours.to_ascii_lowercase()) {
            return Err(HostError::Ours);
        }
        if RESERVED.contains(&last) || FOR_DOCUMENTS.iter().any(|domain| below(domain)) {
            return Err(HostError::Reserved);
        }
        match psl::domain_str(&name) {
            Some(registrable) if registrable.len() < name.len() => Ok(Self(name.into())),
            _ => Err(HostError::Apex),
        }
    }

    /// Creates a host from a name that was parsed before.
    pub(crate) fn trusted(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the DNS name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Iterates over a name and its ancestors with at least two labels.
pub(crate) fn and_above(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(name);
    std::iter::from_fn(move || {
        let name = rest.take().filter(|name| name.contains('.'))?;
        rest = name.split_once('.').map(|(_, above)| above);
        Some(name)
    })
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, HostError> {
        Host::parse(text, "Projects.test").map(|host| host.to_string())
    }

    #[test]
    fn hostname_is_normalized() {
        for (text, name) in [
            ("api.customer.test", "api.customer.test"),
            ("API.Customer.Test.", "api.customer.test"),
            ("ａｐｉ.customer.com", "api.customer.com"),
            ("bücher.customer.de", "xn--bcher-kva.customer.de"),
            ("a.b.co.uk", "a.b.co.uk"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(name), "{text}");
        }
    }

    #[test]
    fn unusable_hostname_is_rejected() {
        let long = format!("{}.customer.com", "a.".repeat(125));
        for (text, why) in [
            ("", HostError::Malformed),
            ("customer", HostError::Malformed),
            ("https://api.customer.com", HostError::Malformed),
            ("api.customer.com:443", HostError::Malformed),
            ("api.customer.com/x", HostError::Malformed),
            ("*.customer.com", HostError::Malformed),
            ("_x.customer.com", HostError::Malformed),
            ("-a.customer.com", HostError::Malformed),
            ("a..customer.com", HostError::Malformed),
            ("a b.customer.com", HostError::Malformed),
            (long.as_str(), HostError::Malformed),
            ("127.0.0.1", HostError::Address),
            ("::1", HostError::Address),
            ("127.1", HostError::Address),
            ("0x7f.1", HostError::Address),
            ("1.0x7f", HostError::Address),
            ("api.localhost", HostError::Reserved),
            ("printer.local", HostError::Reserved),
            ("1.0.0.127.in-addr.arpa", HostError::Reserved),
            ("api.example.com", HostError::Reserved),
            ("projects.test", HostError::Ours),
            ("shop.PROJECTS.test", HostError::Ours),
            ("customer.com", HostError::Apex),
            ("customer.co.uk", HostError::Apex),
            ("co.uk", HostError::Apex),
        ] {
            assert_eq!(parse(text), Err(why), "{text}");
        }
        assert!(parse("shop.otherprojects.test").is_ok());
    }

    #[test]
    fn ancestors_exclude_the_top_level_domain() {
        assert_eq!(
            and_above("a.b.co.uk").collect::<Vec<_>>(),
            ["a.b.co.uk", "b.co.uk", "co.uk"]
        );
    }
}
