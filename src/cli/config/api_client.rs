//! A client of the Management API.

use anyhow::Context as _;
use clap::Args;
use gantry_base::net::{
    http_client::{HttpClient, RequestError},
    outbound::OutboundPolicy,
};
use http_body_util::Full;
use hyper::{Method, Request, header};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::time::Duration;
use url::{Host, Url};

/// Largest response, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Timeout of a request. Settings of a server wait for its restart.
const TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug, Args)]
pub(in crate::cli) struct ApiOptions {
    /// URL of the server.
    #[arg(long, env = "GANTRY_URL", value_name = "URL")]
    url: Option<Url>,
    /// Personal access token. As an option it can be read by other users of this machine.
    #[arg(
        long,
        env = "GANTRY_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<SecretString>,
}

impl ApiOptions {
    /// Returns a client. Rejects plain HTTP to another machine, because of the token.
    pub(super) fn client(self) -> anyhow::Result<ApiClient> {
        let url = self
            .url
            .context("name the server with --url or GANTRY_URL")?;
        let token = self
            .token
            .context("set GANTRY_TOKEN to a personal access token")?;
        let is_local = match url.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        anyhow::ensure!(
            url.scheme() == "https" || url.scheme() == "http" && is_local,
            "the URL of the server must begin with https://"
        );
        Ok(ApiClient {
            base: url.as_str().trim_end_matches('/').to_owned(),
            token,
            client: HttpClient::new(&OutboundPolicy::unrestricted()),
        })
    }
}

/// A client with the token of a user.
pub(super) struct ApiClient {
    base: String,
    token: SecretString,
    client: HttpClient,
}

impl ApiClient {
    /// Calls an operation without a body.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None).await
    }

    /// Calls an operation with a JSON body.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Calls an operation. Fails with its message if it is rejected.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let bearer = format!("Bearer {}", self.token.expose_secret());
        let request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, bearer)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body.map_or_else(String::new, Value::to_string)))?;
        let sent = self.client.send(request, TIMEOUT, RESPONSE_BYTES_MAX).await;
        let mut response = sent.map_err(problem)?;
        let body = response.bytes().await.map_err(problem)?;
        let status = response.status;
        let answer = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if !status.is_success() {
            let message = answer["message"].as_str().unwrap_or("no message");
            anyhow::bail!("{method} {path}: {}: {message}", status.as_u16());
        }
        Ok(answer)
    }
}

/// Describes why a request got no complete response.
fn problem(error: RequestError) -> anyhow::Error {
    let context = match &error {
        RequestError::Body(error) => {
            return anyhow::anyhow!("the response cannot be read: {error}");
        }
        RequestError::TimedOut(_) => "the server did not answer in time",
        RequestError::Refused(_) | RequestError::Connection(_) => "the server cannot be reached",
    };
    anyhow::Error::new(error).context(context)
}
