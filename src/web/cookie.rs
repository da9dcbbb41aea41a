//! The session's cookie, and that of who is on the way to a provider and back. Nothing else reads or sets one.

use http::{HeaderMap, HeaderValue, header};

use crate::{
    base::error::{Context, Credential, Error},
    platform::{
        access::{credential::Presented, sessions, sessions::Secret},
        http::Peer,
    },
    web::next,
};

/// Over HTTPS a browser accepts the name only from this very host, and sends it back to no other.
const SECURE: &str = "__Host-gantry";
/// On this machine without HTTPS, where browsers do not take the other.
const LOCAL: &str = "gantry";

fn name(peer: Peer) -> &'static str {
    if peer.https { SECURE } else { LOCAL }
}

/// How long somebody may be on the way, in seconds.
const JOURNEY_SECS: i64 = 10 * 60;

/// What the name of the other has in addition.
const JOURNEY: &str = "-way";

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

/// The session a request brings.
pub(super) fn secret(headers: &HeaderMap, peer: Peer) -> Option<Secret> {
    read(headers, peer, "").and_then(Secret::parse)
}

/// The journey that a browser is on, and where it goes on afterwards.
pub(super) fn journey(headers: &HeaderMap, peer: Peer) -> Option<(Secret, String)> {
    let (secret, next) = read(headers, peer, JOURNEY)?.split_once('.')?;
    let (_, next) = form_urlencoded::parse(format!("next={next}").as_bytes())
        .into_owned()
        .next()?;
    Some((Secret::parse(secret)?, next::safe(&next).to_owned()))
}

/// Sets out.
pub(super) fn set_journey(secret: &Secret, next: &str, peer: Peer) -> Result<HeaderValue, Error> {
    let next: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
    written(
        peer,
        JOURNEY,
        &format!("{}.{next}", secret.expose()),
        JOURNEY_SECS,
    )
}

/// Has come back.
pub(super) fn clear_journey(peer: Peer) -> Result<HeaderValue, Error> {
    written(peer, JOURNEY, "", 0)
}

/// What says who sent a request.
pub(super) fn presented(headers: &HeaderMap, peer: Peer) -> Result<Presented, Credential> {
    secret(headers, peer)
        .map(|secret| Presented::Session(secret.digest()))
        .ok_or(Credential::Missing)
}

/// Sets the cookie.
pub(super) fn set(secret: &Secret, peer: Peer) -> Result<HeaderValue, Error> {
    written(peer, "", secret.expose(), sessions::LIFE.num_seconds())
}

/// Takes it away.
pub(super) fn clear(peer: Peer) -> Result<HeaderValue, Error> {
    written(peer, "", "", 0)
}

fn written(peer: Peer, suffix: &str, value: &str, max_age: i64) -> Result<HeaderValue, Error> {
    let secure = if peer.https { "; Secure" } else { "" };
    let text = format!(
        "{}{suffix}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{secure}",
        name(peer)
    );
    let mut value = HeaderValue::try_from(text).context("writing a cookie")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Entropy;

    fn peer(https: bool) -> Peer {
        Peer {
            address: [127, 0, 0, 1].into(),
            secure: true,
            https,
        }
    }

    #[test]
    fn what_is_set_is_read_again_and_only_over_the_same_transport() {
        let secret = Secret::generate(&Entropy::seeded(7));
        for https in [true, false] {
            let set = set(&secret, peer(https))
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            assert!(
                set.contains("; Path=/;")
                    && set.contains("; HttpOnly; SameSite=Lax")
                    && !set.contains("Domain"),
                "{set}"
            );
            assert_eq!(
                (set.starts_with("__Host-"), set.ends_with("; Secure")),
                (https, https)
            );
            let mut headers = HeaderMap::new();
            headers.append(header::COOKIE, "gantryx=1; other=2".parse().unwrap());
            headers.append(
                header::COOKIE,
                format!("a=b;  {}", set.split(';').next().unwrap())
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
