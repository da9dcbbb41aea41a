//! HTML forms. A form is accepted only from a page of this server and, if signed in, with the
//! anti-CSRF token of the session.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{HeaderMap, HeaderName, Uri, header};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    platform::{
        error::{Denial, Error},
        http::{Call, Input, null_bytes, operation_doc::OperationDoc},
    },
    web::cookie,
};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The hidden field with the anti-CSRF token, written by `templates/layout.html`.
const TOKEN: &str = "form_token";

/// A form of a signed-in user, with an anti-CSRF token.
pub struct SessionForm<T>(pub T);

/// A form that needs no session, such as the sign-in form.
pub struct OpenForm<T>(pub T);

/// A form without fields of its own.
#[derive(Deserialize)]
pub(super) struct NoFields {}

/// A form that names a row by its id.
#[derive(Deserialize)]
pub(super) struct RowId {
    pub(super) id: i64,
}

impl<T: DeserializeOwned + Send> Input for SessionForm<T> {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let OpenForm(fields) = OpenForm::<Vec<(String, String)>>::take(call).await?;
        let secret = cookie::secret(call.headers(), call.peer())
            .ok_or(Error::Forbidden(Denial::ForeignForm))?;
        let expected = secret.form_token();
        let sent = fields.iter().find(|(name, _)| name == TOKEN);
        let is_valid = sent.is_some_and(|(_, sent)| {
            verify_slices_are_equal(sent.as_bytes(), expected.as_bytes()).is_ok()
        });
        if !is_valid {
            return Err(Error::Forbidden(Denial::ForeignForm));
        }
        read(&call.body().await?).map(Self)
    }
}

impl<T: DeserializeOwned + Send> Input for OpenForm<T> {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        if !is_same_origin(call.headers(), call.uri()) {
            return Err(Error::Forbidden(Denial::ForeignForm));
        }
        read(&call.body().await?).map(Self)
    }
}

/// Returns the message of an operation that rejected a form, for the page that shows it again.
/// Other errors are returned.
pub(super) fn problem(error: Error) -> Result<String, Error> {
    match error {
        Error::Invalid { .. }
        | Error::Rejected(_)
        | Error::Conflict(_)
        | Error::Missing(_)
        | Error::SmtpRequired { .. }
        | Error::Unconfigured(_)
        | Error::Webhook(_)
        | Error::DatabaseUnreachable => Ok(error.message().into_owned()),
        other => Err(other),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    null_bytes::check_form(body)?;
    // The error does not quote the value: it may be a password.
    serde_urlencoded::from_bytes(body)
        .map_err(|_| Error::invalid("form", "missing or malformed field"))
}

/// Returns whether the browser states that a page of this server sent the request. Every browser
/// since 2020 sends `Sec-Fetch-Site` or `Origin` with a form.
fn is_same_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    let text = |name: HeaderName| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let host = uri
        .authority()
        .map(http::uri::Authority::as_str)
        .or_else(|| text(header::HOST));
    let site = text(FETCH_SITE);
    let origin = text(header::ORIGIN);
    let same_origin = origin.is_none_or(|origin| {
        let authority = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"));
        authority.is_some() && authority == host
    });
    (site.is_some() || origin.is_some())
        && site.is_none_or(|site| site == "same-origin")
        && same_origin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_same_origin_forms_are_accepted() {
        let accepts = |site: Option<&str>, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "gantry.example:8443".parse().unwrap());
            for (name, value) in [(FETCH_SITE, site), (header::ORIGIN, origin)] {
                headers.extend(value.map(|value| (name, value.parse().unwrap())));
            }
            is_same_origin(&headers, &Uri::from_static("/sign-in"))
        };
        let ours = Some("https://gantry.example:8443");
        assert!(
            accepts(Some("same-origin"), ours)
                && accepts(None, ours)
                && accepts(Some("same-origin"), None)
        );
        assert!(!accepts(None, None), "neither header is present");
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!accepts(Some(site), ours), "{site}");
        }
        for origin in [
            "null",
            "",
            "https://gantry.example",
            "https://evil.example",
            "https://gantry.example:8443.evil.example",
            "gantry.example:8443",
        ] {
            assert!(
                !accepts(None, Some(origin)) && !accepts(Some("same-origin"), Some(origin)),
                "{origin}"
            );
        }
    }
}
