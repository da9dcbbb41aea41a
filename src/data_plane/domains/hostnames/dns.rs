//! Asking DNS: the name servers of the zone itself, so that no cache in between tells what was true an hour ago.

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
use crate::base::error::{Context, Error};

/// What a server gets to answer, and how often it is asked.
const ANSWER: (Duration, usize) = (Duration::from_secs(3), 2);
/// Name servers of a zone that are asked.
const SERVERS_MAX: usize = 6;
/// Records of one kind that are looked at.
const RECORDS_MAX: usize = 20;
/// Longest text of a record that is told on.
const TEXT_BYTES_MAX: usize = 200;
/// Where name servers listen.
const PORT: u16 = 53;

/// What an asking of DNS comes to: what was seen, or why nothing was.
pub type DnsFuture<'a, T = DnsRecords> =
    Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// Which name servers of a zone tell a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Propagation {
    /// All of them.
    ByAll,
    /// All that answer. These do not.
    ButBySilent(Vec<IpAddr>),
    /// There are some that say otherwise.
    NotYet,
}

/// Tells what DNS says of hostnames.
pub trait Dns: fmt::Debug + Send + Sync {
    /// What it says of `host`, and what stands at `proof_name`.
    fn look<'a>(&'a self, host: &'a Host, proof_name: &'a str) -> DnsFuture<'a>;

    /// Where a name leads, as its zone says.
    fn alias<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Option<String>>;

    /// Which name servers of its zone say that this text stands at a name.
    fn told<'a>(&'a self, name: &'a str, text: &'a str) -> DnsFuture<'a, Propagation>;

    /// The addresses of a name, as clients find them.
    fn addresses<'a>(&'a self, name: &'a str) -> DnsFuture<'a, Vec<IpAddr>>;
}

/// The real one.
pub struct Resolver {
    recursive: TokioResolver,
    /// Where name servers of zones listen: only in tests not where all do.
    port: u16,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resolver(:{})", self.port)
    }
}

impl Resolver {
    /// Finds name servers through these resolvers, or the system's if there are none.
    pub fn new(resolvers: &[SocketAddr]) -> Result<Self, Error> {
        Self::with_port(resolvers, PORT)
    }

    /// The same, with the name servers of zones on another port.
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

    /// The name servers of the zone that a name is in: their addresses, and what they are called.
    async fn servers_of(&self, host: &str) -> Result<(Vec<IpAddr>, Vec<String>), String> {
        for above in and_above(host) {
            let name = fqdn(above)?;
            let records = ask(&self.recursive, &name, RecordType::NS).await?;
            let servers: Vec<Name> = records
                .iter()
                // Of an alias the answer is about where it leads.
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

    /// Asks these name servers, and no cache in between.
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
        // At the same time: one that is silent takes as long as all that are.
        let asked = addresses
            .iter()
            .map(async |address| texts_at(&self.asking(&[*address])?, &name).await);
        let said = join_all(asked).await;
        let (mut silent, mut reasons) = (Vec::new(), Vec::new());
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
            // Nobody can be asked.
            all if all == addresses.len() => Err(reasons.join("; ")),
            _ => Ok(Propagation::ButBySilent(silent)),
        }
    }

    /// Who may certify a name: what stands at it, or else at the nearest name above it (RFC 8659).
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
                    // An empty one lets nobody.
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

/// Where a name leads.
async fn alias_at(zone: &TokioResolver, name: &str) -> Result<Option<String>, String> {
    let name = fqdn(name)?;
    let records = ask(zone, &name, RecordType::CNAME).await?;
    Ok(records.iter().find_map(|record| match &record.data {
        RData::CNAME(alias) if record.name == name => Some(plain(&alias.0)),
        _ => None,
    }))
}

/// What stands at a name.
async fn texts_at(zone: &TokioResolver, name: &Name) -> Result<Vec<String>, String> {
    let records = ask(zone, name, RecordType::TXT).await?;
    let text = |record: &Record| match &record.data {
        RData::TXT(text) => Some(cut(&String::from_utf8_lossy(&text.txt_data.concat()))),
        _ => None,
    };
    Ok(records.iter().filter_map(text).collect())
}

impl Dns for Resolver {
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
    // A name that one server does not know, another may know already.
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

/// The records of a kind at a name. None is an answer too; no answer is not.
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

/// What strangers wrote is told on in part.
fn cut(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(TEXT_BYTES_MAX)
        .collect()
}
