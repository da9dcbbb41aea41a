//! Certificates of hostnames: kept sealed, and opened once for each node that serves them.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;
use x509_cert::der::Decode;

use super::Held;
use crate::{
    app::App,
    error::{Context, Error},
    tls,
};

/// Certificates that are kept open. Those of names that are gone are among them.
const OPENED_MAX: usize = 10_000;

/// Certificates that are opened, by hostname, with their ends: what tells one from the next.
pub(super) type Opened = Mutex<HashMap<Uuid, (DateTime<Utc>, Arc<CertifiedKey>)>>;

/// What the private key of a hostname is, where it is sealed.
pub(super) fn place(hostname: Uuid) -> String {
    format!("hostname {hostname} certificate key")
}

/// A new private key, in PEM.
pub(super) fn new_key() -> Result<SecretString, Error> {
    Ok(KeyPair::generate().context("making a certificate's key")?.serialize_pem().into())
}

/// What asks for a certificate of `host` with this key.
pub(super) fn request(host: &str, key: &SecretString) -> Result<Vec<u8>, Error> {
    let doing = "asking for a certificate";
    let mut params = CertificateParams::new(vec![host.to_owned()]).context(doing)?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::from_pem(key.expose_secret()).context(doing)?;
    Ok(params.serialize_request(&key).context(doing)?.der().to_vec())
}

/// Keeps a new certificate. Returns when it is to be renewed: after two thirds of its life.
pub(super) async fn keep(app: &App, held: &Held, chain: &str, key: &SecretString) -> Result<DateTime<Utc>, Error> {
    let doing = "keeping a certificate";
    // Of no use together, they are not kept.
    open_pair(chain, key)?;
    let (from, until) = life(chain)?;
    let renew_at = from + (until - from) * 2 / 3;
    let sealed = app.settings.sealing.seal(&app.entropy, &place(held.id), key)?;
    let sql = "insert into hostname_certificates (hostname_id, chain, sealed_key, not_after, renew_at) values ($1, $2, $3, $4, $5) \
               on conflict (hostname_id) do update set chain = excluded.chain, sealed_key = excluded.sealed_key, \
               not_after = excluded.not_after, renew_at = excluded.renew_at";
    app.db.query(sql, &[&held.id, &chain, &sealed, &until, &renew_at]).await.context(doing)?;
    app.forget("hostname_certificates");
    Ok(renew_at)
}

/// When the certificate of a hostname is to be renewed. None: it has none.
pub(super) async fn renewal(app: &App, held: &Held) -> Result<Option<DateTime<Utc>>, Error> {
    let sql = "select renew_at from hostname_certificates where hostname_id = $1";
    let rows = app.db.query(sql, &[&held.id]).await.context("reading a certificate")?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// A certificate with its key, opened once.
pub fn open(app: &App, hostname: Uuid, chain: &str, sealed: &[u8], until: DateTime<Utc>) -> Result<Arc<CertifiedKey>, Error> {
    if let Some((of, key)) = app.hostnames.opened.lock().get(&hostname)
        && *of == until
    {
        return Ok(key.clone());
    }
    let key = app.settings.sealing.open(&place(hostname), sealed)?;
    let opened = Arc::new(open_pair(chain, &key)?);
    let mut all = app.hostnames.opened.lock();
    if all.len() >= OPENED_MAX {
        all.clear();
    }
    all.insert(hostname, (until, opened.clone()));
    Ok(opened)
}

fn open_pair(chain: &str, key: &SecretString) -> Result<CertifiedKey, Error> {
    let doing = "opening a certificate";
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>().context(doing)?;
    let key = PrivateKeyDer::from_pem_slice(key.expose_secret().as_bytes()).context(doing)?;
    CertifiedKey::from_der(chain, key, &tls::provider()).context(doing)
}

/// From when until when a certificate is good.
fn life(chain: &str) -> Result<(DateTime<Utc>, DateTime<Utc>), Error> {
    let doing = "reading a certificate's life";
    let first = CertificateDer::pem_slice_iter(chain.as_bytes()).next().ok_or("it is empty").context(doing)?.context(doing)?;
    let certificate = x509_cert::Certificate::from_der(&first).context(doing)?;
    let validity = certificate.tbs_certificate.validity;
    let at = |time: x509_cert::time::Time| DateTime::<Utc>::from(time.to_system_time());
    Ok((at(validity.not_before), at(validity.not_after)))
}

/// What an authority is shown that looks by TLS (RFC 8737): good for nothing else.
pub fn answer(host: &str, key_authorization: &str) -> Result<CertifiedKey, Error> {
    let doing = "making the answer to a challenge";
    let key = KeyPair::generate().context(doing)?;
    let mut params = CertificateParams::new(vec![host.to_owned()]).context(doing)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&Sha256::digest(key_authorization)[..])];
    let certificate = params.self_signed(&key).context(doing)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    // Not `from_der`, which refuses the extension because it does not know it.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], any_supported_type(&key).context(doing)?))
}
