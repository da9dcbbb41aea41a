//! Authorization of requests to Edge Functions.

use hyper::{HeaderMap, header};

use crate::proxy::accepted_keys::{AcceptedKeys, KEY_BYTES_MAX, TokenProblem};

/// Beginning of generated keys.
const KEY_PREFIX: &str = "sb_";

/// The reason why a request to a function is not authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FunctionAuthProblem {
    /// The request has neither a token nor a key.
    NoHeader,
    /// The key is not of the project.
    WrongKey,
    /// The token is not accepted.
    Token(TokenProblem),
}

impl FunctionAuthProblem {
    /// The code of the hosted platform.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::NoHeader => "UNAUTHORIZED_NO_AUTH_HEADER",
            Self::WrongKey => "UNAUTHORIZED_INVALID_API_KEY",
            Self::Token(TokenProblem::Format) => "UNAUTHORIZED_INVALID_JWT_FORMAT",
            Self::Token(TokenProblem::Legacy) => "UNAUTHORIZED_LEGACY_JWT",
            Self::Token(TokenProblem::Asymmetric) => "UNAUTHORIZED_ASYMMETRIC_JWT",
            Self::Token(TokenProblem::Unsupported(_)) => "UNAUTHORIZED_UNSUPPORTED_TOKEN_ALGORITHM",
        }
    }

    /// The message of the hosted platform.
    pub(super) fn message(self) -> String {
        match self {
            Self::NoHeader => "Missing authorization header".to_owned(),
            Self::WrongKey => "Invalid API key".to_owned(),
            Self::Token(TokenProblem::Format) => "Invalid JWT format".to_owned(),
            Self::Token(TokenProblem::Legacy | TokenProblem::Asymmetric) => {
                "Invalid JWT".to_owned()
            }
            Self::Token(TokenProblem::Unsupported(algorithm)) => {
                format!("Unsupported JWT algorithm {algorithm}")
            }
        }
    }
}

/// Checks the credentials of a request, and returns the verified token, if that is not a key. A key
/// that is not of the project is rejected even where no token is needed.
pub(super) fn authorize<'a>(
    headers: &'a HeaderMap,
    keys: &AcceptedKeys,
    verify_jwt: bool,
    now: i64,
) -> Result<Option<&'a str>, FunctionAuthProblem> {
    let single = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => {
                let text = value.to_str().ok();
                let text = text.filter(|text| text.len() <= KEY_BYTES_MAX * 16);
                text.map(Some).ok_or(FunctionAuthProblem::WrongKey)
            }
            (Some(_), Some(_)) => Err(FunctionAuthProblem::WrongKey),
        }
    };
    let key = single("apikey")?.filter(|key| !key.is_empty());
    let authorization = single(header::AUTHORIZATION.as_str())?;
    let bearer = authorization.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let mut is_key = false;
    for sent in [key, bearer].into_iter().flatten() {
        if keys.contains(sent) {
            is_key = true;
        } else if sent.starts_with(KEY_PREFIX) {
            return Err(FunctionAuthProblem::WrongKey);
        }
    }
    if !verify_jwt {
        return Ok(None);
    }
    let token = match (authorization, bearer) {
        (None, _) if is_key => return Ok(None),
        // A token in the place of a key.
        (None, _) => key.ok_or(FunctionAuthProblem::NoHeader)?,
        (Some(_), None) => return Err(FunctionAuthProblem::Token(TokenProblem::Format)),
        (Some(_), Some(token)) if keys.contains(token) => return Ok(None),
        (Some(_), Some(token)) => token,
    };
    keys.check_token(token, now)
        .map_err(FunctionAuthProblem::Token)?;
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_judged_by_the_published_table() {
        let keys = AcceptedKeys::for_tests(&[("sb_publishable_p", "anon")]);
        let of = |verify_jwt: bool, sent: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, value.parse().unwrap());
            }
            let outcome = authorize(&headers, &keys, verify_jwt, 0);
            outcome.map(|_| ()).map_err(FunctionAuthProblem::code)
        };
        let (key, wrong) = (("apikey", "sb_publishable_p"), ("apikey", "sb_secret_x"));
        let token = ("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.eA");
        for (sent, expected, open) in [
            (&[][..], Err("UNAUTHORIZED_NO_AUTH_HEADER"), Ok(())),
            (&[key], Ok(()), Ok(())),
            (
                &[("authorization", "Bearer sb_publishable_p")],
                Ok(()),
                Ok(()),
            ),
            (
                &[wrong],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
            (
                &[key, ("authorization", "Bearer sb_secret_x")],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
            (
                &[("authorization", "Basic x")],
                Err("UNAUTHORIZED_INVALID_JWT_FORMAT"),
                Ok(()),
            ),
            (
                &[("authorization", "Bearer x")],
                Err("UNAUTHORIZED_INVALID_JWT_FORMAT"),
                Ok(()),
            ),
            (&[key, token], Err("UNAUTHORIZED_LEGACY_JWT"), Ok(())),
            (
                &[key, key],
                Err("UNAUTHORIZED_INVALID_API_KEY"),
                Err("UNAUTHORIZED_INVALID_API_KEY"),
            ),
        ] {
            assert_eq!(of(true, sent), expected, "{sent:?}");
            assert_eq!(of(false, sent), open, "{sent:?}");
        }
    }
}
