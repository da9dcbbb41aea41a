//! TLS configuration of the PostgreSQL proxy.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use gantry_base::net::tls::{self, CertificateResolver, TlsError};
use rustls::ServerConfig;

/// ALPN protocol of clients that negotiate TLS directly.
const ALPN: &[u8] = b"postgresql";

/// TLS configuration with its certificate.
#[derive(Clone)]
pub struct PostgresProxyTls(pub(super) Arc<ServerConfig>);

impl fmt::Debug for PostgresProxyTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresProxyTls(…)")
    }
}

impl PostgresProxyTls {
    /// Loads the certificate chain and the key from PEM files. Both are reloaded when a file
    /// changes.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::new(tls::from_files(cert, key)?)
    }

    /// Issues certificates with a local authority. Its key is in `dir`, and is created on first
    /// use. Returns the path of the authority's certificate as well.
    pub fn own_authority(dir: &Path, domain: &str) -> Result<(Self, PathBuf), TlsError> {
        let (authority, certificate) = tls::own_authority(dir, domain)?;
        Ok((Self::new(authority)?, certificate))
    }

    fn new(resolver: CertificateResolver) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}
