//! Private keys as JSON (RFC 7517, 7518 §6): generated with aws-lc, or checked when a client
//! imports one.

use aws_lc_rs::{
    encoding::{AsBigEndian, AsDer, EcPrivateKeyBin, Pkcs8V1Der},
    rand::SystemRandom,
    rsa::{KeyPairComponents, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
        RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents,
        UnparsedPublicKey,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gantry_base::clock::Entropy;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    platform::error::{Context, Error},
    proxy::accepted_keys::{SECRET_BYTES_MIN, VerificationKey},
};

/// Longest secret of an imported symmetric key, in bytes.
const SECRET_BYTES_MAX: usize = 1024;
/// Members of a private RSA key in the order of PKCS #1 (RFC 8017 §A.1.2).
const RSA_MEMBERS: [&str; 8] = ["n", "e", "d", "p", "q", "dp", "dq", "qi"];
/// Message that an imported key signs, to prove that its parts belong together.
const PROOF: &[u8] = b"gantry";

/// The algorithm of a signing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum SigningAlgorithm {
    /// Ed25519: reserved, and not available.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// ECDSA with the curve P-256 and SHA-256.
    #[serde(rename = "ES256")]
    Es256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// HMAC with SHA-256.
    #[serde(rename = "HS256")]
    Hs256,
}

impl SigningAlgorithm {
    /// Returns the name in tokens, in the contract and in the control database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
            Self::Hs256 => "HS256",
        }
    }

    /// Parses the name in the control database.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let all = [Self::Es256, Self::Rs256, Self::Hs256];
        all.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Returns the type of its keys (RFC 7518 §6.1).
    const fn key_type(self) -> &'static str {
        match self {
            Self::EdDsa => "OKP",
            Self::Es256 => "EC",
            Self::Rs256 => "RSA",
            Self::Hs256 => "oct",
        }
    }
}

/// A private key and its public part.
pub(super) struct PrivateKey {
    /// The key as JSON. Symmetric keys have `k`, others their private members.
    pub(super) jwk: SecretString,
    /// The part that verifies.
    pub(super) verification: VerificationKey,
}

impl PrivateKey {
    fn new(jwk: &Value) -> Result<Self, Error> {
        let verification = VerificationKey::of_jwk(jwk);
        Ok(Self {
            jwk: jwk.to_string().into(),
            verification: verification.ok_or_else(|| rejected("has members of other lengths"))?,
        })
    }

    /// Returns the symmetric key with this secret.
    pub(super) fn of_secret(secret: &SecretString) -> Result<Self, Error> {
        let k = URL_SAFE_NO_PAD.encode(secret.expose_secret());
        Self::new(&json!({"kty": "oct", "alg": "HS256", "k": k}))
    }
}

/// Returns the error of a key that a client imports.
fn rejected(problem: &'static str) -> Error {
    Error::invalid("private_jwk", problem)
}

/// Generates a key. Takes up to a second for RSA.
pub(super) fn generate(
    entropy: &Entropy,
    algorithm: SigningAlgorithm,
) -> Result<PrivateKey, Error> {
    let doing = "generating a signing key";
    match algorithm {
        SigningAlgorithm::EdDsa => Err(unavailable()),
        SigningAlgorithm::Es256 => {
            let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
            let pair = pair.context(doing)?;
            let private = pair.private_key();
            let d: EcPrivateKeyBin<'_> = private.as_be_bytes().context(doing)?;
            let point = pair.public_key().as_ref();
            let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE_NO_PAD.encode(part));
            let d = URL_SAFE_NO_PAD.encode(d.as_ref());
            PrivateKey::new(
                &json!({"kty": "EC", "alg": "ES256", "crv": "P-256", "x": x, "y": y, "d": d}),
            )
        }
        SigningAlgorithm::Rs256 => {
            let pair = RsaKeyPair::generate(KeySize::Rsa2048).context(doing)?;
            let der: Pkcs8V1Der<'_> = pair.as_der().context(doing)?;
            let numbers = rsa_numbers(der.as_ref())
                .ok_or("unexpected DER")
                .context(doing)?;
            let mut jwk = Map::new();
            jwk.insert("kty".to_owned(), json!("RSA"));
            jwk.insert("alg".to_owned(), json!("RS256"));
            for (name, number) in RSA_MEMBERS.into_iter().zip(numbers) {
                jwk.insert(name.to_owned(), json!(URL_SAFE_NO_PAD.encode(number)));
            }
            PrivateKey::new(&Value::Object(jwk))
        }
        SigningAlgorithm::Hs256 => {
            let k = URL_SAFE_NO_PAD.encode(entropy.bytes::<64>());
            PrivateKey::new(&json!({"kty": "oct", "alg": "HS256", "k": k}))
        }
    }
}

/// Returns the error of the algorithm that the contract lists and that is not available.
pub(super) fn unavailable() -> Error {
    Error::invalid(
        "algorithm",
        "EdDSA is not available; use ES256, RS256 or HS256",
    )
}

/// Checks a key that a client imports. Returns only its known members.
///
/// Errors: [`Error::Invalid`] for `private_jwk`, without any part of the key.
pub(super) fn import(algorithm: SigningAlgorithm, jwk: &Value) -> Result<PrivateKey, Error> {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &'static str| {
        let decoded = text(name).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        decoded.ok_or_else(|| rejected("members must be texts in base64url without padding"))
    };
    if text("kty") != Some(algorithm.key_type())
        || text("alg").is_some_and(|name| name != algorithm.name())
    {
        return Err(rejected("is no key of this algorithm"));
    }
    let mut kept = Map::new();
    kept.insert("kty".to_owned(), json!(algorithm.key_type()));
    kept.insert("alg".to_owned(), json!(algorithm.name()));
    let members: &[&str] = match algorithm {
        SigningAlgorithm::EdDsa => return Err(unavailable()),
        SigningAlgorithm::Es256 => {
            kept.insert("crv".to_owned(), json!("P-256"));
            check_ec(text("crv"), &bytes("x")?, &bytes("y")?, &bytes("d")?)?;
            &["x", "y", "d"]
        }
        SigningAlgorithm::Rs256 => {
            if text("e") != Some("AQAB") {
                return Err(rejected("must have the public exponent AQAB"));
            }
            check_rsa(&KeyPairComponents {
                public_key: RsaPublicKeyComponents {
                    n: bytes("n")?,
                    e: bytes("e")?,
                },
                d: bytes("d")?,
                p: bytes("p")?,
                q: bytes("q")?,
                dP: bytes("dp")?,
                dQ: bytes("dq")?,
                qInv: bytes("qi")?,
            })?;
            &RSA_MEMBERS
        }
        SigningAlgorithm::Hs256 => {
            if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes("k")?.len()) {
                return Err(rejected("must have 32 to 1024 bytes in k"));
            }
            &["k"]
        }
    };
    for name in members {
        kept.insert((*name).to_owned(), json!(text(name)));
    }
    PrivateKey::new(&Value::Object(kept))
}

fn check_ec(curve: Option<&str>, x: &[u8], y: &[u8], d: &[u8]) -> Result<(), Error> {
    if curve != Some("P-256") || x.len() != 32 || y.len() != 32 || d.len() != 32 {
        return Err(rejected("must be a key of the curve P-256"));
    }
    let point = [&[4], x, y].concat();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let inconsistent = "has parts that do not belong together";
    let pair = EcdsaKeyPair::from_private_key_and_public_key(algorithm, d, &point)
        .map_err(|_| rejected(inconsistent))?;
    let signature = pair.sign(&SystemRandom::new(), PROOF);
    let signature = signature.map_err(|_| rejected(inconsistent))?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point)
        .verify(PROOF, signature.as_ref())
        .map_err(|_| rejected(inconsistent))
}

fn check_rsa(components: &KeyPairComponents<Vec<u8>>) -> Result<(), Error> {
    let modulus = components.public_key.n.len();
    if !(256..=512).contains(&modulus) {
        return Err(rejected("must have a modulus of 2048 to 4096 bits"));
    }
    let inconsistent = "has parts that do not belong together";
    let pair = RsaKeyPair::from_components(components).map_err(|_| rejected(inconsistent))?;
    let mut signature = vec![0; pair.public_modulus_len()];
    pair.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        PROOF,
        &mut signature,
    )
    .map_err(|_| rejected(inconsistent))?;
    components
        .public_key
        .verify(&RSA_PKCS1_2048_8192_SHA256, PROOF, &signature)
        .map_err(|_| rejected(inconsistent))
}

/// Returns the numbers of a private RSA key in PKCS #8 (RFC 5958), without leading zeros.
fn rsa_numbers(pkcs8: &[u8]) -> Option<[&[u8]; 8]> {
    let (content, _) = der_value(pkcs8, 0x30)?;
    let (_, content) = der_value(content, 0x02)?;
    let (_, content) = der_value(content, 0x30)?;
    let (key, _) = der_value(content, 0x04)?;
    let (content, _) = der_value(key, 0x30)?;
    let (_, mut rest) = der_value(content, 0x02)?;
    let mut numbers = [&[][..]; 8];
    for number in &mut numbers {
        let (value, after) = der_value(rest, 0x02)?;
        *number = value.strip_prefix(&[0]).unwrap_or(value);
        rest = after;
    }
    Some(numbers)
}

/// Splits a value with this tag (X.690 §8.1) off. Returns its content and the bytes after it.
fn der_value(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = input.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length & 0x80 != 0 {
        let (bytes, after) = rest.split_at_checked(length & 0x7f)?;
        if bytes.len() > 3 {
            return None;
        }
        length = bytes
            .iter()
            .fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
        rest = after;
    }
    (*found == tag).then(|| rest.split_at_checked(length))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: [SigningAlgorithm; 3] = [
        SigningAlgorithm::Es256,
        SigningAlgorithm::Rs256,
        SigningAlgorithm::Hs256,
    ];

    fn generated(algorithm: SigningAlgorithm) -> Value {
        let key = generate(&Entropy::seeded(1), algorithm).unwrap();
        serde_json::from_str(key.jwk.expose_secret()).unwrap()
    }

    #[test]
    fn generated_keys_can_be_imported_and_keep_only_known_members() {
        for algorithm in USED {
            let jwk = generated(algorithm);
            let mut sent = jwk.clone();
            sent["note"] = json!("x");
            let key = import(algorithm, &sent).unwrap();
            let kept: Value = serde_json::from_str(key.jwk.expose_secret()).unwrap();
            assert_eq!(kept, jwk);
        }
    }

    #[test]
    fn keys_with_foreign_or_damaged_parts_are_rejected_without_repeating_them() {
        for algorithm in USED {
            let jwk = generated(algorithm);
            let other = generated(algorithm);
            for name in [
                "kty", "n", "e", "d", "p", "q", "dp", "dq", "qi", "x", "y", "crv", "k",
            ] {
                if jwk.get(name).is_none() {
                    continue;
                }
                for bad in [
                    other[name].clone(),
                    json!("!"),
                    json!("AAAA"),
                    json!(7),
                    Value::Null,
                ] {
                    let is_other_secret = name == "k" && bad == other[name];
                    if bad == jwk[name] || is_other_secret {
                        continue;
                    }
                    let mut sent = jwk.clone();
                    sent[name] = bad.clone();
                    let error = import(algorithm, &sent).err();
                    let message = error.unwrap_or_else(|| panic!("{name} {bad}")).message();
                    assert!(message.starts_with("private_jwk: "), "{message}");
                    assert!(message.len() < 80, "{message}");
                }
            }
        }
        let ec = generated(SigningAlgorithm::Es256);
        assert!(import(SigningAlgorithm::Rs256, &ec).is_err());
        assert!(import(SigningAlgorithm::EdDsa, &json!({"kty": "OKP"})).is_err());
    }

    #[test]
    fn der_of_another_form_is_no_key() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 0x84, 1, 1, 1, 1],
            &[0x30, 2, 2, 1],
            &[2, 1, 0],
        ] {
            assert!(rsa_numbers(bytes).is_none());
        }
    }
}
