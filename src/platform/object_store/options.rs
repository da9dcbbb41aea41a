//! Command-line options of the object store, and the location derived from them.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{ArgGroup, Args, ValueEnum};
use secrecy::SecretString;
use url::{Host, Url};

use crate::platform::object_store::sign::Credentials;

/// Options of the object store for log files and backups.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("object_stores").multiple(true)))]
pub struct Flags {
    /// Object store for log files, with the S3 protocol: `s3://bucket/prefix`. All servers of one
    /// control database use the same location, and no other program does. Without it, files are
    /// stored in the logs folder.
    #[arg(long, env = "GANTRY_LOGS_URL", group = "object_stores", requires_all = ["logs_s3_access_key_id", "logs_s3_secret_access_key"], value_name = "URL")]
    pub logs_url: Option<String>,

    /// Endpoint URL, such as `https://minio.internal:9000`. Default: Amazon S3 in the region.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_ENDPOINT",
        requires = "object_stores",
        value_name = "URL"
    )]
    pub logs_s3_endpoint: Option<String>,

    /// Region of the bucket, used to sign requests.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_REGION",
        default_value = "us-east-1",
        value_name = "REGION"
    )]
    pub logs_s3_region: String,

    /// Addressing style of the bucket. Default: host for Amazon S3, path for other endpoints.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_STYLE",
        requires = "object_stores",
        value_enum
    )]
    pub logs_s3_style: Option<Style>,

    /// Access key id. Needs permission to list the bucket and to read, write and delete objects.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_ACCESS_KEY_ID",
        requires = "object_stores",
        value_name = "ID"
    )]
    pub logs_s3_access_key_id: Option<String>,

    /// File with the secret access key.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_SECRET_ACCESS_KEY",
        requires = "object_stores",
        value_name = "FILE"
    )]
    pub logs_s3_secret_access_key: Option<PathBuf>,

    /// File with the session token of a temporary access key.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_SESSION_TOKEN",
        requires = "object_stores",
        value_name = "FILE"
    )]
    pub logs_s3_session_token: Option<PathBuf>,

    /// Additional CA certificate (PEM) for the endpoint.
    #[arg(
        long,
        env = "GANTRY_LOGS_S3_ROOT",
        requires = "object_stores",
        value_name = "FILE"
    )]
    pub logs_s3_root: Option<PathBuf>,

    /// Permit plain HTTP to an endpoint on another machine. Log lines are then readable on the
    /// network.
    #[arg(long, env = "GANTRY_LOGS_S3_PLAIN_HTTP", requires = "object_stores")]
    pub logs_s3_plain_http: bool,
}

/// Addressing style of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// `https://endpoint/bucket/key`.
    Path,
    /// `https://bucket.endpoint/key`.
    Host,
}

/// Location of objects: endpoint, bucket, prefix and credentials.
#[derive(Debug, Clone)]
pub struct Place {
    /// Endpoint URL.
    pub endpoint: Url,
    /// Region used to sign requests.
    pub region: String,
    /// Addressing style of the bucket.
    pub style: Style,
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys, without leading or trailing slash. May be empty.
    pub prefix: String,
    /// Credentials.
    pub credentials: Credentials,
    /// Additional CA certificate.
    pub root: Option<PathBuf>,
}

/// Invalid options.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// No valid bucket in a URL: the option, and the problem.
    #[error("{0} is not s3://bucket/prefix: {1}")]
    Bucket(&'static str, &'static str),
    /// No valid URL in `--logs-s3-endpoint`.
    #[error("--logs-s3-endpoint is not https://host:port: {0}")]
    Endpoint(&'static str),
    /// Plain HTTP to another machine.
    #[error(
        "--logs-s3-endpoint {0} is on another machine, and plain HTTP would expose log lines on the network: use an https:// address, or permit \
         plain HTTP with --logs-s3-plain-http"
    )]
    Plain(String),
    /// A region would become part of a host.
    #[error("--logs-s3-region may have letters, digits and `-`")]
    Region,
    /// The file of a secret cannot be read.
    #[error("cannot read {file}: {cause}")]
    Secret {
        /// Path of the file.
        file: PathBuf,
        /// Cause.
        cause: io::Error,
    },
    /// The file of a secret is empty.
    #[error("{0} does not contain exactly one line with a secret")]
    NoSecret(PathBuf),
}

impl Flags {
    /// Checks the options.
    pub fn check(&self) -> Result<(), PlaceError> {
        self.place().map(drop)
    }

    /// Returns the location, with secrets read from their files. `None` selects the logs folder.
    pub fn place(&self) -> Result<Option<Place>, PlaceError> {
        self.place_of("--logs-url", self.logs_url.as_deref())
    }

    /// Returns the location of a URL with this endpoint and access key. `option` names the URL in
    /// errors.
    pub fn place_of(
        &self,
        option: &'static str,
        url: Option<&str>,
    ) -> Result<Option<Place>, PlaceError> {
        let (Some(named), Some(id), Some(secret)) = (
            self.named(option, url)?,
            &self.logs_s3_access_key_id,
            &self.logs_s3_secret_access_key,
        ) else {
            return Ok(None);
        };
        let Named {
            endpoint,
            style,
            bucket,
            prefix,
        } = named;
        let credentials = Credentials {
            access_key_id: id.clone(),
            secret_access_key: secret_of(secret)?,
            session_token: self
                .logs_s3_session_token
                .as_deref()
                .map(secret_of)
                .transpose()?,
        };
        Ok(Some(Place {
            endpoint,
            region: self.logs_s3_region.clone(),
            style,
            bucket,
            prefix,
            credentials,
            root: self.logs_s3_root.clone(),
        }))
    }

    fn named(&self, option: &'static str, url: Option<&str>) -> Result<Option<Named>, PlaceError> {
        let Some(url) = url else {
            return Ok(None);
        };
        let (bucket, prefix) =
            bucket(url).map_err(|problem| PlaceError::Bucket(option, problem))?;
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.logs_s3_region.is_empty() || !self.logs_s3_region.bytes().all(word) {
            return Err(PlaceError::Region);
        }
        let (endpoint, usual) = if let Some(text) = &self.logs_s3_endpoint {
            (self.endpoint(text)?, Style::Path)
        } else {
            let url = Url::parse(&format!("https://s3.{}.amazonaws.com", self.logs_s3_region))
                .map_err(|_| PlaceError::Region)?;
            // The wildcard certificate of Amazon does not cover bucket names with dots.
            (
                url,
                if bucket.contains('.') {
                    Style::Path
                } else {
                    Style::Host
                },
            )
        };
        Ok(Some(Named {
            endpoint,
            style: self.logs_s3_style.unwrap_or(usual),
            bucket,
            prefix,
        }))
    }

    fn endpoint(&self, text: &str) -> Result<Url, PlaceError> {
        let url = Url::parse(text).map_err(|_| PlaceError::Endpoint("not a URL"))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(PlaceError::Endpoint("the scheme must be https or http"));
        }
        if !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(PlaceError::Endpoint(
                "only a host, a port and a path are allowed",
            ));
        }
        let here = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if url.scheme() == "http" && !here && !self.logs_s3_plain_http {
            return Err(PlaceError::Plain(url.into()));
        }
        Ok(url)
    }
}

/// Returns the location without credentials.
struct Named {
    endpoint: Url,
    style: Style,
    bucket: String,
    prefix: String,
}

/// Parses bucket and prefix of a URL. Their characters are restricted, because both are inserted
/// into URLs unescaped.
fn bucket(url: &str) -> Result<(String, String), &'static str> {
    let rest = url
        .strip_prefix("s3://")
        .ok_or("it must begin with s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let ends = |at: Option<u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !(bucket.len() <= 63
        && bucket.bytes().all(plain)
        && ends(bucket.bytes().next())
        && ends(bucket.bytes().last()))
    {
        return Err("a bucket has at most 63 letters, digits, `.`, `-` and `_`");
    }
    let prefix = prefix.trim_matches('/');
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(plain) && !matches!(part, "." | "..");
    if prefix.len() > 512 || !prefix.is_empty() && !prefix.split('/').all(part) {
        return Err(
            "a prefix has at most 512 letters, digits, `.`, `-` and `_`, separated by single slashes",
        );
    }
    Ok((bucket.to_owned(), prefix.to_owned()))
}

/// Reads a file with a single line.
fn secret_of(file: &Path) -> Result<SecretString, PlaceError> {
    let text = std::fs::read_to_string(file).map_err(|cause| PlaceError::Secret {
        file: file.to_owned(),
        cause,
    })?;
    let secret = text.trim();
    // The value becomes an HTTP header.
    let fits =
        (1..=4096).contains(&secret.len()) && secret.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| secret.into())
        .ok_or_else(|| PlaceError::NoSecret(file.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    const KEY: [&str; 4] = [
        "--logs-s3-access-key-id",
        "A",
        "--logs-s3-secret-access-key",
        "/proc/self/nothing",
    ];

    fn named(line: &[&str]) -> Result<Named, String> {
        let line = [&["x"][..], line, &KEY].concat();
        let flags = Line::try_parse_from(line)
            .map_err(|error| error.to_string())?
            .flags;
        flags
            .named("--logs-url", flags.logs_url.as_deref())
            .map(Option::unwrap)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn logs_url_parses_to_bucket_and_prefix() {
        for (url, bucket, prefix) in [
            ("s3://logs", "logs", ""),
            ("s3://logs/", "logs", ""),
            ("s3://my.logs-1/a/b_c/", "my.logs-1", "a/b_c"),
        ] {
            let named = named(&["--logs-url", url]).ok().unwrap();
            assert_eq!(
                (named.bucket.as_str(), named.prefix.as_str()),
                (bucket, prefix),
                "{url}"
            );
        }
        let long = format!("s3://{}", "b".repeat(64));
        for url in [
            "",
            "logs",
            "http://logs",
            "s3://",
            "s3:///a",
            "s3://u:p@b/a",
            "s3://b:9000/",
            "s3://../a",
            "s3://b/../c",
            "s3://b/a//c",
            "s3://b/%2e",
            "s3://b/a?x",
            &long,
        ] {
            assert!(named(&["--logs-url", url]).is_err(), "{url}");
        }
    }

    #[test]
    fn endpoint_defaults_to_amazon_in_the_region() {
        let place = |line: &[&str]| {
            named(&[&["--logs-url", "s3://logs"], line].concat())
                .map(|it| (it.endpoint.to_string(), it.style))
        };
        assert_eq!(
            place(&[]),
            Ok(("https://s3.us-east-1.amazonaws.com/".into(), Style::Host))
        );
        assert_eq!(
            place(&["--logs-s3-region", "eu-west-1"]),
            Ok(("https://s3.eu-west-1.amazonaws.com/".into(), Style::Host))
        );
        assert_eq!(
            named(&["--logs-url", "s3://my.logs"]).ok().unwrap().style,
            Style::Path
        );
        let minio = ["--logs-s3-endpoint", "http://127.0.0.1:9000"];
        assert_eq!(
            place(&minio),
            Ok(("http://127.0.0.1:9000/".into(), Style::Path))
        );
        assert_eq!(
            place(&[&minio[..], &["--logs-s3-style", "host"]].concat())
                .unwrap()
                .1,
            Style::Host
        );
        for region in ["", "eu west", "a.evil.example/", "x@y"] {
            assert!(place(&["--logs-s3-region", region]).is_err(), "{region}");
        }
    }

    #[test]
    fn plain_http_to_remote_endpoint_requires_the_option() {
        let endpoint = |line: &[&str]| {
            named(&[&["--logs-url", "s3://logs", "--logs-s3-endpoint"], line].concat()).map(drop)
        };
        for good in [
            "https://minio.internal",
            "http://localhost:9000",
            "http://[::1]:9000",
            "https://x.example/storage/v1/s3",
        ] {
            assert_eq!(endpoint(&[good]), Ok(()), "{good}");
        }
        for bad in [
            "http://minio.internal:9000",
            "http://10.0.0.1",
            "http://localhost.evil.example",
        ] {
            assert!(
                endpoint(&[bad])
                    .unwrap_err()
                    .contains("--logs-s3-plain-http"),
                "{bad}"
            );
            assert_eq!(endpoint(&[bad, "--logs-s3-plain-http"]), Ok(()), "{bad}");
        }
        for bad in [
            "minio:9000",
            "ftp://x",
            "https://u:p@x",
            "https://x?a=b",
            "https://x#f",
            "https://",
        ] {
            assert!(
                endpoint(&[bad]).unwrap_err().contains("--logs-s3-endpoint"),
                "{bad}"
            );
        }
    }

    #[test]
    fn credentials_are_read_once_and_redacted() {
        for line in [
            vec!["--logs-url", "s3://b"],
            vec!["--logs-url", "s3://b", KEY[0], KEY[1]],
            vec![KEY[0], KEY[1]],
        ] {
            assert!(
                Line::try_parse_from([&["x"], &line[..]].concat()).is_err(),
                "{line:?}"
            );
        }
        let flags = |file: &str| {
            Line::parse_from(["x", "--logs-url", "s3://b", KEY[0], KEY[1], KEY[2], file]).flags
        };
        assert!(matches!(
            flags("/proc/self/nothing").place(),
            Err(PlaceError::Secret { .. })
        ));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        for (text, fits) in [
            ("hush\n", true),
            ("", false),
            ("\n", false),
            ("two words", false),
            ("a\nb", false),
        ] {
            std::fs::write(&file, text).unwrap();
            let place = flags(file.to_str().unwrap()).place();
            assert_eq!(place.is_ok(), fits, "{text:?}");
            assert!(!format!("{place:?}").contains("hush"));
        }
    }
}
