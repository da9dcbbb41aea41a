//! A client of the npm registry: downloads packages over HTTPS without npm or Node.
//!
//! The registry's address, its access token and an additional certificate authority come from npm's
//! own configuration (`npm_config_registry`, `.npmrc`), so a company's mirror works without further
//! settings. The format is documented at <https://docs.npmjs.com/cli/v11/configuring-npm/npmrc>;
//! npm's proxy settings are not read.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use gantry_base::net::{
    http_client::{HttpClient, HttpClientOptions},
    outbound::OutboundPolicy,
    tls_client,
};
use http_body_util::Full;
use hyper::{Request, StatusCode, Uri, header};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// The public registry, which is the default of npm's configuration.
const PUBLIC: &str = "https://registry.npmjs.org/";
/// Timeout of one download, enough for 25 MB on a slow line.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of redirects of one download. Mirrors redirect clients to their storage.
const REDIRECTS_MAX: usize = 3;
/// Largest configuration file that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// An error of a download. Each message is one line with the address.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The configured address is not an HTTP address.
    #[error(
        "{0} is not the address of an npm registry; check npm_config_registry and the registry lines of .npmrc"
    )]
    Address(String),
    /// The configured certificate authority cannot be used.
    #[error("the cafile of npm's configuration cannot be read: {0}")]
    Authority(String),
    /// The connection failed, or the response exceeded its size limit.
    #[error("{host} could not be reached: {cause}")]
    Unreachable {
        /// The registry's host.
        host: String,
        /// The error message of the HTTP or TLS library.
        cause: String,
    },
    /// The registry answered with another status than 200.
    #[error("{url} answered {status}")]
    Status {
        /// The requested URL.
        url: String,
        /// The status.
        status: StatusCode,
    },
}

/// The part of npm's configuration that downloads need.
#[derive(Debug, Clone, Default)]
pub struct NpmConfig {
    values: HashMap<String, SecretString>,
}

impl NpmConfig {
    /// Reads environment variables named `npm_config_*`, then `.npmrc` of `folder`, of the user and
    /// of the machine. The first value of a name takes precedence.
    pub fn read(environment: impl IntoIterator<Item = (String, String)>, folder: &Path) -> Self {
        let environment: HashMap<String, String> = environment.into_iter().collect();
        let mut config = Self::default();
        for (name, value) in &environment {
            let name = name.to_ascii_lowercase();
            if let Some(name) = name
                .strip_prefix("npm_config_")
                .filter(|_| !value.is_empty())
            {
                config
                    .values
                    .insert(name.replace('_', "-"), value.clone().into());
            }
        }
        let user = config.get("userconfig").map(PathBuf::from);
        let user = user.or_else(|| Some(Path::new(environment.get("HOME")?).join(".npmrc")));
        let global = config.get("globalconfig").map(PathBuf::from);
        let global = global.map_or_else(
            || {
                vec![
                    "/usr/local/etc/npmrc".into(),
                    "/usr/etc/npmrc".into(),
                    "/etc/npmrc".into(),
                ]
            },
            |file| vec![file],
        );
        for file in [folder.join(".npmrc")]
            .into_iter()
            .chain(user)
            .chain(global)
        {
            let text = crate::files::read_bounded(&file, CONFIG_BYTES_MAX).unwrap_or_default();
            config.add(&text, &environment);
        }
        config
    }

    /// Adds the `name = value` lines of a file, with `${VARIABLE}` replaced. Existing values are
    /// kept.
    fn add(&mut self, text: &str, environment: &HashMap<String, String>) {
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with([';', '#']))
        {
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            let value = expand(value.trim().trim_matches('"'), environment);
            if !value.is_empty() {
                self.values
                    .entry(name.trim().to_owned())
                    .or_insert_with(|| value.into());
            }
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(ExposeSecret::expose_secret)
    }

    /// Returns the registry of a package, with a trailing slash: that of its scope
    /// (`@scope:registry`), else the general one.
    fn registry(&self, package: &str) -> Result<Url, RegistryError> {
        let scope = package
            .split_once('/')
            .and_then(|(scope, _)| self.get(&format!("{scope}:registry")));
        let text = scope.or_else(|| self.get("registry")).unwrap_or(PUBLIC);
        let refused = || RegistryError::Address(text.to_owned());
        let url = Url::parse(&format!("{}/", text.trim_end_matches('/'))).map_err(|_| refused())?;
        if matches!(url.scheme(), "https" | "http") && url.host().is_some() {
            Ok(url)
        } else {
            Err(refused())
        }
    }

    /// Returns the access token for a URL: that of the longest matching prefix
    /// (`//host/path/:_authToken`).
    fn token(&self, url: &Url) -> Option<&SecretString> {
        let address = format!("//{}{}", url.authority(), url.path());
        let prefixes = self
            .values
            .iter()
            .filter_map(|(name, value)| Some((name.strip_suffix(":_authToken")?, value)));
        let fitting = prefixes.filter(|(prefix, _)| {
            address.starts_with(&format!("{}/", prefix.trim_end_matches('/')))
        });
        fitting
            .max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, value)| value)
    }
}

/// Replaces `${NAME}` by the variable's value. Unknown variables are left unchanged.
fn expand(text: &str, environment: &HashMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        match after.split_once('}') {
            Some((name, behind)) if environment.contains_key(name) => {
                expanded.push_str(&environment[name]);
                rest = behind;
            }
            _ => {
                expanded.push_str("${");
                rest = after;
            }
        }
    }
    expanded.push_str(rest);
    expanded
}

/// A registry that packages are downloaded from.
#[derive(Debug)]
pub struct Registry {
    config: NpmConfig,
    client: HttpClient,
}

impl Registry {
    /// Creates a client without connecting.
    pub fn new(config: NpmConfig) -> Result<Self, RegistryError> {
        let mut roots = RootCertStore::clone(&tls_client::system_roots());
        if let Some(file) = config.get("cafile") {
            let unusable = |error: rustls::pki_types::pem::Error| {
                RegistryError::Authority(format!("{file}: {error}"))
            };
            let certificates = CertificateDer::pem_file_iter(file).map_err(unusable)?;
            roots.add_parsable_certificates(
                certificates
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(unusable)?,
            );
        }
        let options = HttpClientOptions {
            connect_timeout: CONNECT_TIMEOUT,
            roots: Arc::new(roots),
            ..HttpClientOptions::default()
        };
        // The operator chooses the registry.
        let client = HttpClient::with_options(&OutboundPolicy::unrestricted(), options);
        Ok(Self { config, client })
    }

    /// Downloads the compressed archive of a package's version, of at most `bytes_max` bytes. The
    /// caller checks its digest.
    pub async fn archive(
        &self,
        package: &str,
        version: &str,
        bytes_max: usize,
    ) -> Result<Bytes, RegistryError> {
        let name = package.rsplit('/').next().unwrap_or(package);
        self.get(
            package,
            &format!("{package}/-/{name}-{version}.tgz"),
            "application/octet-stream",
            bytes_max,
        )
        .await
    }

    /// Downloads the abbreviated document of a package, as JSON: its versions, each with
    /// `dist.integrity`.
    pub async fn document(&self, package: &str, bytes_max: usize) -> Result<Bytes, RegistryError> {
        self.get(
            package,
            &package.replace('/', "%2f"),
            "application/vnd.npm.install-v1+json",
            bytes_max,
        )
        .await
    }

    /// Downloads a page of at most `bytes_max` bytes, as HTML.
    pub async fn page(&self, url: Url, bytes_max: usize) -> Result<Bytes, RegistryError> {
        self.within_time(url, "text/html", bytes_max).await
    }

    /// Downloads a file of at most `bytes_max` bytes that is not part of the registry. The caller
    /// checks its digest.
    pub async fn download(&self, url: Url, bytes_max: usize) -> Result<Bytes, RegistryError> {
        self.within_time(url, "application/octet-stream", bytes_max)
            .await
    }

    async fn get(
        &self,
        package: &str,
        path: &str,
        accept: &str,
        bytes_max: usize,
    ) -> Result<Bytes, RegistryError> {
        let registry = self.config.registry(package)?;
        let url = registry
            .join(path)
            .map_err(|_| RegistryError::Address(registry.to_string()))?;
        self.within_time(url, accept, bytes_max).await
    }

    async fn within_time(
        &self,
        url: Url,
        accept: &str,
        bytes_max: usize,
    ) -> Result<Bytes, RegistryError> {
        let host = url.authority().to_owned();
        let late = RegistryError::Unreachable {
            host,
            cause: format!("no complete response within {} s", TIMEOUT.as_secs()),
        };
        tokio::time::timeout(TIMEOUT, self.follow(url, accept, bytes_max))
            .await
            .unwrap_or(Err(late))
    }

    async fn follow(
        &self,
        mut url: Url,
        accept: &str,
        bytes_max: usize,
    ) -> Result<Bytes, RegistryError> {
        for _ in 0..=REDIRECTS_MAX {
            let host = url.authority().to_owned();
            let unreachable = |cause: String| RegistryError::Unreachable {
                host: host.clone(),
                cause,
            };
            let uri: Uri = url
                .as_str()
                .parse()
                .map_err(|_| RegistryError::Address(url.to_string()))?;
            let mut request = Request::get(uri).header(header::ACCEPT, accept);
            // The token is looked up again for each redirect: the storage of a mirror must not
            // receive it.
            if let Some(token) = self.config.token(&url) {
                request = request.header(
                    header::AUTHORIZATION,
                    format!("Bearer {}", token.expose_secret()),
                );
            }
            let request = request
                .body(Full::default())
                .map_err(|error| unreachable(error.to_string()))?;
            let sent = self.client.send(request, TIMEOUT, bytes_max).await;
            let mut response = sent.map_err(|error| unreachable(chain(&error)))?;
            let status = response.status;
            if status == StatusCode::OK {
                let body = response.bytes().await;
                return body.map_err(|error| unreachable(error.to_string()));
            }
            let location = response
                .headers
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok());
            match location
                .and_then(|location| url.join(location).ok())
                .filter(|_| status.is_redirection())
            {
                // HTTPS is never redirected to plain HTTP.
                Some(next) if next.scheme() == "https" || next.scheme() == url.scheme() => {
                    url = next;
                }
                _ => {
                    return Err(RegistryError::Status {
                        url: url.to_string(),
                        status,
                    });
                }
            }
        }
        Err(RegistryError::Status {
            url: url.to_string(),
            status: StatusCode::LOOP_DETECTED,
        })
    }
}

/// Formats an error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn config(lines: &str, environment: &[(&str, &str)]) -> NpmConfig {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".npmrc"), lines).unwrap();
        let nowhere = [
            ("HOME", "/nonexistent"),
            ("npm_config_globalconfig", "/nonexistent"),
        ];
        let environment = nowhere
            .iter()
            .chain(environment)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        NpmConfig::read(environment, folder.path())
    }

    #[test]
    fn registry_address_follows_npm_precedence() {
        let of = |lines: &str, environment: &[(&str, &str)]| {
            config(lines, environment)
                .registry("@scope/name")
                .unwrap()
                .to_string()
        };
        assert_eq!(of("", &[]), PUBLIC);
        assert_eq!(
            of("registry = https://mirror.example/npm", &[]),
            "https://mirror.example/npm/"
        );
        assert_eq!(
            of(
                "registry=https://a.example",
                &[("NPM_CONFIG_REGISTRY", "https://b.example/")]
            ),
            "https://b.example/"
        );
        assert_eq!(
            of(
                "# x\n@scope:registry=https://c.example\n",
                &[("npm_config_registry", "https://b.example")]
            ),
            "https://c.example/"
        );
        assert_eq!(of("@other:registry=https://c.example", &[]), PUBLIC);
        assert_eq!(
            of("registry=\"https://${HOST}/x\"", &[("HOST", "d.example")]),
            "https://d.example/x/"
        );
        for bad in [
            "registry=ftp://a.example",
            "registry=here",
            "registry=file:///etc",
        ] {
            assert!(config(bad, &[]).registry("name").is_err(), "{bad}");
        }
    }

    #[test]
    fn token_is_sent_to_configured_prefix_only() {
        let lines =
            "//mirror.example/:_authToken=short\n//mirror.example/npm/:_authToken=${TOKEN}\n";
        let config = config(lines, &[("TOKEN", "long")]);
        let token = |url: &str| {
            config
                .token(&url.parse().unwrap())
                .map(|token| token.expose_secret().to_owned())
        };
        assert_eq!(
            token("https://mirror.example/npm/@scope/name").as_deref(),
            Some("long")
        );
        assert_eq!(
            token("https://mirror.example/npmx").as_deref(),
            Some("short")
        );
        assert_eq!(token("https://mirror.example.evil.example/npm/"), None);
        assert_eq!(token("https://other.example/npm/"), None);
        assert!(!format!("{config:?}").contains("long"));
    }

    /// Answers each connection with the next of `answers`. The task returns the requests.
    async fn server(answers: Vec<String>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let mut read = 0;
                while !bytes[..read].ends_with(b"\r\n\r\n") {
                    read += stream.read(&mut bytes[read..]).await.unwrap();
                }
                requests.push(String::from_utf8(bytes[..read].to_vec()).unwrap());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        });
        (address, task)
    }

    #[tokio::test]
    async fn redirected_download_does_not_send_the_token() {
        let body =
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\narchive".to_owned();
        let (storage, stored) = server(vec![body]).await;
        let redirect = format!(
            "HTTP/1.1 302 Found\r\nlocation: {storage}/blob\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let (mirror, asked) = server(vec![redirect]).await;
        let lines = format!(
            "registry={mirror}/npm\n{}/npm/:_authToken=secret\n",
            mirror.trim_start_matches("http:")
        );
        let registry = Registry::new(config(&lines, &[])).unwrap();
        let archive = registry.archive("@scope/name", "1.2.3", 7).await.unwrap();
        assert_eq!(&archive[..], b"archive");
        let asked = asked.await.unwrap().remove(0);
        assert!(
            asked.starts_with("GET /npm/@scope/name/-/name-1.2.3.tgz HTTP/1.1\r\n"),
            "{asked}"
        );
        assert!(
            asked.contains("authorization: Bearer secret\r\n"),
            "{asked}"
        );
        assert!(
            !stored.await.unwrap()[0].contains("authorization"),
            "the storage is another host"
        );
    }

    #[tokio::test]
    async fn download_over_size_limit_or_with_error_status_is_rejected() {
        let long =
            "HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\narchives".to_owned();
        let missing =
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned();
        let (mirror, _asked) = server(vec![long, missing]).await;
        let registry = Registry::new(config(&format!("registry={mirror}"), &[])).unwrap();
        assert!(matches!(
            registry.archive("name", "1", 7).await,
            Err(RegistryError::Unreachable { .. })
        ));
        let refused = registry
            .document("@scope/name", 7)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            format!("{mirror}/@scope%2fname answered 404 Not Found")
        );
    }
}
