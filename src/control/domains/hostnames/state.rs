//! State of custom hostnames in the control context, and the certificate authority.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::control::domains::zone::Zone;

/// Decrypted certificates by hostname id, with their expiry to detect a renewed one.
pub(crate) type OpenedCertificates = Mutex<HashMap<Uuid, (DateTime<Utc>, Arc<CertifiedKey>)>>;

/// Wakes the reconciler and caches decrypted certificates.
#[derive(Debug, Default)]
pub struct HostnameReconciler {
    pub(super) bell: Notify,
    pub(crate) opened: OpenedCertificates,
}

impl HostnameReconciler {
    /// Wakes the reconciler.
    pub fn wake(&self) {
        self.bell.notify_one();
    }
}

/// The ACME certificate authority.
#[derive(Debug, Clone)]
pub struct CertificateAuthority {
    /// Directory URL.
    pub directory: String,
    /// PEM file with the root certificate of a private authority.
    pub root: Option<PathBuf>,
    /// Contact e-mail address.
    pub contact: Option<String>,
    /// Domain name of the authority in CAA records.
    pub issuer: Option<String>,
    /// Zone for DNS-01 challenges.
    pub zone: Option<Zone>,
    /// Whether the authority issues the wildcard certificate of the projects' domain.
    pub wildcard: bool,
}
