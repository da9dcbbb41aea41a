//! The session cookie and the cookie of a pending sign-in through the identity provider. No other
//! module reads or sets cookies.

use http::{HeaderMap, HeaderValue, header};

use crate::{
    platform::{
        access::{
            credential::PresentedCredential,
            sessions::{self, SessionSecret},
        },
        error::{Context, CredentialProblem, Error},
        http::Peer,
    },
    web::redirect,
};

/// Name over HTTPS. Browsers accept the `__Host-` prefix only from this host and return it to no
/// other (RFC 6265bis §4.1.3.2).
const SECURE: &str = "__Host-gantry";
/// Name without HTTPS, where browsers reject the `__Host-` prefix.
const LOCAL: &str = "gantry";

fn name(peer: Peer) -> &'static str {
    if peer.https { SECURE } else { LOCAL }
}

/// Lifetime of a pending sign-in, in seconds.
const PENDING_SECS: i64 = 10 * 60;

/// Suffix of the name of the pending sign-in cookie.
const PENDING: &str = "-way";

fn read<'a>(headers: &'a HeaderMap, peer: Peer, suffix: &str) -> Option<&'a str> {
    let cookies = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    let mut ours = cookies.filter_map(|cookie| {
        cookie
            .trim()
            .strip_prefix(name(peer))?
            .strip_prefix(suffix)?
            .strip_prefix('=')
    });
    ours.next()
}

/// Returns the session secret of a request.
pub(super) fn secret(headers: &HeaderMap, peer: Peer) -> Option<SessionSecret> {
    read(headers, peer, "").and_then(SessionSecret::parse)
}

/// Returns the secret of the pending sign-in and the path to redirect to afterwards.
pub(super) fn pending_sign_in(headers: &HeaderMap, peer: Peer) -> Option<(SessionSecret, String)> {
    let (secret, next) = read(headers, peer, PENDING)?.split_once('.')?;
    let (_, next) = form_urlencoded::parse(format!("next={next}").as_bytes())
        .into_owned()
        .next()?;
    Some((
        SessionSecret::parse(secret)?,
        redirect::safe_path(&next).to_owned(),
    ))
}

/// Returns the header that starts a pending sign-in.
pub(super) fn set_pending_sign_in(
    secret: &SessionSecret,
    next: &str,
    peer: Peer,
) -> Result<HeaderValue, Error> {
    let next: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
    set_cookie(
        peer,
        PENDING,
        &format!("{}.{next}", secret.expose()),
        PENDING_SECS,
    )
}

/// Returns the header that ends a pending sign-in.
pub(super) fn clear_pending_sign_in(peer: Peer) -> Result<HeaderValue, Error> {
    set_cookie(peer, PENDING, "", 0)
}

/// Returns the credential of a request.
pub(super) fn presented(
    headers: &HeaderMap,
    peer: Peer,
) -> Result<PresentedCredential, CredentialProblem> {
    secret(headers, peer)
        .map(|secret| PresentedCredential::Session(secret.digest()))
        .ok_or(CredentialProblem::Missing)
}

/// Returns the header that sets the session cookie.
pub(super) fn set(secret: &SessionSecret, peer: Peer) -> Result<HeaderValue, Error> {
    set_cookie(peer, "", secret.expose(), sessions::LIFE.num_seconds())
}

/// Returns the header that removes the session cookie.
pub(super) fn clear(peer: Peer) -> Result<HeaderValue, Error> {
    set_cookie(peer, "", "", 0)
}

fn set_cookie(peer: Peer, suffix: &str, value: &str, max_age: i64) -> Result<HeaderValue, Error> {
    let secure = if peer.https { "; Secure" } else { "" };
    let text = format!(
        "{}{suffix}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}",
        name(peer)
    );
    let mut value = HeaderValue::try_from(text).context("setting a cookie")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_base::clock::Entropy;

    fn peer(https: bool) -> Peer {
        Peer {
            address: [127, 0, 0, 1].into(),
            secure: true,
            https,
        }
    }

    #[test]
    fn session_cookie_is_read_only_over_the_transport_that_set_it() {
        let secret = SessionSecret::generate(&Entropy::seeded(7));
        for https in [true, false] {
            let header = set(&secret, peer(https))
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            assert!(
                header.contains("; Path=/;")
                    && header.contains("; HttpOnly; SameSite=Lax")
                    && !header.contains("Domain"),
                "{header}"
            );
            assert_eq!(
                (header.starts_with("__Host-"), header.ends_with("; Secure")),
                (https, https)
            );
            let mut headers = HeaderMap::new();
            headers.append(header::COOKIE, "gantryx=1; other=2".parse().unwrap());
            headers.append(
                header::COOKIE,
                format!("a=b;  {}", header.split(';').next().unwrap())
                    .parse()
                    .unwrap(),
            );
            assert_eq!(
                super::secret(&headers, peer(https)).unwrap().digest(),
                secret.digest()
            );
            assert!(super::secret(&headers, peer(!https)).is_none());
        }
    }
}
