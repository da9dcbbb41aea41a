//! Certificate selection by server name.

use std::{fmt, path::Path, sync::Arc};

use gantry_base::net::tls::{self, CertificateResolver, TlsError};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs::{Ticketer, sign::any_supported_type},
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::{CertifiedKey, SingleCertAndKey},
};
use sha2::{Digest, Sha256};

use super::{context::ServiceProxyContext, routes::ChallengeResponse};
use crate::platform::error::{Context, Error};

/// The wildcard certificate for names below the projects' domain.
#[derive(Clone)]
pub struct WildcardCertificate(CertificateResolver);

impl WildcardCertificate {
    /// Loads the certificate from PEM files. They are reloaded when they change.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        tls::from_files(cert, key).map(Self)
    }

    /// Issues certificates per name with the local authority in `dir`.
    pub fn own_authority(dir: &Path, domain: &str) -> Result<Self, TlsError> {
        tls::own_authority(dir, domain).map(|(resolver, _)| Self(resolver))
    }
}

impl fmt::Debug for WildcardCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WildcardCertificate(…)")
    }
}

/// ALPN protocol of ACME TLS-ALPN-01 challenges (RFC 8737).
pub(super) const ACME_ALPN: &[u8] = b"acme-tls/1";

/// Returns a TLS configuration that answers a TLS-ALPN-01 challenge and serves nothing else.
pub(super) fn for_challenge(
    host: &str,
    challenge: &ChallengeResponse,
) -> Result<Arc<ServerConfig>, Error> {
    let doing = "answering a challenge";
    let certificate = challenge_certificate(host, &challenge.key_authorization)?;
    let builder = ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .context(doing)?;
    let mut config = builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    config.alpn_protocols = vec![ACME_ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Creates the certificate for a TLS-ALPN-01 challenge (RFC 8737).
fn challenge_certificate(host: &str, key_authorization: &str) -> Result<CertifiedKey, Error> {
    let doing = "making the answer to a challenge";
    let key = KeyPair::generate().context(doing)?;
    let mut params = CertificateParams::new(vec![host.to_owned()]).context(doing)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(
        &Sha256::digest(key_authorization)[..],
    )];
    let certificate = params.self_signed(&key).context(doing)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    // `from_der` rejects the critical extension as unknown.
    Ok(CertifiedKey::new(
        vec![certificate.der().clone()],
        any_supported_type(&key).context(doing)?,
    ))
}

/// TLS configuration of the service proxy.
pub(super) struct Tls {
    pub(super) config: Arc<ServerConfig>,
    /// Whether a wildcard certificate for the projects' domain is configured.
    pub(super) has_wildcard: bool,
}

impl Tls {
    pub(super) fn new(
        context: &ServiceProxyContext,
        wildcard: Option<WildcardCertificate>,
    ) -> Result<Self, TlsError> {
        let has_wildcard = wildcard.is_some();
        let certificates = Certificates {
            context: context.clone(),
            wildcard,
        };
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificates));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Session tickets, encrypted with a key that rotates every few hours.
        config.ticketer = Ticketer::new()?;
        Ok(Self {
            config: Arc::new(config),
            has_wildcard,
        })
    }
}

struct Certificates {
    context: ServiceProxyContext,
    wildcard: Option<WildcardCertificate>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(…)")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        let known = self.context.proxy.routes.current();
        let route = known.get(&name)?;
        match &route.certificate {
            Some(own) => Some(own.clone()),
            // A certificate from files takes precedence over one issued by ACME.
            None if route.own_domain => match &self.wildcard {
                Some(wildcard) => wildcard.0.resolve(hello),
                None => known.wildcard.clone(),
            },
            None => None,
        }
    }
}
