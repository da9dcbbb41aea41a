//! TLS of connections that Gantry opens.

use std::sync::{Arc, LazyLock};

use rustls::{
    ClientConfig, ConfigBuilder, DEFAULT_VERSIONS, RootCertStore, client::WantsClientCert,
};

use super::tls;

/// Shared, because loading them is slow and connections are frequent.
static SYSTEM_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

/// Returns the certificate authorities of the system.
pub fn system_roots() -> Arc<RootCertStore> {
    SYSTEM_ROOTS.clone()
}

/// Returns the configuration of a client that trusts these certificate authorities. The caller
/// completes it with or without a certificate of its own.
pub fn config(
    roots: impl Into<Arc<RootCertStore>>,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    // The provider supports the default versions.
    ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(DEFAULT_VERSIONS)
        .unwrap_or_else(|_| ClientConfig::builder())
        .with_root_certificates(roots)
}
