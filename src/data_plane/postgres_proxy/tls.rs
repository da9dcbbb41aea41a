//! TLS as the router speaks it.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::ServerConfig;

use crate::base::net::{
    tls,
    tls::{Resolver, TlsError},
};

/// How a client that begins with TLS says that it means PostgreSQL.
const ALPN: &[u8] = b"postgresql";

/// How the router speaks TLS.
#[derive(Clone)]
pub struct PostgresProxyTls(pub(super) Arc<ServerConfig>);

impl fmt::Debug for PostgresProxyTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresProxyTls(…)")
    }
}

impl PostgresProxyTls {
    /// With the certificate chain and the key in these files. They are read again whenever they changed.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::new(tls::from_files(cert, key)?)
    }

    /// With certificates of an authority whose key is in `dir`, made when it is first needed. Returns where its own
    /// certificate is.
    pub fn own_authority(dir: &Path, domain: &str) -> Result<(Self, PathBuf), TlsError> {
        let (authority, certificate) = tls::own_authority(dir, domain)?;
        Ok((Self::new(authority)?, certificate))
    }

    fn new(resolver: Resolver) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}
