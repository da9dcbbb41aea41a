//! Formats of API keys: generated keys, signed legacy keys, and masked keys for display.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, TimeDelta, Utc};
use gantry_base::{clock::Entropy, ids::ProjectRef};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::proxy::accepted_keys::sign_hs256;

/// Validity of legacy keys, counted from the creation of the project's key ring.
const LEGACY_TTL: TimeDelta = TimeDelta::days(3650);
/// Characters of a secret key's random part that are displayed to every reader: 30 of 128 bits.
const PREFIX_CHARS: usize = 5;
/// Characters of the checksum at the end of a key.
const CHECKSUM_CHARS: usize = 8;
/// Text displayed in place of the masked part, independent of its length.
const MASK: &str = "····················";

/// Kinds of API keys that a caller can create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Kind {
    /// A key for browsers and apps. Not a secret.
    Publishable,
    /// A secret key for servers.
    Secret,
}

impl Kind {
    /// Returns the name on the wire and in the database.
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

    /// Generates a key: the stem, 128 random bits, `_` and a checksum of these.
    pub(crate) fn mint(self, entropy: &Entropy) -> SecretString {
        let text = format!(
            "{}{}",
            self.stem(),
            URL_SAFE_NO_PAD.encode(entropy.bytes::<16>())
        );
        let checksum = URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()));
        SecretString::from(format!("{text}_{}", &checksum[..CHECKSUM_CHARS]))
    }

    /// Returns the displayed beginning of a key.
    pub(crate) fn prefix(self, key: &SecretString) -> String {
        key.expose_secret()
            .chars()
            .take(self.stem().len() + PREFIX_CHARS)
            .collect()
    }

    /// Returns the key as displayed. A secret key is masked unless `reveal` is set.
    pub(crate) fn display(self, key: &SecretString, reveal: bool) -> String {
        match self {
            Self::Secret if !reveal => format!("{}{MASK}", self.prefix(key)),
            Self::Publishable | Self::Secret => key.expose_secret().to_owned(),
        }
    }
}

/// Roles of the legacy keys, the older pair of a publishable and a secret key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LegacyKey {
    Anon,
    ServiceRole,
}

impl LegacyKey {
    pub(crate) const ALL: [Self; 2] = [Self::Anon, Self::ServiceRole];

    pub(crate) const fn role(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::ServiceRole => "service_role",
        }
    }

    /// Signs the key: a JSON web token (HS256). The result depends only on the arguments.
    pub(crate) fn sign(
        self,
        project: &ProjectRef,
        jwt_secret: &SecretString,
        since: DateTime<Utc>,
    ) -> SecretString {
        let iat = since.timestamp();
        let exp = (since + LEGACY_TTL).timestamp();
        // No escaping is needed: a project ref contains only letters.
        let claims = format!(
            r#"{{"iss":"supabase","ref":"{project}","role":"{}","iat":{iat},"exp":{exp}}}"#,
            self.role()
        );
        sign_hs256(r#"{"alg":"HS256","typ":"JWT"}"#, &claims, jwt_secret)
    }

    /// Returns the key as displayed, like [`Kind::display`]. A masked legacy key has no visible
    /// prefix, because all legacy keys begin alike.
    pub(crate) fn display(self, key: &SecretString, reveal: bool) -> String {
        match self {
            Self::ServiceRole if !reveal => MASK.to_owned(),
            Self::Anon | Self::ServiceRole => key.expose_secret().to_owned(),
        }
    }
}

/// Generates a secret of 64 characters that signs legacy keys.
pub(crate) fn mint_jwt_secret(entropy: &Entropy) -> SecretString {
    SecretString::from(URL_SAFE_NO_PAD.encode(entropy.bytes::<48>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_key_has_stem_and_checksum() {
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
    fn secret_keys_are_masked_unless_revealed() {
        let entropy = Entropy::seeded(1);
        let open = Kind::Publishable.mint(&entropy);
        let secret = Kind::Secret.mint(&entropy);
        assert_eq!(
            Kind::Publishable.display(&open, false),
            open.expose_secret()
        );
        assert_eq!(Kind::Secret.display(&secret, true), secret.expose_secret());
        let masked = Kind::Secret.display(&secret, false);
        assert_eq!(masked, format!("{}{MASK}", &secret.expose_secret()[..15]));
        assert_eq!(
            LegacyKey::Anon.display(&secret, false),
            secret.expose_secret()
        );
        assert_eq!(
            (
                LegacyKey::ServiceRole.display(&secret, false),
                &*LegacyKey::ServiceRole.display(&secret, true)
            ),
            (MASK.to_owned(), secret.expose_secret())
        );
    }

    /// The expected token was generated by Python's `hmac`, an independent implementation.
    #[test]
    fn legacy_key_equals_token_of_another_implementation() {
        let project = "abcdefghijklmnopqrst".parse().unwrap();
        let secret = SecretString::from("0123456789abcdef0123456789abcdef");
        let since = DateTime::from_timestamp(1_700_000_000, 999_000_000).unwrap();
        let key = LegacyKey::Anon.sign(&project, &secret, since);
        let expected = [
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9",
            "eyJpc3MiOiJzdXBhYmFzZSIsInJlZiI6ImFiY2RlZmdoaWprbG1ub3BxcnN0Iiwicm9sZSI6ImFub24iLCJpYXQiOj\
             E3MDAwMDAwMDAsImV4cCI6MjAxNTM2MDAwMH0",
            "g46jgI07sR0c606Rw3By1tpPCrtp4KeUPwFlimbmNsM",
        ];
        assert_eq!(key.expose_secret().split('.').collect::<Vec<_>>(), expected);
        assert_ne!(
            LegacyKey::ServiceRole
                .sign(&project, &secret, since)
                .expose_secret(),
            key.expose_secret()
        );
    }
}
