//! What keys look like: minted ones, signed ones, and how they are shown to those who may not have them.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::base::{clock::Entropy, ids::ProjectRef};

/// How long legacy keys hold, counted from when the project got them.
const LEGACY_LIFE: TimeDelta = TimeDelta::days(3650);
/// Characters of a key's random part that everybody may see who sees the key's name: 30 of 128 bits.
const PREFIX_CHARS: usize = 5;
/// Characters of the checksum by which a key can be told from what only looks like one.
const CHECKSUM_CHARS: usize = 8;
/// What stands for the part that is not shown, however long that is.
const BLOT: &str = "····················";

/// Kinds of keys that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Kind {
    /// For browsers and apps: no secret.
    Publishable,
    /// For servers.
    Secret,
}

impl Kind {
    /// Name on the wire and in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Publishable => "publishable",
            Self::Secret => "secret",
        }
    }

    const fn stem(self) -> &'static str {
        match self {
            Self::Publishable => "sb_publishable_",
            Self::Secret => "sb_secret_",
        }
    }

    /// A new key: the stem, 128 random bits, `_` and a checksum of all that.
    pub(crate) fn mint(self, entropy: &Entropy) -> SecretString {
        let text = format!(
            "{}{}",
            self.stem(),
            URL_SAFE_NO_PAD.encode(entropy.bytes::<16>())
        );
        let checksum = URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()));
        SecretString::from(format!("{text}_{}", &checksum[..CHECKSUM_CHARS]))
    }

    /// The beginning of a key, by which people tell theirs apart.
    pub(crate) fn prefix(self, key: &SecretString) -> String {
        key.expose_secret()
            .chars()
            .take(self.stem().len() + PREFIX_CHARS)
            .collect()
    }

    /// The key as somebody sees it who did not ask for it, or may not have it.
    pub(crate) fn shown(self, key: &SecretString, reveal: bool) -> String {
        match self {
            Self::Secret if !reveal => format!("{}{BLOT}", self.prefix(key)),
            Self::Publishable | Self::Secret => key.expose_secret().to_owned(),
        }
    }
}

/// Roles of the legacy keys: the older pair of a publishable and a secret key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Legacy {
    Anon,
    ServiceRole,
}

impl Legacy {
    pub(crate) const ALL: [Self; 2] = [Self::Anon, Self::ServiceRole];

    pub(crate) const fn role(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::ServiceRole => "service_role",
        }
    }

    /// The key: a JSON web token (HS256), the same whenever it is signed.
    pub(crate) fn sign(
        self,
        project: &ProjectRef,
        jwt_secret: &SecretString,
        since: DateTime<Utc>,
    ) -> SecretString {
        let (iat, exp) = (since.timestamp(), (since + LEGACY_LIFE).timestamp());
        // Nothing here needs escaping: a ref is letters.
        let claims = format!(
            r#"{{"iss":"supabase","ref":"{project}","role":"{}","iat":{iat},"exp":{exp}}}"#,
            self.role()
        );
        let signed = [r#"{"alg":"HS256","typ":"JWT"}"#, &claims]
            .map(|part| URL_SAFE_NO_PAD.encode(part))
            .join(".");
        let key = hmac::Key::new(hmac::HMAC_SHA256, jwt_secret.expose_secret().as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes()));
        SecretString::from(format!("{signed}.{signature}"))
    }

    /// As [`Kind::shown`]. All such keys begin alike, so nothing is left of one that is not shown.
    pub(crate) fn shown(self, key: &SecretString, reveal: bool) -> String {
        match self {
            Self::ServiceRole if !reveal => BLOT.to_owned(),
            Self::Anon | Self::ServiceRole => key.expose_secret().to_owned(),
        }
    }
}

/// A secret to sign legacy keys with: 64 characters.
pub(crate) fn mint_jwt_secret(entropy: &Entropy) -> SecretString {
    SecretString::from(URL_SAFE_NO_PAD.encode(entropy.bytes::<48>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_key_has_its_form_and_its_checksum() {
        for (kind, stem) in [
            (Kind::Publishable, "sb_publishable_"),
            (Kind::Secret, "sb_secret_"),
        ] {
            let key = kind.mint(&Entropy::seeded(1));
            let text = key.expose_secret();
            let (random, checksum) = text.strip_prefix(stem).unwrap().split_at(22);
            assert_eq!((random.len(), checksum.len()), (22, 9), "{text}");
            assert_eq!(
                checksum[1..],
                URL_SAFE_NO_PAD.encode(Sha256::digest(&text[..stem.len() + 22]))[..8]
            );
            assert_ne!(kind.mint(&Entropy::seeded(2)).expose_secret(), text);
            assert_eq!(kind.prefix(&key), text[..stem.len() + 5]);
        }
    }

    #[test]
    fn only_what_is_no_secret_is_shown_to_everybody() {
        let entropy = Entropy::seeded(1);
        let (open, secret) = (
            Kind::Publishable.mint(&entropy),
            Kind::Secret.mint(&entropy),
        );
        assert_eq!(Kind::Publishable.shown(&open, false), open.expose_secret());
        assert_eq!(Kind::Secret.shown(&secret, true), secret.expose_secret());
        let blotted = Kind::Secret.shown(&secret, false);
        assert_eq!(blotted, format!("{}{BLOT}", &secret.expose_secret()[..15]));
        assert_eq!(Legacy::Anon.shown(&secret, false), secret.expose_secret());
        assert_eq!(
            (
                Legacy::ServiceRole.shown(&secret, false),
                &*Legacy::ServiceRole.shown(&secret, true)
            ),
            (BLOT.to_owned(), secret.expose_secret())
        );
    }

    /// Made with another implementation (Python's `hmac`), so that what verifies tokens elsewhere verifies ours.
    #[test]
    fn a_legacy_key_is_a_token_that_others_verify() {
        let (project, secret) = (
            "abcdefghijklmnopqrst".parse().unwrap(),
            SecretString::from("0123456789abcdef0123456789abcdef"),
        );
        let since = DateTime::from_timestamp(1_700_000_000, 999_000_000).unwrap();
        let key = Legacy::Anon.sign(&project, &secret, since);
        let expected = [
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
            "eyJpc3MiOiJzdXBhYmFzZSIsInJlZiI6ImFiY2RlZmdoaWprbG1ub3BxcnN0Iiwicm9sZSI6ImFub24iLCJpYXQiOj\
             E3MDAwMDAwMDAsImV4cCI6MjAxNTM2MDAwMH0",
            "g46jgI07sR0c606Rw3By1tpPCrtp4KeUPwFlimbmNsM",
        ];
        assert_eq!(key.expose_secret().split('.').collect::<Vec<_>>(), expected);
        assert_ne!(
            Legacy::ServiceRole
                .sign(&project, &secret, since)
                .expose_secret(),
            key.expose_secret()
        );
    }
}
