//! Error pages.

use askama::Template;
use http::{HeaderValue, Method, StatusCode, header};

use crate::{
    platform::{
        error::{Denial, Error},
        http::{Output, Response, client_kind::RejectedRequest, output::empty, respond},
    },
    web::{redirect, response::PageResponse, visitor::Layout},
};

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    layout: Layout,
    status: u16,
    title: &'static str,
    text: String,
    /// Shown for server errors, so that the operator can find the log line.
    request_id: Option<&'a str>,
}

/// Returns the response for an error: a redirect to the sign-in page for a missing session and to
/// the page of a required approval, otherwise a page.
pub(super) fn error_response(error: &Error, refused: &RejectedRequest<'_>) -> Response {
    respond::log(error, refused);
    let answer = match error {
        Error::Unauthenticated(_) => PageResponse::redirect(&sign_in_path(refused)),
        Error::ApprovalRequired(approval) => {
            PageResponse::redirect(&format!("{}?done=asked", approval.page))
        }
        _ => render(error, refused),
    };
    // Rendering the error page failed: the response has no body.
    let Ok(answer) = answer else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let answer = match error {
        Error::Unavailable { retry, .. } => answer.with_header(
            header::RETRY_AFTER,
            HeaderValue::from(retry.as_secs().max(1)),
        ),
        _ => answer,
    };
    answer.respond()
}

/// Returns the sign-in path, with a redirect back if the request was a GET.
fn sign_in_path(refused: &RejectedRequest<'_>) -> String {
    let target = refused
        .uri
        .path_and_query()
        .filter(|_| refused.method == Method::GET);
    redirect::sign_in_path(target.map_or(redirect::HOME, http::uri::PathAndQuery::as_str))
}

fn render(error: &Error, refused: &RejectedRequest<'_>) -> Result<PageResponse, Error> {
    let status = respond::status(error);
    let (title, text) = title_and_text(error, status);
    let request_id = status.is_server_error().then_some(refused.request_id);
    let page = ErrorPage {
        layout: Layout::anonymous(),
        status: status.as_u16(),
        title,
        text,
        request_id,
    };
    Ok(PageResponse::page(&page)?.status(status))
}

fn title_and_text(error: &Error, status: StatusCode) -> (&'static str, String) {
    let (title, text) = match (error, status.as_u16()) {
        (Error::Forbidden(Denial::ForeignForm), _) => (
            "This form has expired",
            "Go back, reload the page and submit the form again. Nothing was changed.",
        ),
        (Error::Forbidden(Denial::Role), _) => (
            "Access denied",
            "Your role does not permit this. Ask an owner of the organization to change your role.",
        ),
        (Error::Forbidden(_), _) => return ("Access denied", error.message().into_owned()),
        (Error::NotFound | Error::UnknownRoute { .. }, _) => (
            "Page not found",
            "The page does not exist, or you do not have access to it.",
        ),
        (Error::LimitReached, _) => ("Too many requests", "Wait a minute, then reload the page."),
        (_, 500) => (
            "Something went wrong",
            "Try again. If the problem persists, send this request ID to your operator:",
        ),
        (_, 503) => (
            "Service unavailable",
            "The server is busy. Reload the page in a few seconds.",
        ),
        _ => return ("Request failed", error.message().into_owned()),
    };
    (title, text.to_owned())
}
