//! Log lines of HTTP requests, with the keys shared by the service proxy and the Management API.

use std::net::IpAddr;

use gantry_logs::event::{Attributes, Key, Value};
use hyper::{Method, StatusCode, Version};

/// A request and its response.
pub(super) struct Request<'a> {
    pub(super) method: &'a Method,
    pub(super) scheme: &'a str,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    /// Query string without the question mark.
    pub(super) search: Option<&'a str>,
    pub(super) version: Option<Version>,
    pub(super) client: IpAddr,
    pub(super) user_agent: Option<&'a str>,
    pub(super) status: StatusCode,
    pub(super) took_millis: u64,
}

impl Request<'_> {
    /// Returns the URL, or only the path if the host is unknown.
    fn url(&self) -> String {
        let search = self
            .search
            .map(|search| format!("?{search}"))
            .unwrap_or_default();
        let origin = if self.host.is_empty() {
            String::new()
        } else {
            format!("{}://{}", self.scheme, self.host)
        };
        format!("{origin}{}{search}", self.path)
    }

    /// Adds the searchable attributes and returns the line.
    pub(super) fn describe(&self, all: &mut Attributes) -> String {
        // Sorted by key, as lines store them, so that no insertion moves other attributes.
        let (url, client) = (self.url(), self.client.to_string());
        let line = format!(
            "{} | {} | {client} | {url} | {}",
            self.method,
            self.status.as_u16(),
            self.user_agent.unwrap_or("-")
        );
        if let Some(version) = self.version {
            text(all, "request.cf.httpProtocol", format!("{version:?}"));
        }
        text(all, "request.headers.cf_connecting_ip", client.clone());
        if !self.host.is_empty() {
            text(all, "request.headers.host", self.host);
        }
        if let Some(agent) = self.user_agent {
            text(all, "request.headers.user_agent", agent);
        }
        text(all, "request.headers.x_forwarded_proto", self.scheme);
        text(all, "request.headers.x_real_ip", client);
        if !self.host.is_empty() {
            text(all, "request.host", self.host);
        }
        text(all, "request.method", self.method.as_str());
        text(all, "request.path", self.path);
        text(all, "request.protocol", format!("{}:", self.scheme));
        if let Some(search) = self.search {
            text(all, "request.search", format!("?{search}"));
        }
        text(all, "request.url", url);
        number(
            all,
            "response.origin_time",
            i64::try_from(self.took_millis).unwrap_or(i64::MAX),
        );
        number(all, "response.status_code", self.status.as_u16().into());
        line
    }
}

/// Adds a text attribute.
pub(super) fn text(all: &mut Attributes, key: impl Into<Key>, value: impl Into<String>) {
    all.add(key, Value::Text(value.into()));
}

/// Adds a number attribute.
pub(super) fn number(all: &mut Attributes, key: impl Into<Key>, value: i64) {
    all.add(key, Value::Integer(value));
}
