//! A test browser without JavaScript: stores cookies, submits forms with their anti-CSRF token, and
//! checks the security headers of every response.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use gantry::{
    api::{accounts, accounts::passwords},
    platform::http::Api,
};
use http_body_util::BodyExt;
use tower::ServiceExt;

use crate::support::{Actor, Node, TestApp};

pub(crate) const PASSWORD: &str = "violin fjord lantern 9";
const HOST: &str = "gantry.test";

/// A browser with its cookies.
pub(crate) struct Browser {
    api: Api,
    pub(crate) cookies: BTreeMap<String, String>,
    /// The header that states the origin of a form.
    pub(crate) origin: Option<(&'static str, String)>,
}

/// The response to a request: a page or a redirect.
pub(crate) struct BrowserResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) html: String,
}

impl BrowserResponse {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?} {}", self.headers, self.html);
        self
    }

    #[track_caller]
    pub(crate) fn leads_to(self, path: &str) -> Self {
        let seen = self.expect(303);
        assert_eq!(seen.header("location"), Some(path));
        seen
    }

    #[track_caller]
    pub(crate) fn hides(self, text: &str) -> Self {
        assert!(!self.html.contains(text), "{text:?} in {}", self.html);
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.html.contains(text), "no {text:?} in {}", self.html);
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the anti-CSRF token of the page.
    pub(crate) fn form_token(&self) -> String {
        let (_, rest) = self
            .html
            .split_once("name=\"form_token\" value=\"")
            .expect("a form");
        rest.split('"').next().unwrap().to_owned()
    }
}

impl Browser {
    pub(crate) fn new(node: &Node) -> Self {
        let origin = Some(("origin", format!("http://{HOST}")));
        Self {
            api: node.app.api(),
            cookies: BTreeMap::new(),
            origin,
        }
    }

    pub(crate) fn from(mut self, address: &str) -> Self {
        self.api = self.api.for_client(address.parse().unwrap());
        self
    }

    /// Returns a browser with the same cookies at another node.
    pub(crate) fn at(&self, node: &Node) -> Self {
        Self {
            api: node.app.api(),
            cookies: self.cookies.clone(),
            origin: self.origin.clone(),
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> BrowserResponse {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> BrowserResponse {
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let mut request =
            Request::post(path).header("content-type", "application/x-www-form-urlencoded");
        if let Some((name, value)) = &self.origin {
            request = request.header(*name, value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Submits a form of the page at `at`.
    pub(crate) async fn submit(
        &mut self,
        at: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> BrowserResponse {
        let token = self.get(at).await.expect(200).form_token();
        let fields: Vec<_> = [("form_token", token.as_str())]
            .into_iter()
            .chain(fields.iter().copied())
            .collect();
        self.post(path, &fields).await
    }

    pub(crate) async fn sign_in(&mut self, email: &str, password: &str) -> BrowserResponse {
        self.post(
            "/sign-in",
            &[
                ("email", email),
                ("password", password),
                ("next", "/projects"),
            ],
        )
        .await
    }

    pub(crate) async fn send(&mut self, mut request: Request<Body>) -> BrowserResponse {
        let headers = request.headers_mut();
        headers.insert("host", HOST.parse().unwrap());
        headers.insert("sec-fetch-mode", "navigate".parse().unwrap());
        headers.insert(
            "user-agent",
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
                .parse()
                .unwrap(),
        );
        for (name, value) in &self.cookies {
            headers.append("cookie", format!("{name}={value}").parse().unwrap());
        }
        let (parts, body) = self
            .api
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .into_parts();
        let html = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let seen = BrowserResponse {
            status: parts.status,
            headers: parts.headers,
            html,
        };
        for set in seen.headers.get_all("set-cookie") {
            let (name, value) = set
                .to_str()
                .unwrap()
                .split(';')
                .next()
                .unwrap()
                .split_once('=')
                .unwrap();
            match value {
                "" => self.cookies.remove(name),
                value => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        check_headers(&seen);
        seen
    }
}

/// The OAuth application that tests redirect to.
const APPLICATION: &str = "https://app.example";

fn redirects_to_application(seen: &BrowserResponse) -> bool {
    seen.header("location")
        .is_some_and(|to| to.starts_with(APPLICATION))
}

/// Checks the headers of every page, form and redirect.
fn check_headers(seen: &BrowserResponse) {
    if seen
        .header("content-type")
        .is_some_and(|kind| !kind.starts_with("text/html"))
    {
        return;
    }
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                  form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    // The consent form may redirect to the application, without a `Referer`.
    let actual = seen
        .header("content-security-policy")
        .unwrap()
        .replace(&format!("'self' {APPLICATION};"), "'self';");
    let is_external = redirects_to_application(seen);
    assert_eq!(actual, policy);
    for (name, value) in [
        ("x-frame-options", "DENY"),
        (
            "referrer-policy",
            if is_external {
                "no-referrer"
            } else {
                "same-origin"
            },
        ),
        ("x-content-type-options", "nosniff"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(
            seen.header(name),
            Some(value),
            "{name} of {} {}",
            seen.status,
            seen.html
        );
    }
    assert!(seen.headers.contains_key("permissions-policy"));
    for inline in [
        "<style",
        " style=",
        "<script>",
        "javascript:",
        " onclick=",
        " hx-on",
    ] {
        assert!(!seen.html.contains(inline), "{inline} in {}", seen.html);
    }
}

pub(crate) fn email(name: &str) -> String {
    format!("{name}@example.com")
}

/// Sets the password of an actor.
pub(crate) async fn give_password(app: &TestApp, actor: &Actor) {
    let owner = accounts::by_id(&app.app.db, actor.user).await.unwrap();
    passwords::set(
        &app.app.db,
        &app.app.entropy,
        &owner,
        PASSWORD.into(),
        app.clock.now(),
    )
    .await
    .unwrap();
}

/// Returns the signed-in browser of the owner.
pub(crate) async fn olga(app: &TestApp) -> Browser {
    signed_in(app, &app.owner).await
}

/// Returns the signed-in browser of an actor.
pub(crate) async fn signed_in(app: &TestApp, actor: &Actor) -> Browser {
    give_password(app, actor).await;
    let account = accounts::by_id(&app.app.db, actor.user).await.unwrap();
    let mut browser = Browser::new(&app.node);
    browser
        .sign_in(&account.email, PASSWORD)
        .await
        .leads_to("/projects");
    browser
}
