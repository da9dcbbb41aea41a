//! DNS queries to the authoritative name servers of a zone, without caches in between.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    time::Duration,
};

use futures_util::future::join_all;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{Name, RData, Record, RecordType},
};

use super::{
    host::{Host, and_above},
    required_records::DnsRecords,
};
use crate::platform::error::{Context, Error};

/// Timeout of a query, and number of attempts.
const ANSWER: (Duration, usize) = (Duration::from_secs(3), 2);
/// Maximum number of name servers of a zone that are queried.
const SERVERS_MAX: usize = 6;
/// Maximum number of records of one type that are read.
const RECORDS_MAX: usize = 20;
/// Longest part of a record's text that is reported, in characters.
const TEXT_BYTES_MAX: usize = 200;
/// DNS port.
const PORT: u16 = 53;

/// Future of a DNS query. The error is a message.
pub type DnsFuture<'a, T = DnsRecords> =
    Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// Agreement of a zone's name servers on a TXT record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Propagation {
    /// All name servers return it.
    ByAll,
    /// All responsive name servers return it. These do not respond.
    ButBySilent(Vec<IpAddr>),
    /// A name server does not return it.
    NotYet,
}

/// DNS queries about hostnames.
pub trait Dns: fmt::Debug + Send + Sync {
    /// Returns the records of `host`, and the TXT records at `proof_name`.
    fn look<'a>(&'a self, host: &'a Host, proof_name: &'a str) -> DnsFuture<'a>;

    /// Returns the CNAME target of a name.
    fn alias<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Option<String>>;

    /// Checks whether the name servers of the zone return this TXT record.
    fn told<'a>(&'a self, name: &'a str, text: &'a str) -> DnsFuture<'a, Propagation>;

    /// Returns the addresses of a name through the recursive resolver.
    fn addresses<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Vec<IpAddr>>;
}

/// The resolver for production.
pub struct DnsResolver {
    recursive: TokioResolver,
    /// Port of authoritative name servers. Differs only in tests.
    port: u16,
}

impl fmt::Debug for DnsResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DnsResolver(:{})", self.port)
    }
}

impl DnsResolver {
    /// Creates a resolver that uses these recursive resolvers, or the system's if none are given.
    pub fn new(resolvers: &[SocketAddr]) -> Result<Self, Error> {
        Self::with_port(resolvers, PORT)
    }

    /// Creates a resolver with another port for authoritative name servers.
    pub fn with_port(resolvers: &[SocketAddr], port: u16) -> Result<Self, Error> {
        let doing = "reading which resolvers there are";
        let config = if resolvers.is_empty() {
            hickory_resolver::system_conf::read_system_conf()
                .context(doing)?
                .0
        } else {
            ResolverConfig::from_name_servers(
                resolvers
                    .iter()
                    .map(|address| server(address.ip(), address.port()))
                    .collect(),
            )
        };
        Ok(Self {
            recursive: build(config, true).context(doing)?,
            port,
        })
    }

    /// Returns the addresses and names of the authoritative name servers for a name.
    async fn servers_of(&self, host: &str) -> Result<(Vec<IpAddr>, Vec<String>), String> {
        for above in and_above(host) {
            let name = fqdn(above)?;
            let records = ask(&self.recursive, &name, RecordType::NS).await?;
            let servers: Vec<Name> = records
                .iter()
                // For an alias, the response contains the records of its target.
                .filter(|record| record.name == name)
                .filter_map(|record| {
                    if let RData::NS(server) = &record.data {
                        Some(server.0.clone())
                    } else {
                        None
                    }
                })
                .take(SERVERS_MAX)
                .collect();
            if servers.is_empty() {
                continue;
            }
            let mut addresses = Vec::new();
            for server in &servers {
                if let Ok(found) = self.recursive.lookup_ip(server.clone()).await {
                    addresses.extend(found.iter().take(SERVERS_MAX));
                }
            }
            if addresses.is_empty() {
                return Err(format!(
                    "none of the name servers of {above} has an address"
                ));
            }
            addresses.truncate(SERVERS_MAX);
            return Ok((addresses, servers.iter().map(plain).collect()));
        }
        Err(format!(
            "nobody answers for {host}: no name server of it or of a name above it was found"
        ))
    }

    /// Creates a resolver that queries these name servers without cache.
    fn asking(&self, addresses: &[IpAddr]) -> Result<TokioResolver, String> {
        let config = ResolverConfig::from_name_servers(
            addresses.iter().map(|ip| server(*ip, self.port)).collect(),
        );
        build(config, false).map_err(|error| error.to_string())
    }

    async fn leads(&self, name: &str) -> Result<Option<String>, String> {
        let (addresses, _) = self.servers_of(name).await?;
        Ok(alias_at(&self.asking(&addresses)?, name)
            .await?
            .map(|alias| alias.to_ascii_lowercase()))
    }

    async fn told_by(&self, name: &str, text: &str) -> Result<Propagation, String> {
        let (addresses, _) = self.servers_of(name).await?;
        let name = fqdn(name)?;
        // Concurrent: one timeout in total for all unresponsive servers.
        let asked = addresses
            .iter()
            .map(async |address| texts_at(&self.asking(&[*address])?, &name).await);
        let said = join_all(asked).await;
        let mut silent = Vec::new();
        let mut reasons = Vec::new();
        for (address, said) in addresses.iter().zip(said) {
            match said {
                Ok(texts) if texts.iter().any(|said| said == text) => {}
                Ok(_) => return Ok(Propagation::NotYet),
                Err(why) => {
                    silent.push(*address);
                    reasons.push(format!("{address}: {why}"));
                }
            }
        }
        match silent.len() {
            0 => Ok(Propagation::ByAll),
            // No name server responded.
            all if all == addresses.len() => Err(reasons.join("; ")),
            _ => Ok(Propagation::ButBySilent(silent)),
        }
    }

    /// Returns the permitted CAs: the CAA records at the name or its closest ancestor that has any
    /// (RFC 8659).
    async fn issuers(&self, host: &Host) -> Result<Vec<String>, String> {
        for above in and_above(host.as_str()) {
            let records = ask(&self.recursive, &fqdn(above)?, RecordType::CAA).await?;
            let mut any = false;
            let mut issuers = Vec::new();
            for record in &records {
                let RData::CAA(caa) = &record.data else {
                    continue;
                };
                any = true;
                if caa.tag.eq_ignore_ascii_case("issue") {
                    let value = String::from_utf8_lossy(&caa.value);
                    let issuer = value
                        .split(';')
                        .next()
                        .unwrap_or_default()
                        .trim()
                        .trim_end_matches('.');
                    // An empty value permits no CA.
                    issuers.push(if issuer.is_empty() {
                        "nobody".to_owned()
                    } else {
                        cut(issuer)
                    });
                }
            }
            if any {
                return Ok(issuers);
            }
        }
        Ok(Vec::new())
    }

    async fn see(&self, host: &Host, proof_name: &str) -> Result<DnsRecords, String> {
        let (addresses, servers) = self.servers_of(host.as_str()).await?;
        let zone = self.asking(&addresses)?;
        let alias = alias_at(&zone, host.as_str()).await?;
        let texts = texts_at(&zone, &fqdn(proof_name)?).await?;
        Ok(DnsRecords {
            alias,
            texts,
            issuers: self.issuers(host).await?,
            servers,
        })
    }
}

/// Returns the CNAME target of a name.
async fn alias_at(zone: &TokioResolver, name: &str) -> Result<Option<String>, String> {
    let name = fqdn(name)?;
    let records = ask(zone, &name, RecordType::CNAME).await?;
    Ok(records.iter().find_map(|record| match &record.data {
        RData::CNAME(alias) if record.name == name => Some(plain(&alias.0)),
        _ => None,
    }))
}

/// Returns the TXT records of a name.
async fn texts_at(zone: &TokioResolver, name: &Name) -> Result<Vec<String>, String> {
    let records = ask(zone, name, RecordType::TXT).await?;
    Ok(records
        .iter()
        .filter_map(|record: &Record| match &record.data {
            RData::TXT(text) => Some(cut(&String::from_utf8_lossy(&text.txt_data.concat()))),
            _ => None,
        })
        .collect())
}

impl Dns for DnsResolver {
    fn look<'a>(&'a self, host: &'a Host, proof_name: &'a str) -> DnsFuture<'a> {
        Box::pin(self.see(host, proof_name))
    }

    fn alias<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Option<String>> {
        Box::pin(self.leads(name))
    }

    fn told<'a>(&'a self, name: &'a str, text: &'a str) -> DnsFuture<'a, Propagation> {
        Box::pin(self.told_by(name, text))
    }

    fn addresses<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Vec<IpAddr>> {
        Box::pin(async move {
            match self.recursive.lookup_ip(fqdn(name)?).await {
                Ok(found) => Ok(found.iter().take(RECORDS_MAX).collect()),
                Err(error) if error.is_no_records_found() || error.is_nx_domain() => Ok(Vec::new()),
                Err(error) => Err(format!("asking for the addresses of {name}: {error}")),
            }
        })
    }
}

fn server(ip: IpAddr, port: u16) -> NameServerConfig {
    let on = |mut connection: ConnectionConfig| {
        connection.port = port;
        connection
    };
    // A negative response is not trusted, because another server may know the name already.
    NameServerConfig::new(
        ip,
        true,
        vec![on(ConnectionConfig::udp()), on(ConnectionConfig::tcp())],
    )
}

fn build(config: ResolverConfig, recursion: bool) -> Result<TokioResolver, NetError> {
    let mut options = ResolverOpts::default();
    (options.timeout, options.attempts) = ANSWER;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.recursion_desired = recursion;
    options.try_tcp_on_error = true;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// Returns the records of a type. Fails without a response; a negative response is an empty list.
async fn ask(
    resolver: &TokioResolver,
    name: &Name,
    kind: RecordType,
) -> Result<Vec<Record>, String> {
    match resolver.lookup(name.clone(), kind).await {
        Ok(found) => Ok(found.answers().iter().take(RECORDS_MAX).cloned().collect()),
        Err(error) if error.is_no_records_found() || error.is_nx_domain() => Ok(Vec::new()),
        Err(error) => Err(format!(
            "asking for {kind} records of {}: {error}",
            plain(name)
        )),
    }
}

fn fqdn(name: &str) -> Result<Name, String> {
    Name::from_ascii(format!("{name}.")).map_err(|error| format!("{name}: {error}"))
}

fn plain(name: &Name) -> String {
    cut(name.to_ascii().trim_end_matches('.'))
}

/// Limits the length of untrusted text and removes control characters.
fn cut(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(TEXT_BYTES_MAX)
        .collect()
}
