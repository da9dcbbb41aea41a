//! Certificates of hostnames: stored with encrypted keys, decrypted once per node.

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::net::tls;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;
use x509_cert::{
    der::Decode,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use super::{CustomHostname, Host};
use crate::{
    control::context::ControlContext,
    platform::{
        db::Param,
        error::{Context, Error},
        tables::Table,
    },
};

/// Number of decrypted certificates that are cached, including those of deleted names.
const OPENED_MAX: usize = 10_000;

/// Returns the context that a private key is encrypted for.
pub(crate) fn place(hostname: Uuid) -> String {
    format!("hostname {hostname} certificate key")
}

/// Generates a private key in PEM.
pub(crate) fn new_key() -> Result<SecretString, Error> {
    Ok(KeyPair::generate()
        .context("making a certificate's key")?
        .serialize_pem()
        .into())
}

/// Returns a certificate signing request for `host`, in DER.
pub(crate) fn request(host: &str, key: &SecretString) -> Result<Vec<u8>, Error> {
    let doing = "asking for a certificate";
    let mut params = CertificateParams::new(vec![host.to_owned()]).context(doing)?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::from_pem(key.expose_secret()).context(doing)?;
    Ok(params
        .serialize_request(&key)
        .context(doing)?
        .der()
        .to_vec())
}

/// Stores a new certificate. Returns the default renewal time; the authority may suggest another.
pub(crate) async fn keep(
    context: &ControlContext,
    id: Uuid,
    directory: &str,
    chain: &str,
    key: &SecretString,
) -> Result<DateTime<Utc>, Error> {
    let doing = "keeping a certificate";
    // Validates that certificate and key match.
    open_pair(chain, key)?;
    let life = life(chain)?;
    let renew_at = life.two_thirds();
    let sealed = context
        .settings
        .sealing
        .seal(&context.entropy, &place(id), key)?;
    // Inserts nothing if the hostname was deleted meanwhile.
    let sql = "with held as (select id from custom_hostnames where id = $1 for key share) \
               insert into hostname_certificates (hostname_id, chain, sealed_key, not_after, renew_at, directory, ask_at) \
               select id, $2, $3, $4, $5, $6, $7 from (select id from held union all select id from wildcards where id = $1) s \
               on conflict (hostname_id) do update set chain = excluded.chain, sealed_key = excluded.sealed_key, \
               not_after = excluded.not_after, renew_at = excluded.renew_at, directory = excluded.directory, \
               window_start = null, window_end = null, ask_at = excluded.ask_at";
    let now = context.clock.now();
    let params: [Param<'_>; 7] = [
        &id,
        &chain,
        &sealed,
        &life.until,
        &renew_at,
        &directory,
        &now,
    ];
    context.db.query(sql, &params).await.context(doing)?;
    context.table_changed(Table::HostnameCertificates);
    Ok(renew_at)
}

/// Returns a certificate with its decrypted key, from the cache if possible.
pub fn open(
    context: &ControlContext,
    hostname: Uuid,
    chain: &str,
    sealed: &[u8],
    until: DateTime<Utc>,
) -> Result<Arc<CertifiedKey>, Error> {
    if let Some((of, key)) = context.hostname_reconciler.opened.lock().get(&hostname)
        && *of == until
    {
        return Ok(key.clone());
    }
    let key = context.settings.sealing.open(&place(hostname), sealed)?;
    let opened = Arc::new(open_pair(chain, &key)?);
    let mut all = context.hostname_reconciler.opened.lock();
    if all.len() >= OPENED_MAX {
        all.clear();
    }
    all.insert(hostname, (until, opened.clone()));
    Ok(opened)
}

/// A stored certificate.
pub(crate) struct StoredCertificate {
    /// Leaf certificate first.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) from: DateTime<Utc>,
    pub(crate) until: DateTime<Utc>,
    pub(crate) renew_at: DateTime<Utc>,
}

/// Returns the certificate of a hostname, if it has one.
pub(crate) async fn kept(
    context: &ControlContext,
    held: &CustomHostname,
) -> Result<Option<StoredCertificate>, Error> {
    let doing = "reading a certificate";
    let sql = "select chain, renew_at from hostname_certificates where hostname_id = $1";
    let rows = context.db.query(sql, &[&held.id]).await.context(doing)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let chain = read(row.get(0))?;
    let ValidityPeriod { from, until } = ValidityPeriod::of(&first(&chain)?);
    Ok(Some(StoredCertificate {
        chain,
        from,
        until,
        renew_at: row.get(1),
    }))
}

impl StoredCertificate {
    /// Returns the issuer and the DNS names.
    pub(crate) fn issuer_and_names(&self) -> Result<(String, Vec<String>), Error> {
        let doing = "reading a certificate";
        let certificate = first(&self.chain)?;
        let names = certificate
            .tbs_certificate
            .get::<SubjectAltName>()
            .context(doing)?
            .map(|(_, names)| names.0)
            .unwrap_or_default();
        let name = |name: GeneralName| {
            if let GeneralName::DnsName(name) = name {
                Some(name.to_string())
            } else {
                None
            }
        };
        Ok((
            certificate.tbs_certificate.issuer.to_string(),
            names.into_iter().filter_map(name).collect(),
        ))
    }

    /// Validates the chain and the name at the start of the validity period.
    pub(crate) fn verify(&self, host: &Host) -> Result<(), String> {
        let text = |error: &dyn fmt::Display| error.to_string();
        let roots = anchor(&self.chain)?;
        let [first, between @ .., _] = &self.chain[..] else {
            return Err("there is no certificate".to_owned());
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build();
        let name = ServerName::try_from(host.as_str()).map_err(|error| text(&error))?;
        let began =
            UnixTime::since_unix_epoch(Duration::from_secs(self.from.timestamp().unsigned_abs()));
        let verified = verifier.map_err(|error| text(&error))?.verify_server_cert(
            first,
            between,
            &name,
            &[],
            began,
        );
        verified.map(drop).map_err(|error| text(&error))
    }
}

/// Returns a root store with the last certificate of a chain.
pub(crate) fn anchor(chain: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let [_, .., last] = chain else {
        return Err("the certificate of the authority itself is missing".to_owned());
    };
    let mut roots = RootCertStore::empty();
    roots.add(last.clone()).map_err(|error| error.to_string())?;
    Ok(roots)
}

fn open_pair(chain: &str, key: &SecretString) -> Result<CertifiedKey, Error> {
    let doing = "opening a certificate";
    let chain = read(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes()).context(doing)?;
    CertifiedKey::from_der(chain, key, &tls::provider()).context(doing)
}

/// Parses a PEM chain.
pub(crate) fn read(chain: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("reading a certificate")
}

/// Parses the first certificate of a chain.
fn first(chain: &[CertificateDer<'_>]) -> Result<x509_cert::Certificate, Error> {
    let doing = "reading a certificate";
    x509_cert::Certificate::from_der(chain.first().ok_or("it is empty").context(doing)?)
        .context(doing)
}

/// Validity period of a certificate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValidityPeriod {
    pub(crate) from: DateTime<Utc>,
    pub(crate) until: DateTime<Utc>,
}

impl ValidityPeriod {
    pub(crate) fn length(self) -> TimeDelta {
        self.until - self.from
    }

    fn of(certificate: &x509_cert::Certificate) -> Self {
        let validity = certificate.tbs_certificate.validity;
        let at = |time: x509_cert::time::Time| DateTime::<Utc>::from(time.to_system_time());
        Self {
            from: at(validity.not_before),
            until: at(validity.not_after),
        }
    }
}

/// Returns the validity period of the first certificate of a PEM chain.
pub(crate) fn life(chain: &str) -> Result<ValidityPeriod, Error> {
    Ok(ValidityPeriod::of(&leaf(chain)?))
}

/// Returns the first certificate of a PEM chain.
pub(crate) fn leaf(chain: &str) -> Result<x509_cert::Certificate, Error> {
    first(&read(chain)?)
}
