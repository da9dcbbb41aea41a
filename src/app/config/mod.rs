//! Options of the server: one clap struct, from which flags, environment variables, help texts and
//! `docs/reference/configuration.md` derive.

mod backups;
mod branches;
mod extensions;
mod hold;
mod logs;
mod node;
mod project_limits;
mod underscore_headers;
mod validation;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use gantry_node::clusters::Home;
use ipnet::IpNet;
use secrecy::SecretString;
use sha2::{Digest, Sha256};

use crate::{
    control::{
        projects::new_table_grants::NewTableGrants, services::functions::egress::EgressPorts,
    },
    platform::{http::transport::ClientHeader, telemetry::LogFormat},
    proxy::service_proxy::upstreams,
};

pub use backups::{BackupFlags, BackupPlaceFlags};
pub use extensions::{ExtensionOptions, ExtensionsFolder};
pub use logs::LogFlags;
pub use node::NodeOptions;
pub use project_limits::ProjectLimitFlags;
pub use underscore_headers::UnderscoreHeaders;
pub use validation::ConfigError;

/// Default data folder.
const DATA_DIR: &str = "./.gantry";

/// Location of the data and the control database: options of every command that uses them.
#[derive(Debug, Clone, Args)]
pub struct ControlOptions {
    /// Folder for clusters and all other files of Gantry.
    #[arg(long, env = "GANTRY_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,

    /// Folder with the PostgreSQL programs (`postgres`, `initdb`). Default: the newest installed
    /// version.
    #[arg(long, env = "GANTRY_POSTGRES_BIN", value_name = "DIR")]
    pub postgres_bin: Option<PathBuf>,

    /// URL of the control database, PostgreSQL 15 or newer. Default: a control cluster in the data
    /// folder.
    #[arg(
        long,
        env = "GANTRY_DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database_url: Option<SecretString>,
}

impl ControlOptions {
    /// The data folder. If the default one is below a private home directory, which the accounts of
    /// servers cannot enter, a folder below `/var/lib/gantry`.
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
    /// Location of the data and the control database.
    #[command(flatten)]
    pub control: ControlOptions,

    /// Address of the API.
    #[arg(
        long,
        env = "GANTRY_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,

    /// Address for /healthz, /readyz and /metrics. Disabled by default.
    #[arg(long, env = "GANTRY_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// Unix socket of the operator API, which sets the upstreams of single projects. Only the
    /// account that Gantry runs under can open the file, until its mode is changed. Disabled by
    /// default.
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

    /// Networks of reverse proxies with trusted forwarding headers for the client's address
    /// and protocol. Comma separated.
    #[arg(
        long,
        env = "GANTRY_TRUSTED_PROXIES",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub trusted_proxies: Vec<IpNet>,

    /// Header in which the trusted proxies send the client's address: `x-forwarded-for`,
    /// `forwarded` (RFC 7239), or a proprietary one such as `cf-connecting-ip`. All others are
    /// ignored.
    #[arg(
        long,
        env = "GANTRY_CLIENT_ADDRESS_HEADER",
        default_value_t,
        value_name = "HEADER"
    )]
    pub client_address_header: ClientHeader,

    /// Store of the rate-limit counters: `postgres` for the control database, `memory` for this
    /// process only, or the URL of a Valkey or Redis server (`redis://host:port`,
    /// `redis+unix:///path`) without eviction. Default: `postgres` with --database-url, otherwise
    /// `memory`.
    #[arg(
        long,
        env = "GANTRY_LIMITS_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub limits_url: Option<SecretString>,

    /// Minimum timeout of a request to the shared counters, in milliseconds. The timeout grows up
    /// to two seconds while the store is slow. When the store is unreachable, each of several
    /// processes rejects requests until the windows that others may have used have ended, and then
    /// admits its share of each limit; a single process continues with its own counters.
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

    /// Address for PostgreSQL clients, for the databases of all projects. May be repeated. Default:
    /// 127.0.0.1:5432 and :6543, or other free ports, for `gantry dev`; disabled for `gantry
    /// serve`.
    #[arg(
        long,
        env = "GANTRY_DB_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub db_listen: Vec<SocketAddr>,

    /// The port of `--db-listen` on which connections are pooled by transaction. 0: on none.
    #[arg(
        long,
        env = "GANTRY_POOLER_PORT",
        default_value_t = 6543,
        value_name = "PORT"
    )]
    pub pooler_port: u16,

    /// Host name in connection strings. Default: `pooler.<domain>`.
    #[arg(long, env = "GANTRY_DB_HOST", value_name = "HOST")]
    pub db_host: Option<String>,

    /// Certificate chain (PEM) for database connections, valid for `db.<ref>.<domain>` and the host
    /// in connection strings. Reloaded when the file changes. Default: a local certificate
    /// authority for `gantry dev`; no TLS for `gantry serve`.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_CERT",
        requires = "db_tls_key",
        value_name = "FILE"
    )]
    pub db_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the database certificate.
    #[arg(
        long,
        env = "GANTRY_DB_TLS_KEY",
        requires = "db_tls_cert",
        value_name = "FILE"
    )]
    pub db_tls_key: Option<PathBuf>,

    /// HTTPS address of the services of projects: `https://<ref>.<domain>`. May be repeated.
    /// Default: 127.0.0.1:8443, or another free port, for `gantry dev`; disabled for `gantry
    /// serve`.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTPS_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_https_listen: Vec<SocketAddr>,

    /// Address for plain HTTP, usually port 80: redirects clients to HTTPS and answers ACME
    /// challenges.
    #[arg(
        long,
        env = "GANTRY_EDGE_HTTP_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_http_listen: Vec<SocketAddr>,

    /// Loopback address where your own proxy checks whether a host name belongs to a project: `GET
    /// /?domain=<name>` returns 200 or 404.
    #[arg(
        long,
        env = "GANTRY_EDGE_ASK_LISTEN",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub edge_ask_listen: Vec<SocketAddr>,

    /// Certificate chain (PEM) for `*.<domain>`. Reloaded when the file changes. Default: a local
    /// certificate authority for `gantry dev`.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_CERT",
        requires = "edge_tls_key",
        value_name = "FILE"
    )]
    pub edge_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the `*.<domain>` certificate.
    #[arg(
        long,
        env = "GANTRY_EDGE_TLS_KEY",
        requires = "edge_tls_cert",
        value_name = "FILE"
    )]
    pub edge_tls_key: Option<PathBuf>,

    /// Upstream of a service: `rest`, `auth`, `storage`, `realtime` or `functions`, and an
    /// `http://` URL in which `{ref}` is replaced by the project's ref. May be repeated. `gantry
    /// upstream` overrides it for one project.
    #[arg(
        long,
        env = "GANTRY_UPSTREAM",
        value_delimiter = ',',
        value_name = "SERVICE=URL"
    )]
    pub upstream: Vec<upstreams::ServiceUpstream>,

    /// Folder with programs for the services of projects, as `SERVICE/VERSION/…`. They take
    /// precedence over those of `gantry service install`. A service with `--upstream` or `gantry
    /// upstream` is not started.
    #[arg(long, env = "GANTRY_SERVICES_DIR", value_name = "DIR")]
    pub services_dir: Option<PathBuf>,

    /// TCP ports that Edge Functions may connect to on other machines, or `none`: functions then
    /// reach only the services of their own project.
    #[arg(
        long,
        env = "GANTRY_FUNCTIONS_EGRESS_PORTS",
        default_value_t = EgressPorts::default(),
        value_name = "PORTS"
    )]
    pub functions_egress_ports: EgressPorts,

    /// Require an API key of the project for `rest`, `auth` and `realtime`, in the header or query
    /// parameter `apikey` or as bearer token. Pages of the sign-in flow stay open. `gantry
    /// key-check` overrides it for one project.
    #[arg(long, env = "GANTRY_EDGE_CHECK_KEYS")]
    pub edge_check_keys: bool,

    /// Treatment of header fields with underscores in their names. Many services read
    /// `X_Forwarded_For` as `X-Forwarded-For`, which only the proxy may set.
    #[arg(long, env = "GANTRY_EDGE_UNDERSCORE_HEADERS", value_enum, default_value_t = UnderscoreHeaders::Drop, value_name = "ACTION")]
    pub edge_underscore_headers: UnderscoreHeaders,

    /// DNS resolver for finding the name servers of custom hostnames. May be repeated. Default: the
    /// system's resolver.
    #[arg(
        long,
        env = "GANTRY_DNS_RESOLVER",
        value_delimiter = ',',
        value_name = "ADDRESS:PORT"
    )]
    pub dns_resolver: Vec<SocketAddr>,

    /// Directory URL of the ACME certificate authority for custom hostnames, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Setting it accepts the authority's terms
    /// of service. The authority connects to ports 80 and 443 of the proxy.
    #[arg(long, env = "GANTRY_ACME_DIRECTORY", value_name = "URL")]
    pub acme_directory: Option<String>,

    /// Root certificate (PEM) for connections to the authority. Default: the system's.
    #[arg(
        long,
        env = "GANTRY_ACME_ROOT",
        requires = "acme_directory",
        value_name = "FILE"
    )]
    pub acme_root: Option<PathBuf>,

    /// Contact email address for the authority.
    #[arg(
        long,
        env = "GANTRY_ACME_CONTACT",
        requires = "acme_directory",
        value_name = "EMAIL"
    )]
    pub acme_contact: Option<String>,

    /// Issuer domain name of the authority in CAA records, such as `letsencrypt.org`. With it, a
    /// hostname with CAA records that exclude the authority is rejected before an order is made.
    #[arg(
        long,
        env = "GANTRY_ACME_ISSUER",
        requires = "acme_directory",
        value_name = "NAME"
    )]
    pub acme_issuer: Option<String>,

    /// DNS zone under your control for DNS-01 challenges: for custom hostnames whose owners
    /// delegate `_acme-challenge` to it, for example behind another proxy, and for
    /// `--edge-acme-wildcard`. Written by `--acme-dns-server` or `--acme-dns-hook`.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_ZONE",
        requires = "acme_directory",
        value_name = "DOMAIN"
    )]
    pub acme_dns_zone: Option<String>,

    /// Name server that accepts dynamic updates (RFC 2136) of that zone.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_SERVER",
        requires = "acme_dns_zone",
        requires = "acme_dns_key",
        conflicts_with = "acme_dns_hook",
        value_name = "ADDRESS:PORT"
    )]
    pub acme_dns_server: Option<SocketAddr>,

    /// File with the TSIG key of the updates, as `hmac-sha256:name:base64`.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_KEY",
        requires = "acme_dns_server",
        value_name = "FILE"
    )]
    pub acme_dns_key: Option<PathBuf>,

    /// Program that writes the challenge records instead. It is run with `present` or `cleanup`,
    /// the record name and its value, has thirty seconds, and may run twice for one record. If
    /// Gantry runs as root, the program runs as the owner of its file.
    #[arg(
        long,
        env = "GANTRY_ACME_DNS_HOOK",
        requires = "acme_dns_zone",
        value_name = "PROGRAM"
    )]
    pub acme_dns_hook: Option<PathBuf>,

    /// Obtain the certificate of `*.<domain>` by a DNS-01 challenge instead of `--edge-tls-cert`.
    /// `_acme-challenge.<domain>` must be in `--acme-dns-zone` or delegated to it.
    #[arg(
        long,
        env = "GANTRY_EDGE_ACME_WILDCARD",
        requires = "acme_dns_zone",
        conflicts_with = "edge_tls_cert"
    )]
    pub edge_acme_wildcard: bool,

    /// First numeric user id of project clusters when Gantry runs as root; one per project. Below
    /// 100000, processes are neither counted nor stopped by user id, because the ids may belong to
    /// other accounts.
    #[arg(
        long,
        env = "GANTRY_PROJECT_UID_BASE",
        default_value_t = 700_000,
        value_name = "UID"
    )]
    pub project_uid_base: u32,

    /// Grants to `anon`, `authenticated` and `service_role` on objects that a project's owner
    /// creates in `public`: `none`, or `api` for all privileges. A project can choose otherwise
    /// when it is created.
    #[arg(long, env = "GANTRY_NEW_TABLE_GRANTS", value_enum, default_value_t = NewTableGrants::None, value_name = "GRANTS")]
    pub new_table_grants: NewTableGrants,

    /// Number of warm clusters with files prepared for new projects. About 25 MB of disk each.
    #[arg(long, env = "GANTRY_WARM_CLUSTERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub warm_clusters: u16,

    /// Number of warm clusters with a running server. About 10 MB of memory each. Default: 1 for
    /// `gantry dev`, 0 for `gantry serve`.
    #[arg(long, env = "GANTRY_SPARE_CLUSTERS", value_parser = clap::value_parser!(u16).range(..=64), value_name = "COUNT")]
    pub spare_clusters: Option<u16>,

    /// Limits of projects.
    #[command(flatten)]
    pub project_limits: ProjectLimitFlags,

    /// Existing control group below which those of projects are created, such as `/gantry.slice`,
    /// with the controllers `memory` and `pids`. Default: that of Gantry.
    #[arg(long, env = "GANTRY_CGROUP_PARENT", value_name = "PATH")]
    pub cgroup_parent: Option<PathBuf>,

    /// Minutes without use after which a project's server is stopped. The next connection starts it
    /// again. Default: never.
    #[arg(long, env = "GANTRY_IDLE_PAUSE_AFTER", value_parser = clap::value_parser!(u64).range(1..), value_name = "MINUTES")]
    pub idle_pause_after: Option<u64>,

    /// Limits of branches.
    #[command(flatten)]
    pub branches: branches::BranchFlags,

    /// Hold of deleted projects.
    #[command(flatten)]
    pub hold: hold::HoldOptions,

    /// Offer PostgreSQL 15 to new projects. There, a role with CREATEROLE can grant itself roles
    /// that write files and run programs, so only the sandbox separates projects, and owners cannot
    /// create roles. Existing projects on 15 keep running without it.
    #[arg(long, env = "GANTRY_ALLOW_POSTGRES_15")]
    pub allow_postgres_15: bool,

    /// Further extensions.
    #[command(flatten)]
    pub extensions: ExtensionOptions,

    /// Run project clusters without the Landlock sandbox. Only for kernels that lack it.
    #[arg(long, env = "GANTRY_UNSAFE_NO_SANDBOX")]
    pub unsafe_no_sandbox: bool,

    /// This machine among others.
    #[command(flatten)]
    pub node: NodeOptions,

    /// File with the key that encrypts secrets which are shown again, such as API keys: 64 hex
    /// digits. All servers of a control database need the same key. Default: `sealing-key` in the
    /// data folder, created on first use.
    #[arg(long, env = "GANTRY_SEALING_KEY", value_name = "FILE")]
    pub sealing_key: Option<PathBuf>,

    /// URL of this server for clients: scheme, host and port. It is the issuer of OAuth tokens;
    /// applications can request consent only if it is set. Default: none for `gantry serve`, the
    /// listening address for `gantry dev`.
    #[arg(long, env = "GANTRY_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,

    /// Lifetime of OAuth access tokens, in minutes.
    #[arg(long, env = "GANTRY_OAUTH_ACCESS_LIFE", default_value_t = 1440, value_parser = clap::value_parser!(i64).range(5..=10_080), value_name = "MINUTES")]
    pub oauth_access_life: i64,

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

    /// Log lines.
    #[command(flatten)]
    pub logs: LogFlags,

    /// Backups.
    #[command(flatten)]
    pub backups: BackupFlags,

    /// Networks that log drains may connect to although their addresses are not public, such as
    /// `10.20.0.0/16`. Comma separated. Default: none, because customers choose the destinations.
    #[arg(
        long,
        env = "GANTRY_LOG_DRAIN_NETWORKS",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    pub log_drain_networks: Vec<IpNet>,

    /// URL that log drains of type `datadog` send to, instead of Datadog. `{region}` is replaced by
    /// the region of the drain.
    #[arg(long, env = "GANTRY_LOG_DRAIN_DATADOG_URL", value_name = "URL")]
    pub log_drain_datadog_url: Option<String>,

    /// URL of the fair-use policy, published in the OpenAPI document.
    #[arg(long, env = "GANTRY_TERMS_URL", value_name = "URL")]
    pub terms_url: Option<String>,

    /// URL of the pricing page, published in the OpenAPI document.
    #[arg(long, env = "GANTRY_PRICING_URL", value_name = "URL")]
    pub pricing_url: Option<String>,

    /// Log filter: `error`, `warn`, `info`, `debug`, or a directive such as
    /// `gantry::control=debug`.
    #[arg(
        long,
        env = "GANTRY_LOG",
        default_value = "warn,gantry=info",
        value_name = "FILTER"
    )]
    pub log: String,

    /// Format of log lines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}
