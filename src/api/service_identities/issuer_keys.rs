//! Public keys of trusted issuers, cached in memory.

use std::{collections::HashMap, fmt, sync::Arc};

use gantry_base::{clock::Ticks, ids::OrganizationId};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Mutex as AsyncMutex;

use super::rules::TokenRefusal;
use crate::{
    control::{context::ControlContext, third_party_auth},
    platform::outbound::UrlOwner,
    proxy::accepted_keys::VerificationKey,
};

/// Largest number of cached issuers. The least recently used are removed.
const ISSUERS_MAX: usize = 1_000;
/// Time for which keys are used, in milliseconds.
const LIFETIME: Ticks = 10 * 60_000;
/// Shortest time between two requests for keys while others are known, in milliseconds.
const REFETCH_PAUSE: Ticks = 60_000;
/// Shortest time between two requests for keys while none are known, in milliseconds.
const RETRY_PAUSE: Ticks = 5_000;

/// A public key of an issuer.
#[derive(Debug, Clone)]
pub struct TrustedKey {
    id: Option<String>,
    key: VerificationKey,
}

impl TrustedKey {
    /// Returns the keys of a set (RFC 7517 §5). Keys in other forms than those of discovery are
    /// left out.
    pub(super) fn of_set(set: &Value) -> Vec<Self> {
        let keys = set["keys"].as_array();
        let key = |jwk: &Value| {
            Some(Self {
                id: jwk["kid"].as_str().map(str::to_owned),
                key: VerificationKey::of_public_jwk(jwk)?,
            })
        };
        keys.into_iter().flatten().filter_map(key).collect()
    }

    /// Returns whether a token with this `kid` in its header may be signed by the key.
    pub(super) fn may_have_id(&self, kid: Option<&str>) -> bool {
        kid.is_none() || self.id.is_none() || self.id.as_deref() == kid
    }

    /// Returns whether the key has signed a token with this algorithm.
    pub(super) fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        self.key.verifies(algorithm, message, signature)
    }
}

/// The keys of one issuer. Locked during a request for them, so that others wait for its answer.
#[derive(Debug, Default)]
struct CachedIssuer {
    /// The time at which the keys were read, and the keys.
    keys: Option<(Ticks, Arc<[TrustedKey]>)>,
    /// The time of the last request for keys.
    attempted_at: Option<Ticks>,
}

impl CachedIssuer {
    /// Returns the keys that may be used at `now`.
    fn keys(&self, now: Ticks) -> Option<&Arc<[TrustedKey]>> {
        let (read_at, keys) = self.keys.as_ref()?;
        (now.saturating_sub(*read_at) < LIFETIME).then_some(keys)
    }

    /// Returns whether the keys have to be requested for a token with this `kid`.
    fn is_due(&self, kid: Option<&str>, now: Ticks) -> bool {
        let keys = self.keys(now);
        let pause = match keys {
            Some(keys) if keys.iter().any(|key| key.may_have_id(kid)) => return false,
            Some(_) => REFETCH_PAUSE,
            None => RETRY_PAUSE,
        };
        self.attempted_at
            .is_none_or(|at| now.saturating_sub(at) >= pause)
    }
}

/// An organization with an issuer that it trusts. The hosts that requests may go to are those of
/// the organization, so that its issuers are cached apart.
type IssuerName = (OrganizationId, String);
/// A cached issuer with the time of its last use.
type CacheSlot = (Ticks, Arc<AsyncMutex<CachedIssuer>>);

/// The cache of keys of all issuers.
#[derive(Default)]
pub struct TrustedKeys(Mutex<HashMap<IssuerName, CacheSlot>>);

impl fmt::Debug for TrustedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustedKeys").finish_non_exhaustive()
    }
}

impl TrustedKeys {
    /// Returns the keys of an issuer, which are requested if they are not cached or if none has the
    /// `kid`.
    ///
    /// Errors: [`TokenRefusal::Keys`] if they cannot be read.
    pub async fn find(
        &self,
        context: &ControlContext,
        (organization, issuer): (OrganizationId, &str),
        kid: Option<&str>,
    ) -> Result<Arc<[TrustedKey]>, TokenRefusal> {
        let issuer_slot = self.slot((organization, issuer.to_owned()), context.clock.ticks());
        let mut cached = issuer_slot.lock().await;
        let now = context.clock.ticks();
        if cached.is_due(kid, now) {
            cached.attempted_at = Some(now);
            let owner = UrlOwner::Organization(organization);
            let read =
                third_party_auth::keys_of_exact_issuer(&context.outbound, owner, issuer).await;
            match read {
                Ok(set) => cached.keys = Some((now, TrustedKey::of_set(&set).into())),
                Err(problem) => {
                    tracing::debug!(issuer, %problem, "keys of a trusted issuer not read");
                }
            }
        }
        cached.keys(now).cloned().ok_or(TokenRefusal::Keys)
    }

    fn slot(&self, name: IssuerName, now: Ticks) -> Arc<AsyncMutex<CachedIssuer>> {
        let mut slots = self.0.lock();
        if slots.len() >= ISSUERS_MAX && !slots.contains_key(&name) {
            let least = slots.iter().min_by_key(|(_, (used_at, _))| *used_at);
            if let Some(least) = least.map(|(name, _)| name.clone()) {
                slots.remove(&least);
            }
        }
        let (used_at, cached) = slots.entry(name).or_default();
        *used_at = now;
        cached.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(kid: Option<&str>) -> Arc<[TrustedKey]> {
        // Two coordinates of 32 bytes, which are not checked to be on the curve here.
        let number = "A".repeat(43);
        let key = json!({"kty": "EC", "crv": "P-256", "x": number, "y": number, "kid": kid});
        TrustedKey::of_set(&json!({"keys": [key, {"kty": "oct", "k": "AAAA"}, 7]})).into()
    }

    fn issuer(read_at: Ticks, kid: Option<&str>, attempted_at: Ticks) -> CachedIssuer {
        CachedIssuer {
            keys: Some((read_at, keys(kid))),
            attempted_at: Some(attempted_at),
        }
    }

    #[test]
    fn keys_are_requested_at_most_once_a_minute_for_an_unknown_kid() {
        assert_eq!(keys(None).len(), 1, "symmetric keys are left out");
        assert!(CachedIssuer::default().is_due(Some("a"), 0));
        let cached = issuer(0, Some("a"), 0);
        for (kid, now, expected) in [
            (Some("a"), LIFETIME - 1, false),
            (None, LIFETIME - 1, false),
            (Some("b"), REFETCH_PAUSE - 1, false),
            (Some("b"), REFETCH_PAUSE, true),
            (Some("a"), LIFETIME, true),
        ] {
            assert_eq!(cached.is_due(kid, now), expected, "{kid:?} {now}");
        }
        assert!(!issuer(0, None, 0).is_due(Some("b"), REFETCH_PAUSE));
        let failed = CachedIssuer {
            attempted_at: Some(0),
            ..CachedIssuer::default()
        };
        assert!(!failed.is_due(Some("a"), RETRY_PAUSE - 1));
        assert!(failed.is_due(Some("a"), RETRY_PAUSE));
        assert!(cached.keys(LIFETIME - 1).is_some() && cached.keys(LIFETIME).is_none());
    }

    #[test]
    fn number_of_cached_issuers_is_bounded() {
        let cache = TrustedKeys::default();
        let name = |n: usize| (OrganizationId(1), n.to_string());
        for n in 0..=ISSUERS_MAX {
            cache.slot(name(n), n as Ticks);
        }
        let slots = cache.0.lock();
        assert_eq!(slots.len(), ISSUERS_MAX);
        assert!(!slots.contains_key(&name(0)) && slots.contains_key(&name(1)));
    }
}
