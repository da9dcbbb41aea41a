//! Personal access tokens: minting, recognising and revoking them. Only the digest is ever stored.

pub mod last_used;

use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{
    clock::Entropy,
    db::Db,
    error::{Context, Credential, Error},
    ids::{TokenId, UserId},
};

/// Longest custom life of a token.
pub const LIFE_DAYS_MAX: i64 = 366;

/// SHA-256 of a token. A token has 160 random bits, so nothing slower is needed (`limits.md` §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of a whole token, prefix included.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// The bytes, as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The digest of the token in an `Authorization` header, or why there is none.
///
/// Form: `sbp_`, optionally `oauth_` or `v0_`, then 40 lowercase hex digits (`behaviour.md` §3).
pub fn recognise(header: Option<&[u8]>) -> Result<Digest, Credential> {
    let header = header.ok_or(Credential::Missing)?;
    let header = std::str::from_utf8(header).map_err(|_| Credential::Malformed)?;
    let (scheme, token) = header.split_once(' ').ok_or(Credential::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Credential::Missing);
    }
    if well_formed(token) {
        return Ok(Digest::of(token));
    }
    let jwt = token.split('.').count() == 3 && token.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    Err(if jwt { Credential::Jwt } else { Credential::Malformed })
}

fn well_formed(token: &str) -> bool {
    let Some(rest) = token.strip_prefix("sbp_") else { return false };
    let hex = rest.strip_prefix("oauth_").or_else(|| rest.strip_prefix("v0_")).unwrap_or(rest);
    hex.len() == 40 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A new token: shown once, never stored.
pub struct Minted {
    /// The token.
    pub token: SecretString,
    digest: Digest,
    alias: String,
}

/// Mints a classic token. It never begins `fc`, which marks scoped ones.
pub fn mint_classic(entropy: &Entropy) -> Minted {
    loop {
        let bytes = entropy.bytes::<20>();
        if bytes[0] != 0xfc {
            let token = format!("sbp_{}", hex::encode(bytes));
            let alias = format!("{}…{}", &token[..8], &token[40..]);
            return Minted { digest: Digest::of(&token), token: SecretString::from(token), alias };
        }
    }
}

/// A token as its owner sees it afterwards.
#[derive(Debug, Serialize)]
pub struct Token {
    /// Row of `tokens`.
    pub id: i64,
    /// What the owner called it.
    pub name: String,
    /// First and last four characters.
    pub alias: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it stops working; never, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<DateTime<Utc>>,
}

/// Stores a minted token and returns its row.
pub async fn create(
    db: &Db,
    owner: UserId,
    name: &str,
    minted: &Minted,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
) -> Result<Token, Error> {
    let rows = db
        .query(
            "insert into tokens (user_id, name, digest, alias, created_at, expires_at) values ($1, $2, $3, $4, $5, $6) returning id",
            &[&owner.0, &name, &minted.digest.as_bytes(), &minted.alias, &created_at, &expires_at],
        )
        .await
        .context("storing a token")?;
    let id = rows.first().map_or(0, |row| row.get(0));
    Ok(Token { id, name: name.to_owned(), alias: minted.alias.clone(), created_at, expires_at, last_used_at: None })
}

/// The live tokens of a user, newest first.
pub async fn list(db: &Db, owner: UserId) -> Result<Vec<Token>, Error> {
    let rows = db
        .query(
            "select id, name, alias, created_at, expires_at, last_used_at from tokens \
             where user_id = $1 and revoked_at is null order by created_at desc limit 1000",
            &[&owner.0],
        )
        .await
        .context("listing tokens")?;
    let token = |row: &tokio_postgres::Row| Token {
        id: row.get(0),
        name: row.get(1),
        alias: row.get(2),
        created_at: row.get(3),
        expires_at: row.get(4),
        last_used_at: row.get(5),
    };
    Ok(rows.iter().map(token).collect())
}

/// Revokes a token: the next request with it is refused, on every node as soon as the notification arrives.
pub async fn revoke(db: &Db, token: TokenId, now: DateTime<Utc>) -> Result<(), Error> {
    let sql = "update tokens set revoked_at = $2 where id = $1 and revoked_at is null returning id";
    let rows = db.query(sql, &[&token.0, &now]).await.context("revoking a token")?;
    if rows.is_empty() { Err(Error::NotFound) } else { Ok(()) }
}

impl Minted {
    /// The token in clear, to be shown once.
    pub fn expose(&self) -> &str {
        self.token.expose_secret()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_apart() {
        let good = format!("sbp_{}", "a1".repeat(20));
        let cases = [
            (format!("Bearer {good}"), Ok(Digest::of(&good))),
            (format!("bearer {good}"), Ok(Digest::of(&good))),
            (format!("Bearer sbp_oauth_{}", "0".repeat(40)), Ok(Digest::of(&format!("sbp_oauth_{}", "0".repeat(40))))),
            (format!("Bearer {good}x"), Err(Credential::Malformed)),
            (format!("Bearer {good} "), Err(Credential::Malformed)),
            (format!("Bearer  {good}"), Err(Credential::Malformed)),
            (format!("Bearer {}", good.to_uppercase()), Err(Credential::Malformed)),
            ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYW5vbiJ9.c2ln".into(), Err(Credential::Jwt)),
            ("Bearer a.b".into(), Err(Credential::Malformed)),
            (format!("Basic {good}"), Err(Credential::Missing)),
            (good, Err(Credential::Missing)),
        ];
        for (header, expected) in cases {
            assert_eq!(recognise(Some(header.as_bytes())), expected, "{header}");
        }
        assert_eq!(recognise(None), Err(Credential::Missing));
        assert_eq!(recognise(Some(b"Bearer \xff")), Err(Credential::Malformed));
    }

    #[test]
    fn a_minted_token_is_well_formed_and_never_marked_scoped() {
        for seed in 0..2000 {
            let minted = mint_classic(&Entropy::seeded(seed));
            assert!(well_formed(minted.expose()) && !minted.expose().starts_with("sbp_fc"), "{}", minted.expose());
            assert_eq!(minted.alias.chars().count(), 13);
        }
    }
}
