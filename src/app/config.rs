//! The server's options: one clap struct. Flag, environment variable, help text and `docs/reference/configuration.md` are one.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use chrono::TimeDelta;
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::{
    base::object_store,
    data_plane::{
        clusters::{Home, ResourceLimits},
        service_proxy::upstreams,
    },
    platform::{http::ClientHeader, rate_limits, telemetry::LogFormat},
};

/// The data folder nobody chose.
const DATA_DIR: &str = "./.gantry";

/// Where Gantry keeps things: options of every command that touches the control database.
#[derive(Debug, Clone, Args)]
pub struct ControlOptions {
    /// Folder that holds the clusters and everything else Gantry keeps.
    #[arg(long, env = "GANTRY_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,

    /// Folder with PostgreSQL's programs (`postgres`, `initdb`). Without it, the newest installed is used.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,

    /// Control database, PostgreSQL 15 or newer. Without it, Gantry runs a control cluster of its own in the data folder.
    #[arg(
        long,
        env = "GANTRY_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database_url: Option<SecretString>,
}

impl ControlOptions {
    /// The data folder, or where servers can enter if they cannot enter the default one: under a private home directory,
    /// say. One that was chosen is taken as it is.
    pub fn home(&self) -> PathBuf {
        let default = Path::new(DATA_DIR);
        if self.data_dir != default || Home::reachable(default) {
            return self.data_dir.clone();
        }
        let place = std::path::absolute(default).unwrap_or_else(|_| default.to_owned());
        let digest = Sha256::digest(place.as_os_str().as_encoded_bytes());
        Path::new("/var/lib/gantry").join(hex::encode(&digest[..4]))
    }
}

/// Options of `gantry dev` and `gantry serve`.
#[derive(Debug, Clone, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags of a command line are set one by one"
)]
pub struct Config {
    /// Where Gantry keeps things.
    #[command(flatten)]
    pub control: ControlOptions,

    /// Address the API listens on.
    #[arg(
        long,
        env = "GANTRY_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,

    /// Address for /healthz, /readyz and /metrics. They are not served without it.
    #[arg(long, env = "GANTRY_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// Unix socket on which the operator's own API answers: where the services of single projects are. Only the account that
    /// Gantry runs under may open the file, until its mode is changed. Not served without it.
    #[arg(long, env = "GANTRY_OPERATOR_SOCKET", value_name = "FILE")]
    pub operator_socket: Option<PathBuf>,

    /// Certificate chain (PEM) for HTTPS.
    #[arg(
        long,
        env = "GANTRY_TLS_CERT",
        requires = "tls_key",
        value_name = "FILE"
    )]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate.
    #[arg(
        long,
        env = "GANTRY_TLS_KEY",
        requires = "tls_cert",
        value_name = "FILE"
    )]
    pub tls_key: Option<PathBuf>,

    /// Networks of the proxies in front, whose word about the client's address and protocol is believed. Comma separated.
    #[arg(
        long,
        env = "GANTRY_TRUSTED_PROXIES",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub trusted_proxies: Vec<IpNet>,

    /// Header in which those proxies name the client: `x-forwarded-for`, `forwarded` (RFC 7239), or one of their own
    /// such as `cf-connecting-ip`. No other is believed.
    #[arg(
        long,
        env = "GANTRY_CLIENT_ADDRESS_HEADER",
        default_value_t,
        value_name = "HEADER"
    )]
    pub client_address_header: ClientHeader,

    /// Where requests are counted: `postgres` for the control database, `memory` for this process alone, or the URL of a
    /// Valkey or Redis (`redis://host:port`, `redis+unix:///path`) that does not evict. Without it: `postgres` with
    /// --database-url, which others may use too, and else `memory`.
    #[arg(
        long,
        env = "GANTRY_LIMITS_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub limits_url: Option<SecretString>,

    /// How long a request waits at least for the shared counters, in milliseconds. It waits longer, up to two seconds, for
    /// counters that lately needed longer. After that they are away: of several processes each refuses requests until the
    /// windows that others may have used are over, and then admits its share of each limit; a process that is the only one
    /// goes on by itself.
    #[arg(long, env = "GANTRY_LIMITS_DEADLINE_MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=10_000), value_name = "MS")]
    pub limits_deadline_ms: u64,

    /// Domain of the projects: a database is `db.<ref>.<domain>`.
    #[arg(
        long,
        env = "GANTRY_PROJECT_DOMAIN",
        default_value = "localhost",
        value_name = "DOMAIN"
    )]
    pub project_domain: String,

    /// Address that PostgreSQL clients connect to, for all projects' databases. May be given several times. Without it,
    /// `gantry dev` takes 127.0.0.1:5432 and :6543, or other ports if those are taken; `gantry serve` takes no connections.
    #[arg(
        long,
        env = "GANTRY_DB_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub db_listen: Vec<SocketAddr>,

    /// Host that connection strings name. Without it: `pooler.<domain>`.
    #[arg(long, env = "GANTRY_DB_HOST", value_name = "HOST")]
    pub db_host: Option<String>,

    /// Certificate chain (PEM) for databases, valid for `db.<ref>.<domain>` and the host of connection strings. Read again
    /// when the file changes. Without it, `gantry dev` has an authority of its own, and `gantry serve` no TLS there.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_CERT",
        requires = "db_tls_key",
        value_name = "FILE"
    )]
    pub db_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_KEY",
        requires = "db_tls_cert",
        value_name = "FILE"
    )]
    pub db_tls_key: Option<PathBuf>,

    /// Address that clients of projects' services connect to over HTTPS: `https://<ref>.<domain>`. May be given several times.
    /// Without it, `gantry dev` takes 127.0.0.1:8443, or another port if that is taken; `gantry serve` serves no services.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTPS_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_https_listen: Vec<SocketAddr>,

    /// Address for plain HTTP, port 80 as a rule: leads clients of projects' services to HTTPS.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTP_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_http_listen: Vec<SocketAddr>,

    /// Address on this machine where a proxy of your own asks whether a name leads to a project: `GET /?domain=<name>` answers 200 or
    /// 404.
    #[arg(
        long,
        env = "GANTRY_EDGE_ASK_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_ask_listen: Vec<SocketAddr>,

    /// Certificate chain (PEM) for `*.<domain>`. Read again when the file changes. Without it, `gantry dev` has an authority
    /// of its own.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_CERT",
        requires = "edge_tls_key",
        value_name = "FILE"
    )]
    pub edge_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_KEY",
        requires = "edge_tls_cert",
        value_name = "FILE"
    )]
    pub edge_tls_key: Option<PathBuf>,

    /// Where a service of the projects answers: `rest`, `auth`, `storage`, `realtime` or `functions`, and an `http://` address
    /// in which `{ref}` stands for the project's ref. May be given several times. `gantry upstream` says otherwise of one project.
    #[arg(
        long,
        env = "GANTRY_UPSTREAM",
        value_delimiter = ',',
        value_name = "SERVICE=URL"
    )]
    pub upstream: Vec<upstreams::ServiceUpstream>,

    /// Let only requests pass to `rest`, `auth` and `realtime` that have an API key of the project, in the header or the parameter
    /// `apikey` or as the bearer token. What browsers are led to in signing in stays open. `gantry key-check` says otherwise of one
    /// project.
    #[arg(long, env = "GANTRY_EDGE_CHECK_KEYS")]
    pub edge_check_keys: bool,

    /// How header fields whose names have underscores are treated. Many services read `X_Forwarded_For` as `X-Forwarded-For`, which
    /// only the edge may set.
    #[arg(long, env = "GANTRY_EDGE_UNDERSCORE_HEADERS", value_enum, default_value_t = UnderscoreHeaders::Drop, value_name = "ACTION")]
    pub edge_underscore_headers: UnderscoreHeaders,

    /// Resolver through which the name servers of custom hostnames are found. May be given several times. Without it: the
    /// system's.
    #[arg(
        long,
        env = "GANTRY_DNS_RESOLVER",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub dns_resolver: Vec<SocketAddr>,

    /// Directory of the certificate authority (ACME) that certifies custom hostnames, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Naming one accepts its terms. It looks at port 80 and 443 of the edge.
    #[arg(long, env = "GANTRY_ACME_DIRECTORY", value_name = "URL")]
    pub acme_directory: Option<String>,

    /// Certificate (PEM) that the authority itself is trusted by. Without it: the system's.
    #[arg(
        long,
        env = "GANTRY_ACME_ROOT",
        requires = "acme_directory",
        value_name = "FILE"
    )]
    pub acme_root: Option<PathBuf>,

    /// Address to which the authority may write.
    #[arg(
        long,
        env = "GANTRY_ACME_CONTACT",
        requires = "acme_directory",
        value_name = "EMAIL"
    )]
    pub acme_contact: Option<String>,

    /// As whom CAA records know the authority, such as `letsencrypt.org`. With it, hostnames whose records name others are told so
    /// before it is asked.
    #[arg(
        long,
        env = "GANTRY_ACME_ISSUER",
        requires = "acme_directory",
        value_name = "NAME"
    )]
    pub acme_issuer: Option<String>,

    /// Zone of yours in which text records answer the authority when it looks by DNS: for custom hostnames whose owners lead it there,
    /// as when they are behind a proxy, and for `--edge-acme-wildcard`. `--acme-dns-server` or `--acme-dns-hook` writes them.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_ZONE",
        requires = "acme_directory",
        value_name = "DOMAIN"
    )]
    pub acme_dns_zone: Option<String>,

    /// Name server that takes dynamic updates (RFC 2136) of that zone.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_SERVER",
        requires = "acme_dns_zone",
        requires = "acme_dns_key",
        conflicts_with = "acme_dns_hook",
        value_name = "ADDRESS:PORT"
    )]
    pub acme_dns_server: Option<SocketAddr>,

    /// File with the key that signs the updates (TSIG), as `hmac-sha256:name:base64`.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_KEY",
        requires = "acme_dns_server",
        value_name = "FILE"
    )]
    pub acme_dns_key: Option<PathBuf>,

    /// Program that writes the records instead. It is run with `present` or `cleanup`, the record's name and its text, has thirty
    /// seconds, and may be run twice for one record. Where Gantry runs as root it runs as the owner of the file.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_HOOK",
        requires = "acme_dns_zone",
        value_name = "PROGRAM"
    )]
    pub acme_dns_hook: Option<PathBuf>,

    /// Have the authority certify `*.<domain>`, by DNS, instead of giving `--edge-tls-cert`. `_acme-challenge.<domain>` must be in
    /// `--acme-dns-zone`, or lead into it.
    #[arg(
        long,
        env = "GANTRY_EDGE_ACME_WILDCARD",
        requires = "acme_dns_zone",
        conflicts_with = "edge_tls_cert"
    )]
    pub edge_acme_wildcard: bool,

    /// First of the numeric user ids that project clusters run under when Gantry runs as root, one each. Below 100000
    /// nothing is counted or ended by user id, as others may have it.
    #[arg(
        long,
        env = "GANTRY_PROJECT_UID_BASE",
        default_value_t = 700_000,
        value_name = "UID"
    )]
    pub project_uid_base: u32,

    /// Clusters whose files are ready before a project is asked for. About 25 MB of disk each.
    #[arg(long, env = "GANTRY_WARM_CLUSTERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub warm_clusters: u16,

    /// Clusters whose server runs before a project is asked for. About 10 MB of memory each. Without it, `gantry dev` keeps
    /// one and `gantry serve` none.
    #[arg(long, env = "GANTRY_SPARE_CLUSTERS", value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub spare_clusters: Option<u16>,

    /// Memory that one process of a project's server may ask for, in MB: its address space.
    #[arg(long, env = "GANTRY_PROJECT_MEMORY", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(256..=1_048_576), value_name = "MB")]
    pub project_memory: u64,

    /// Memory that all processes of a project's server may use together, in MB. Without it: as much as --project-memory.
    #[arg(long, env = "GANTRY_PROJECT_MEMORY_MAX", value_parser = clap::value_parser!(u64).range(64..=1_048_576), value_name = "MB")]
    pub project_memory_max: Option<u64>,

    /// Processes and threads of a project's server. Each connection is one, and a server has up to twenty more.
    #[arg(long, env = "GANTRY_PROJECT_PROCESSES_MAX", default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=100_000), value_name = "COUNT")]
    pub project_processes_max: u64,

    /// Disk space of a project, in MB. From there on it is read-only, and 10 % beyond it is paused. A new one takes about 30.
    #[arg(long, env = "GANTRY_PROJECT_DISK_MAX", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(64..=1_073_741_824), value_name = "MB")]
    pub project_disk_max: u64,

    /// Files of a project, with the same consequences. A table has three or more, and a new project about a thousand.
    #[arg(long, env = "GANTRY_PROJECT_FILES_MAX", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(2000..=1_000_000_000), value_name = "COUNT")]
    pub project_files_max: u64,

    /// Control group under which those of projects are made, such as `/gantry.slice`. It must exist, and hand on the controllers
    /// `memory` and `pids`. Without it: the one that Gantry itself is in.
    #[arg(long, env = "GANTRY_CGROUP_PARENT", value_name = "PATH")]
    pub cgroup_parent: Option<PathBuf>,

    /// Minutes after which a project's server is stopped if nobody uses it. Whoever uses it next starts it again, and waits a
    /// moment. Without it, servers run until they are paused.
    #[arg(long, env = "GANTRY_IDLE_PAUSE_AFTER", value_parser = clap::value_parser!(u64).range(1..), value_name = "MINUTES")]
    pub idle_pause_after: Option<u64>,

    /// Offer PostgreSQL 15 to new projects. Before 16 a role that may create roles can give itself the roles that write files
    /// and run programs of the server: then only the sandbox keeps a project from the others. The owner of a project on 15
    /// therefore cannot create roles. Projects that run on 15 already keep running without this option.
    #[arg(long, env = "GANTRY_ALLOW_POSTGRES_15")]
    pub allow_postgres_15: bool,

    /// Run project clusters without the Landlock sandbox. Only for kernels that lack it.
    #[arg(long, env = "GANTRY_UNSAFE_NO_SANDBOX")]
    pub unsafe_no_sandbox: bool,

    /// File with the key that encrypts secrets which are shown again, such as API keys: 64 hex digits. Servers on one
    /// control database need the same. Without it: `sealing-key` in the data folder, made when it is first needed.
    #[arg(long, env = "GANTRY_SEALING_KEY", value_name = "FILE")]
    pub sealing_key: Option<PathBuf>,

    /// Where clients reach this server: scheme, host and port. It is the issuer of OAuth tokens, and applications can ask for
    /// consent only if it is set. Without it: none, and for `gantry dev` the address it listens on.
    #[arg(long, env = "GANTRY_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,

    /// Minutes that an OAuth access token lives.
    #[arg(long, env = "GANTRY_OAUTH_ACCESS_LIFE", default_value_t = 1440, value_parser = clap::value_parser!(i64).range(5..=10_080), value_name = "MINUTES")]
    pub oauth_access_life: i64,

    /// Provider of OpenID Connect through which people can sign in to the pages: its issuer, `https://…`.
    #[arg(long, env = "GANTRY_OIDC_ISSUER", requires_all = ["oidc_client_id", "oidc_client_secret", "oidc_email_domains"], value_name = "URL")]
    pub oidc_issuer: Option<String>,

    /// Who this server is to that provider. It has to know `<address of this server>/sign-in/provider/return` as the way back.
    #[arg(
        long,
        env = "GANTRY_OIDC_CLIENT_ID",
        requires = "oidc_issuer",
        value_name = "ID"
    )]
    pub oidc_client_id: Option<String>,

    /// File with the secret that shows it.
    #[arg(
        long,
        env = "GANTRY_OIDC_CLIENT_SECRET",
        requires = "oidc_issuer",
        value_name = "FILE"
    )]
    pub oidc_client_secret: Option<PathBuf>,

    /// Domains of email addresses that the provider decides on. Who signs in there for the first time, with a verified address
    /// of one of them, gets the account with that address. Comma separated.
    #[arg(
        long,
        env = "GANTRY_OIDC_EMAIL_DOMAINS",
        requires = "oidc_issuer",
        value_delimiter = ',',
        value_name = "DOMAIN"
    )]
    pub oidc_email_domains: Vec<String>,

    /// What the pages call the provider. Without it: the issuer's host.
    #[arg(
        long,
        env = "GANTRY_OIDC_NAME",
        requires = "oidc_issuer",
        value_name = "NAME"
    )]
    pub oidc_name: Option<String>,

    /// Folder that keeps the projects' log lines. Without it: `logs` in the data folder.
    #[arg(long, env = "GANTRY_LOGS_FOLDER", value_name = "DIR")]
    pub logs_folder: Option<PathBuf>,

    /// Days that log lines are kept.
    #[arg(long, env = "GANTRY_LOGS_RETENTION_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3650), value_name = "DAYS")]
    pub logs_retention_days: u16,

    /// Where files of log lines are kept instead.
    #[command(flatten)]
    pub logs_store: object_store::Flags,

    /// Page with the fair-use policy, named in the OpenAPI document.
    #[arg(long, env = "GANTRY_TERMS_URL", value_name = "URL")]
    pub terms_url: Option<String>,

    /// Page with the published pricing, named in the OpenAPI document.
    #[arg(long, env = "GANTRY_PRICING_URL", value_name = "URL")]
    pub pricing_url: Option<String>,

    /// What is logged: `error`, `warn`, `info`, `debug`, or a filter such as `gantry::clusters=debug`.
    #[arg(
        long,
        env = "GANTRY_LOG",
        default_value = "warn,gantry=info",
        value_name = "FILTER"
    )]
    pub log: String,

    /// How log lines look.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Treatment of header fields whose names have underscores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnderscoreHeaders {
    /// Services never see them.
    Drop,
    /// Services get them, but for those that read as fields of the edge.
    Pass,
}

/// Why a configuration cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Plain HTTP would leave this machine.
    #[error(
        "{0} is reachable from other machines, and plain HTTP there would show tokens to the network: \
         give --tls-cert and --tls-key, or name the proxies in front with --trusted-proxies, or listen on 127.0.0.1"
    )]
    PlainHttp(SocketAddr),
    /// Databases would be read on the way to other machines.
    #[error(
        "{0} is reachable from other machines, and without TLS the network would see what is in the databases: give --db-tls-cert and --db-tls-key, or listen on 127.0.0.1"
    )]
    PlainDatabases(SocketAddr),
    /// Anybody could ask.
    #[error(
        "{0} is reachable from other machines, which need not know whether a name is served: give --edge-ask-listen an address of this one"
    )]
    OpenAsk(SocketAddr),
    /// Nobody writes the records.
    #[error(
        "--acme-dns-zone needs --acme-dns-server and --acme-dns-key, or --acme-dns-hook: something has to write records there"
    )]
    UnwrittenZone,
    /// The place of the counters cannot be understood.
    #[error("{0}")]
    Limits(crate::base::error::Error),
    /// Only a control database that others use too can be where counters are shared.
    #[error(
        "--limits-url postgres shares counters through the control database, so it needs --database-url"
    )]
    NothingShared,
    /// The issuer of tokens is an origin: paths of the protocol are put behind it.
    #[error(
        "--public-url must be a scheme, a host and a port, such as https://api.example.com, and nothing more"
    )]
    NotAnOrigin,
    /// What a project serves could set cookies for the pages, and look like them.
    #[error(
        "--public-url is under --project-domain, where projects are reached: give the account pages a host outside of it"
    )]
    AmongProjects,
    /// Files of log lines have no place.
    #[error("{0}")]
    Logs(#[from] object_store::PlaceError),
}

impl Config {
    /// Checks what no single flag can.
    pub fn check(&self) -> Result<(), ConfigError> {
        let plain = self.tls_cert.is_none();
        if plain && !self.listen.ip().is_loopback() && self.trusted_proxies.is_empty() {
            return Err(ConfigError::PlainHttp(self.listen));
        }
        if let Some(open) = self
            .db_listen
            .iter()
            .find(|address| !address.ip().is_loopback() && self.db_tls_cert.is_none())
        {
            return Err(ConfigError::PlainDatabases(*open));
        }
        if let Some(open) = self
            .edge_ask_listen
            .iter()
            .find(|address| !address.ip().is_loopback())
        {
            return Err(ConfigError::OpenAsk(*open));
        }
        if self.acme_dns_zone.is_some()
            && self.acme_dns_server.is_none()
            && self.acme_dns_hook.is_none()
        {
            return Err(ConfigError::UnwrittenZone);
        }
        let postgres = self
            .limits_url
            .as_ref()
            .is_some_and(|url| url.expose_secret() == "postgres");
        if postgres && self.control.database_url.is_none() {
            return Err(ConfigError::NothingShared);
        }
        let public = self
            .public_url
            .as_ref()
            .map(|url| url::Url::parse(url).map_err(|_| ConfigError::NotAnOrigin))
            .transpose()?;
        if public.as_ref().is_some_and(|url| {
            self.public_url().as_deref() != Some(&url.origin().ascii_serialization())
        }) {
            return Err(ConfigError::NotAnOrigin);
        }
        let host = public.as_ref().and_then(url::Url::host_str);
        if host.is_some_and(|host| {
            host.ends_with(&format!(".{}", self.project_domain.to_ascii_lowercase()))
        }) {
            return Err(ConfigError::AmongProjects);
        }
        self.logs_store.check()?;
        self.counting().check().map_err(ConfigError::Limits)
    }

    /// Where clients reach this server, without a slash at the end.
    pub fn public_url(&self) -> Option<String> {
        self.public_url
            .as_ref()
            .map(|url| url.trim_end_matches('/').to_owned())
    }

    /// How much one project may use.
    pub fn resource_limits(&self) -> ResourceLimits {
        let process_memory_bytes = self.project_memory << 20;
        let limits = ResourceLimits {
            memory_bytes: self
                .project_memory_max
                .map_or(process_memory_bytes, |megabytes| megabytes << 20),
            process_memory_bytes,
            processes: self.project_processes_max,
            ..ResourceLimits::default()
        };
        limits.with_disk(self.project_disk_max << 20, self.project_files_max)
    }

    /// How long an OAuth access token lives.
    pub fn oauth_access_life(&self) -> TimeDelta {
        TimeDelta::minutes(self.oauth_access_life)
    }

    /// Where requests are counted.
    pub fn counting(&self) -> rate_limits::Options {
        let url = match self.limits_url.as_ref().map(ExposeSecret::expose_secret) {
            Some("memory") => None,
            Some(_) => self.limits_url.clone(),
            // Exact even if this is not the only process on it.
            None => self
                .control
                .database_url
                .is_some()
                .then(|| "postgres".into()),
        };
        rate_limits::Options {
            url,
            deadline: Duration::from_millis(self.limits_deadline_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn plain_http_stays_on_this_machine_or_behind_a_proxy() {
        let cases = [
            (vec!["x"], true),
            (vec!["x", "--listen", "[::1]:1"], true),
            (vec!["x", "--listen", "0.0.0.0:1"], false),
            (
                vec![
                    "x",
                    "--listen",
                    "0.0.0.0:1",
                    "--trusted-proxies",
                    "10.0.0.0/8,192.168.0.0/16",
                ],
                true,
            ),
            (
                vec![
                    "x",
                    "--listen",
                    "0.0.0.0:1",
                    "--tls-cert",
                    "c",
                    "--tls-key",
                    "k",
                ],
                true,
            ),
        ];
        for (line, ok) in cases {
            assert_eq!(
                Line::parse_from(&line).config.check().is_ok(),
                ok,
                "{line:?}"
            );
        }
    }

    #[test]
    fn which_names_are_ours_is_told_on_this_machine_only() {
        for (address, ok) in [
            ("127.0.0.1:5555", true),
            ("[::1]:1,127.0.0.1:2", true),
            ("127.0.0.1:1,10.0.0.1:2", false),
            ("0.0.0.0:1", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--edge-ask-listen", address])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{address}"
            );
        }
    }

    #[test]
    fn databases_are_read_by_nobody_on_the_way() {
        for (address, ok) in [
            ("127.0.0.1:5432", true),
            ("[::1]:1,127.0.0.1:2", true),
            ("127.0.0.1:1,10.0.0.1:2", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--db-listen", address])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{address}"
            );
            let line = [
                "x",
                "--db-listen",
                address,
                "--db-tls-cert",
                "c",
                "--db-tls-key",
                "k",
            ];
            assert!(Line::parse_from(line).config.check().is_ok());
        }
    }

    #[test]
    fn the_pages_are_not_among_projects() {
        for (url, ok) in [
            ("https://gantry.example.com", true),
            ("https://projects.test", true),
            ("https://otherprojects.test", true),
            ("https://account.Projects.test/", false),
            ("https://a.b.projects.test:8443", false),
        ] {
            let line = [
                "x",
                "--project-domain",
                "Projects.test",
                "--public-url",
                url,
            ];
            assert_eq!(Line::parse_from(line).config.check().is_ok(), ok, "{url}");
        }
    }

    #[test]
    fn the_public_url_is_an_origin() {
        for (url, ok) in [
            ("https://gantry.example.com", true),
            ("https://gantry.example.com/", true),
            ("http://127.0.0.1:8080", true),
            ("https://[::1]:8443", true),
            ("https://gantry.example.com/base", false),
            ("https://gantry.example.com?x", false),
            ("https://gantry.example.com#x", false),
            ("https://user@gantry.example.com", false),
            ("https://Gantry.example.com", false),
            ("https://gantry.example.com:443", false),
            ("gantry.example.com", false),
            ("ftp:gantry", false),
            ("", false),
        ] {
            assert_eq!(
                Line::parse_from(["x", "--public-url", url])
                    .config
                    .check()
                    .is_ok(),
                ok,
                "{url}"
            );
        }
    }

    #[test]
    fn counters_are_shared_where_others_can_reach_them() {
        let database = ["--database-url", "postgres://db.internal/gantry"];
        let cases = [
            (vec!["x", "--limits-url", "redis://10.0.0.1"], true),
            (vec!["x", "--limits-url", "http://10.0.0.1"], false),
            (vec!["x", "--limits-url", "postgres"], false),
            (
                [&["x", "--limits-url", "postgres"][..], &database].concat(),
                true,
            ),
        ];
        for (line, ok) in cases {
            assert_eq!(
                Line::parse_from(&line).config.check().is_ok(),
                ok,
                "{line:?}"
            );
        }
        assert!(Line::try_parse_from(["x", "--client-address-header", "not a header"]).is_err());
        let shared = |line: &[&str]| {
            Line::parse_from([&["x"], line].concat())
                .config
                .counting()
                .url
                .is_some()
        };
        assert!(!shared(&[]), "nobody else uses the embedded database");
        assert!(shared(&database));
        assert!(!shared(
            &[&database[..], &["--limits-url", "memory"]].concat()
        ));
    }

    #[test]
    fn the_memory_of_a_project_follows_that_of_a_process() {
        let limits = |line: &[&str]| {
            Line::parse_from([&["x"], line].concat())
                .config
                .resource_limits()
        };
        assert_eq!(limits(&[]), ResourceLimits::default());
        assert_eq!(
            limits(&["--project-memory", "4096"]).memory_bytes,
            4096 << 20
        );
        assert_eq!(
            limits(&["--project-memory-max", "256"]).memory_bytes,
            256 << 20
        );
        assert_eq!(
            limits(&["--project-disk-max", "1000"]).disk_soft_bytes >> 20,
            800
        );
    }

    #[test]
    fn a_certificate_needs_its_key() {
        assert!(Line::try_parse_from(["x", "--tls-cert", "c"]).is_err());
    }
}
