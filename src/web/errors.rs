//! Errors as pages: what happened, and what to do next.

use askama::Template;
use http::{HeaderValue, Method, StatusCode, header};

use crate::{
    base::error::{Denial, Error},
    platform::http::{Output, Response, client_kind::RejectedRequest, output::empty, respond},
    web::{Answer, Frame, next},
};

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    frame: Frame,
    status: u16,
    title: &'static str,
    text: String,
    /// For who asks the operator.
    request_id: Option<&'a str>,
}

/// The answer to an error of a page.
pub(super) fn refuse(error: &Error, refused: &RejectedRequest<'_>) -> Response {
    respond::log(error, refused);
    let answer = match error {
        Error::Unauthenticated(_) => Answer::to(&sign_in(refused)),
        _ => shown(error, refused),
    };
    // A page that cannot be written is not worth another.
    let Ok(answer) = answer else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let answer = match error {
        Error::Unavailable { retry, .. } => answer.with(
            header::RETRY_AFTER,
            HeaderValue::from(retry.as_secs().max(1)),
        ),
        _ => answer,
    };
    answer.respond()
}

/// Where to sign in, and to come back from if nothing is lost by it.
fn sign_in(refused: &RejectedRequest<'_>) -> String {
    let back = refused
        .uri
        .path_and_query()
        .filter(|_| refused.method == Method::GET);
    next::sign_in(back.map_or(next::HOME, http::uri::PathAndQuery::as_str))
}

fn shown(error: &Error, refused: &RejectedRequest<'_>) -> Result<Answer, Error> {
    let status = respond::status(error);
    let (title, text) = sentences(error, status);
    let request_id = status.is_server_error().then_some(refused.request_id);
    let page = ErrorPage {
        frame: Frame::anonymous(),
        status: status.as_u16(),
        title,
        text,
        request_id,
    };
    Ok(Answer::page(&page)?.status(status))
}

fn sentences(error: &Error, status: StatusCode) -> (&'static str, String) {
    let (title, text) = match (error, status.as_u16()) {
        (Error::Forbidden(Denial::ForeignForm), _) => (
            "This form is out of date",
            "Go back, load the page again, and send the form from there. Nothing was changed.",
        ),
        (Error::Forbidden(Denial::Role), _) => (
            "You may not do this",
            "Your role does not include it. An owner of the organization can give you another.",
        ),
        (Error::Forbidden(_), _) => return ("You may not do this", error.message().into_owned()),
        (Error::NotFound | Error::UnknownRoute { .. }, _) => (
            "There is nothing here",
            "The address is wrong, or what it named is gone, or it is not yours to see.",
        ),
        (Error::LimitReached, _) => (
            "Too many requests",
            "You were faster than this server allows. Wait a minute, and load the page again.",
        ),
        (_, 500) => (
            "Something went wrong",
            "The fault is ours, and it was written down. Try again; if it stays, tell your operator this number:",
        ),
        (_, 503) => (
            "Busy for a moment",
            "The server is short of something. Load the page again in a few seconds.",
        ),
        _ => return ("That did not work", error.message().into_owned()),
    };
    (title, text.to_owned())
}
