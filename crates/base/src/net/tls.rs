//! TLS certificates of listeners: from files, which are reloaded when they change, or from a local
//! certificate authority for `gantry dev`.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::files::replace;

/// Number of issued certificates that are cached.
const CERTIFICATES_MAX: usize = 1000;
/// File name of the authority's certificate, for clients to trust.
pub const AUTHORITY: &str = "db-ca.pem";
const AUTHORITY_KEY: &str = "db-ca-key.pem";

/// A failure to set up TLS. The message is one complete line for a terminal.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Underlying error.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificate and the key are invalid or do not match.
    #[error("the certificate and the key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// A certificate cannot be issued.
    #[error("making certificates: {0}")]
    Authority(#[from] rcgen::Error),
}

/// Selects the certificate for a TLS client hello.
pub type CertificateResolver = Arc<dyn ResolvesServerCert>;

/// Serves the certificate chain and the key in these PEM files. Both are reloaded when a file
/// changes.
pub fn from_files(cert: &Path, key: &Path) -> Result<CertificateResolver, TlsError> {
    let files = Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
        held: Mutex::default(),
    };
    files.current()?;
    Ok(Arc::new(files))
}

/// Issues certificates with a local authority. Its key is in `dir`, and is created on first
/// use. Returns the path of the authority's certificate as well.
pub fn own_authority(dir: &Path, domain: &str) -> Result<(CertificateResolver, PathBuf), TlsError> {
    let authority = Authority::open(dir, domain)?;
    authority.certificate(domain)?;
    Ok((Arc::new(authority), dir.join(AUTHORITY)))
}

/// Returns the cryptography provider of this process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn at(path: &Path) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> TlsError {
    move |cause| TlsError::File {
        path: path.to_owned(),
        cause,
    }
}

/// A certificate and key from files.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    held: Mutex<Option<(Stamp, Arc<CertifiedKey>)>>,
}

/// Inode, size and modification time of both files.
type Stamp = [(u64, u64, i64, i64); 2];

impl Files {
    /// Returns the certificate in the files, or the last valid one if the files are invalid.
    fn current(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        let mut held = self.held.lock();
        let stamp = [&self.cert, &self.key].map(|path| {
            fs::metadata(path).map(|file| (file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
        });
        let stamp = match stamp {
            [Ok(cert), Ok(key)] => Some([cert, key]),
            _ => None,
        };
        match &*held {
            Some((then, key)) if stamp.as_ref().is_none_or(|now| now == then) => Ok(key.clone()),
            before => match self.read() {
                Ok(key) => {
                    *held = stamp.map(|stamp| (stamp, key.clone()));
                    Ok(key)
                }
                Err(error) => {
                    let Some((_, key)) = before else {
                        return Err(error);
                    };
                    tracing::warn!(%error, cert = %self.cert.display(), "failed to reload the certificate; the previous one remains in use");
                    Ok(key.clone())
                }
            },
        }
    }

    fn read(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect)
            .map_err(|cause| at(&self.cert)(cause.into()))?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|cause| at(&self.key)(cause.into()))?;
        Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current().ok()
    }
}

/// A local certificate authority. It issues one certificate per name, because a wildcard does not
/// match in the middle of `db.<ref>.<domain>`.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    domain: String,
    made: Cache<String, Arc<CertifiedKey>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.domain)
    }
}

impl Authority {
    fn open(dir: &Path, domain: &str) -> Result<Self, TlsError> {
        let key_file = dir.join(AUTHORITY_KEY);
        let cert_file = dir.join(AUTHORITY);
        let key = match fs::read_to_string(&key_file) {
            Ok(pem) => KeyPair::from_pem(&pem)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = KeyPair::generate()?;
                replace(&key_file, key.serialize_pem(), 0o600)
                    .map_err(|cause| at(&key_file)(cause.into()))?;
                key
            }
            Err(error) => return Err(at(&key_file)(error.into())),
        };
        let params = Self::params();
        if !cert_file.exists() {
            let pem = params.self_signed(&key)?.pem();
            replace(&cert_file, &pem, 0o644).map_err(|cause| at(&cert_file)(cause.into()))?;
        }
        Ok(Self {
            issuer: Issuer::new(params, key),
            domain: domain.to_ascii_lowercase(),
            made: Cache::new(CERTIFICATES_MAX),
        })
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "gantry dev databases");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    /// Returns a certificate for `name` if it is at or below the domain, otherwise for the domain
    /// itself.
    fn certificate(&self, name: &str) -> Result<Arc<CertifiedKey>, TlsError> {
        let name = name.to_ascii_lowercase();
        let ours = name
            .strip_suffix(&self.domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let name = if ours { name } else { self.domain.clone() };
        self.made.get_or_insert_with(&name, || self.make(&name))
    }

    fn make(&self, name: &str) -> Result<Arc<CertifiedKey>, TlsError> {
        let mut names = vec![name.to_owned()];
        if name == self.domain {
            names.extend(
                ["localhost", "127.0.0.1", "::1"]
                    .map(str::to_owned)
                    .into_iter()
                    .filter(|other| *other != name),
            );
        }
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(Arc::new(CertifiedKey::from_der(
            vec![cert.der().clone()],
            key,
            &provider(),
        )?))
    }
}

impl ResolvesServerCert for Authority {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate(hello.server_name().unwrap_or(&self.domain))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pair(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec![name.to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let cert_file = dir.join("cert.pem");
        let key_file = dir.join("key.pem");
        replace(&cert_file, cert.pem(), 0o644).unwrap();
        replace(&key_file, key.serialize_pem(), 0o600).unwrap();
        (cert_file, key_file)
    }

    #[test]
    fn changed_certificate_is_reloaded_if_valid() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = pair(dir.path(), "one.test");
        let files = Files {
            cert: cert.clone(),
            key,
            held: Mutex::default(),
        };
        let first = files.current().unwrap();
        assert!(
            Arc::ptr_eq(&first, &files.current().unwrap()),
            "unchanged files are not read again"
        );
        pair(dir.path(), "two.test");
        let second = files.current().unwrap();
        assert_ne!(first.cert, second.cert);
        fs::write(&cert, "nonsense").unwrap();
        assert_eq!(files.current().unwrap().cert, second.cert);
        fs::remove_file(&cert).unwrap();
        assert_eq!(files.current().unwrap().cert, second.cert);
        assert!(
            from_files(&cert, &cert).is_err(),
            "at the start it is an error"
        );
    }

    #[test]
    fn authority_is_persistent_and_issues_own_names_only() {
        let dir = tempfile::tempdir().unwrap();
        let (_, file) = own_authority(dir.path(), "dev.test").unwrap();
        let before = fs::read_to_string(&file).unwrap();
        own_authority(dir.path(), "dev.test").unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            before,
            "clients trust it already"
        );
        assert_eq!(
            fs::metadata(dir.path().join(AUTHORITY_KEY))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );

        let authority = Authority::open(dir.path(), "dev.test").unwrap();
        let made = |name: &str| authority.certificate(name).unwrap();
        assert!(Arc::ptr_eq(&made("db.x.dev.test"), &made("DB.x.DEV.test")));
        assert!(!Arc::ptr_eq(&made("db.x.dev.test"), &made("dev.test")));
        for foreign in ["bank.example", "evildev.test", "dev.test.evil"] {
            assert!(Arc::ptr_eq(&made(foreign), &made("dev.test")), "{foreign}");
        }
    }
}
