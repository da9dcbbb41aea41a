//! Forms: only those that a page of ours made are read.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{HeaderMap, HeaderName, Uri, header};
use serde::de::DeserializeOwned;

use crate::{
    base::error::{Denial, Error},
    platform::http::{Call, Input, null_bytes, openapi::OperationDoc},
    web::cookie,
};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The hidden field of every form of somebody who is signed in. `templates/layout.html` writes it.
const TOKEN: &str = "form_token";

/// A form of the session that sends it.
pub struct Form<T>(pub T);

/// A form of somebody who need not be signed in: there is no session to act for.
pub struct OpenForm<T>(pub T);

impl<T: DeserializeOwned + Send> Input for Form<T> {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        let OpenForm(fields) = OpenForm::<Vec<(String, String)>>::take(call).await?;
        let secret = cookie::secret(call.headers(), call.peer())
            .ok_or(Error::Forbidden(Denial::ForeignForm))?;
        let (ours, wanted) = (
            fields.iter().find(|(name, _)| name == TOKEN),
            secret.form_token(),
        );
        // All of it is compared, so that the time it takes tells nothing.
        let fits = ours.is_some_and(|(_, sent)| {
            verify_slices_are_equal(sent.as_bytes(), wanted.as_bytes()).is_ok()
        });
        if !fits {
            return Err(Error::Forbidden(Denial::ForeignForm));
        }
        read(&call.body().await?).map(Self)
    }
}

impl<T: DeserializeOwned + Send> Input for OpenForm<T> {
    fn describe(_: &mut OperationDoc) {}

    async fn take(call: &mut Call<'_>) -> Result<Self, Error> {
        if !from_here(call.headers(), call.uri()) {
            return Err(Error::Forbidden(Denial::ForeignForm));
        }
        read(&call.body().await?).map(Self)
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    null_bytes::check_form(body)?;
    // What is wrong is not repeated: it may be a password.
    serde_urlencoded::from_bytes(body).map_err(|_| Error::invalid("form", "a field is missing"))
}

/// Whether the browser says that a page of this server sent the request. One of the two headers is always there, since 2020.
fn from_here(headers: &HeaderMap, uri: &Uri) -> bool {
    let text = |name: HeaderName| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let host = uri
        .authority()
        .map(http::uri::Authority::as_str)
        .or_else(|| text(header::HOST));
    let (site, origin) = (text(FETCH_SITE), text(header::ORIGIN));
    let same = origin.is_none_or(|origin| {
        let named = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"));
        named.is_some() && named == host
    });
    (site.is_some() || origin.is_some()) && site.is_none_or(|site| site == "same-origin") && same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_may_send_forms() {
        let here = |site: Option<&str>, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "gantry.example:8443".parse().unwrap());
            for (name, value) in [(FETCH_SITE, site), (header::ORIGIN, origin)] {
                headers.extend(value.map(|value| (name, value.parse().unwrap())));
            }
            from_here(&headers, &Uri::from_static("/sign-in"))
        };
        let ours = Some("https://gantry.example:8443");
        assert!(
            here(Some("same-origin"), ours) && here(None, ours) && here(Some("same-origin"), None)
        );
        assert!(!here(None, None), "nobody says where it is from");
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!here(Some(site), ours), "{site}");
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
                !here(None, Some(origin)) && !here(Some("same-origin"), Some(origin)),
                "{origin}"
            );
        }
    }
}
