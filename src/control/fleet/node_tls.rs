//! Certificates and TLS of the connections between nodes.
//!
//! Both sides present a certificate of the fleet's authority, for the name that belongs to the id
//! of their data folder. Nothing else is accepted, so a stolen connection string or an address that
//! another machine took leads nowhere.

use std::sync::Arc;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use gantry_base::net::tls::provider;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;
use x509_cert::{
    Certificate,
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use crate::platform::error::{Context, Error};

/// Time after which a certificate is replaced. It is valid for at least twice as long.
const RENEWAL_AGE: TimeDelta = TimeDelta::hours(8);
/// Protocol of the fleet port in the TLS handshake. Servers of other protocols do not accept it.
pub(super) const ALPN: &[u8] = b"gantry-fleet/1";
/// Domain of the names of nodes in certificates. It is not resolved.
const DOMAIN: &str = ".nodes.gantry";

/// The authority that issues the certificates of nodes.
pub(super) struct FleetAuthority {
    /// DER of its certificate.
    pub(super) certificate: Vec<u8>,
    /// PEM of its private key.
    pub(super) key: SecretString,
}

impl FleetAuthority {
    /// Creates an authority.
    pub(super) fn generate() -> Result<Self, Error> {
        let doing = "creating the authority of the fleet";
        let key = KeyPair::generate().context(doing)?;
        let certificate = authority_params().self_signed(&key).context(doing)?;
        Ok(Self {
            certificate: certificate.der().to_vec(),
            key: SecretString::from(key.serialize_pem()),
        })
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "Gantry fleet");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// TLS configuration of a node.
pub(super) struct NodeTls {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    issued_at: DateTime<Utc>,
}

impl NodeTls {
    /// Issues a certificate for a node. `now` is the time of the machine, with which TLS compares
    /// the validity.
    pub(super) fn issue(
        node: Uuid,
        authority: &FleetAuthority,
        now: DateTime<Utc>,
    ) -> Result<Self, Error> {
        let doing = "issuing the certificate of a node";
        let authority_key = KeyPair::from_pem(authority.key.expose_secret()).context(doing)?;
        let issuer = Issuer::new(authority_params(), authority_key);
        let mut params = CertificateParams::new(vec![name(node)]).context(doing)?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let part = |number: u32| u8::try_from(number).unwrap_or(1);
        let midnight =
            |at: DateTime<Utc>| date_time_ymd(at.year(), part(at.month()), part(at.day()));
        // Whole days, the day before included: the clocks of machines differ.
        params.not_before = midnight(now - TimeDelta::days(1));
        params.not_after = midnight(now + TimeDelta::days(2));
        let key = KeyPair::generate().context(doing)?;
        let certificate = params.signed_by(&key, &issuer).context(doing)?;
        let chain = vec![certificate.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let key = || PrivateKeyDer::Pkcs8(key.clone_key());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(authority.certificate.clone()))
            .context(doing)?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .context(doing)?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .context(doing)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key())
            .context(doing)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .context(doing)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key())
            .context(doing)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            issued_at: now,
        })
    }

    /// Whether the certificate is to be replaced.
    pub(super) fn is_due(&self, now: DateTime<Utc>) -> bool {
        now - self.issued_at > RENEWAL_AGE
    }
}

fn name(node: Uuid) -> String {
    format!("{node}{DOMAIN}")
}

/// Returns the name in the certificate of a node.
pub(super) fn server_name(node: Uuid) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(name(node)).context("naming a node")
}

/// Returns the node of a verified certificate chain.
pub(super) fn node_of(chain: &[CertificateDer<'_>]) -> Option<Uuid> {
    let certificate = Certificate::from_der(chain.first()?).ok()?;
    let (_, names) = certificate.tbs_certificate.get::<SubjectAltName>().ok()??;
    names.0.iter().find_map(|name| match name {
        GeneralName::DnsName(name) => name.as_str().strip_suffix(DOMAIN)?.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use gantry_base::clock::Clock;

    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    fn issue(node: Uuid, authority: &FleetAuthority) -> NodeTls {
        NodeTls::issue(node, authority, Clock::system().now()).unwrap()
    }

    /// Connects `client` to `server` under a name. Returns the nodes as both sides see them.
    async fn handshake(server: &NodeTls, client: &NodeTls, called: Uuid) -> Option<(Uuid, Uuid)> {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(local).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = TlsAcceptor::from(server.server.clone())
                .accept(stream)
                .await
                .ok()?;
            node_of(stream.get_ref().1.peer_certificates()?)
        };
        let connected = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let connector = TlsConnector::from(client.client.clone());
            let name = server_name(called).unwrap();
            let stream = connector.connect(name, stream).await.ok()?;
            node_of(stream.get_ref().1.peer_certificates()?)
        };
        let (client, server) = tokio::join!(accepted, connected);
        Some((server?, client?))
    }

    #[tokio::test]
    async fn nodes_of_one_authority_recognize_each_other() {
        let authority = FleetAuthority::generate().unwrap();
        let (one, two) = (issue(ONE, &authority), issue(TWO, &authority));
        assert_eq!(handshake(&one, &two, ONE).await, Some((ONE, TWO)));
        assert_eq!(
            handshake(&one, &two, TWO).await,
            None,
            "an address that another node took"
        );
        let other = FleetAuthority::generate().unwrap();
        let foreign = issue(TWO, &other);
        assert_eq!(handshake(&one, &foreign, ONE).await, None);
        assert_eq!(handshake(&foreign, &one, TWO).await, None);
    }

    #[test]
    fn certificates_are_replaced_long_before_they_expire() {
        let authority = FleetAuthority::generate().unwrap();
        let now = Clock::system().now();
        let tls = NodeTls::issue(ONE, &authority, now).unwrap();
        assert!(!tls.is_due(now + TimeDelta::hours(7)));
        assert!(tls.is_due(now + TimeDelta::hours(9)));
    }

    #[test]
    fn other_certificates_name_no_node() {
        let key = KeyPair::generate().unwrap();
        for name in ["example.com", "x.nodes.gantry", "nodes.gantry"] {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(node_of(&[certificate.der().clone()]), None, "{name}");
        }
        assert_eq!(node_of(&[]), None);
    }
}
