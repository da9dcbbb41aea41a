//! Error responses of the proxy itself: JSON with a `message`, like those of the API.

use gantry_node::kits::Service;
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    header::{self, HeaderValue},
};

use super::{
    body::{DownloadBody, full},
    capacity::CapacityExceeded,
    function_auth::FunctionAuthProblem,
};
use crate::proxy::unavailable::{Unavailable, UnavailableReason};

/// The reason for which a request is not forwarded, or failed at the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRejection {
    /// Not valid HTTP, or ambiguous.
    Malformed,
    /// The host differs from the server name of the TLS connection.
    Misdirected,
    /// No project has this host name.
    NoProject,
    /// The project is paused.
    Paused,
    /// No service has this path prefix.
    NoService,
    /// The service has no configured upstream.
    NotConfigured(Service),
    /// Gantry runs the service, and has no running instance of it.
    Unavailable(Service, Unavailable),
    /// The project has no function of this name.
    NoFunction,
    /// The request to a function is not authorized.
    FunctionAuth(FunctionAuthProblem),
    /// The process of the function ended before its answer.
    FunctionEnded,
    /// The process of the function was ended for its use of resources.
    FunctionExceeded,
    /// The request has no API key.
    NoKey,
    /// The API key is invalid.
    WrongKey,
    /// API keys cannot be checked because the control database is unreachable.
    KeysUnknown,
    /// The method is reserved for forward proxies.
    Method,
    /// The body exceeds the service's limit.
    TooLarge,
    /// The project's limit of concurrent requests or WebSockets is reached.
    Busy,
    /// The client's share of the project's limit is reached.
    TooMany,
    /// The body stalled.
    Stalled,
    /// The transfer coding is not supported.
    TransferCoding,
    /// The upstream cannot be reached or closed the connection.
    Unreachable(Service),
    /// The upstream did not respond in time.
    Late(Service),
}

impl RequestRejection {
    fn status(self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NoProject | Self::NoService | Self::NoFunction => StatusCode::NOT_FOUND,
            Self::FunctionEnded => StatusCode::INTERNAL_SERVER_ERROR,
            Self::FunctionExceeded => {
                StatusCode::from_u16(546).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Self::FunctionAuth(_) | Self::NoKey | Self::WrongKey => StatusCode::UNAUTHORIZED,
            Self::Unavailable(_, unavailable)
                if unavailable.reason == UnavailableReason::CallerLimited =>
            {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Paused
            | Self::NotConfigured(_)
            | Self::Unavailable(..)
            | Self::KeysUnknown
            | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Stalled => StatusCode::REQUEST_TIMEOUT,
            Self::TransferCoding => StatusCode::NOT_IMPLEMENTED,
            Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn message(self) -> String {
        match self {
            Self::Malformed => "The request is malformed".into(),
            Self::Misdirected => "The connection was made for another host; make a new one".into(),
            Self::NoProject => "No project is reached under this name".into(),
            Self::Paused => "The project is paused; restore it to use its services".into(),
            Self::NoService => {
                let prefixes = Service::ALL.map(Service::prefix).join(", ");
                format!("No service has this path; those of a project are under {prefixes}")
            }
            Self::NotConfigured(service) => format!(
                "The {service} service of this project is not configured. The operator says where it answers with \
                 --upstream {service}=http://HOST:PORT, or for this project alone with `gantry upstream set`."
            ),
            Self::Unavailable(_, unavailable)
                if unavailable.reason == UnavailableReason::CallerLimited =>
            {
                unavailable.reason.message().into()
            }
            Self::Unavailable(service, unavailable) => {
                format!("The {service} service is not available: {}", unavailable.reason.message())
            }
            Self::NoFunction => "Requested function was not found".into(),
            Self::FunctionAuth(problem) => problem.message(),
            Self::FunctionEnded => "Function exited due to an error (please check logs)".into(),
            Self::FunctionExceeded => {
                "Function failed due to not having enough compute resources (please check logs)".into()
            }
            Self::NoKey => "No API key found in request".into(),
            Self::WrongKey => "Invalid API key".into(),
            Self::KeysUnknown => "API keys cannot be checked at the moment; try again shortly".into(),
            Self::Method => "The method is not allowed".into(),
            Self::TooLarge => "request entity too large".into(),
            Self::Busy => "The project has too many requests at once; try again shortly".into(),
            Self::TooMany => "Too many requests of this client are not finished; let some of them end, then try again".into(),
            Self::Stalled => "The body of the request did not arrive in time; send it again".into(),
            Self::TransferCoding => "Only `Transfer-Encoding: chunked` is supported; send the body without another coding".into(),
            Self::Unreachable(service) => format!("The {service} service does not answer"),
            Self::Late(service @ Service::Functions) => {
                let secs = service.response_timeout().as_secs();
                format!("Request idle timeout limit ({secs}s) reached")
            }
            Self::Late(service) => format!("The {service} service did not answer in time"),
        }
    }

    /// Returns whether the connection must be closed after this response.
    fn ends_connection(self) -> bool {
        matches!(
            self,
            Self::Malformed
                | Self::Misdirected
                | Self::TooLarge
                | Self::Stalled
                | Self::TransferCoding
        )
    }

    /// Returns the code of an error of the functions service.
    fn function_code(self) -> Option<&'static str> {
        match self {
            Self::NoFunction => Some("NOT_FOUND"),
            Self::FunctionAuth(problem) => Some(problem.code()),
            Self::FunctionEnded => Some("WORKER_ERROR"),
            Self::FunctionExceeded => Some("WORKER_RESOURCE_LIMIT"),
            Self::Unavailable(Service::Functions, unavailable)
                if unavailable.reason == UnavailableReason::CallerLimited =>
            {
                Some("WORKER_ERROR_LIMIT")
            }
            Self::Unavailable(Service::Functions, _) => Some("BOOT_ERROR"),
            Self::Late(Service::Functions) => Some("IDLE_TIMEOUT"),
            _ => None,
        }
    }

    pub(super) fn respond(self, version: Version) -> Response<DownloadBody> {
        let mut response = match self {
            _ if self.function_code().is_some() => {
                let code = self.function_code().unwrap_or_default();
                let body = serde_json::json!({"code": code, "message": self.message()});
                let mut response = json(self.status(), &body);
                response
                    .headers_mut()
                    .insert("sb-error-code", HeaderValue::from_static(code));
                response
            }
            // The answer of PostgREST on the hosted platform while no schema is exposed.
            Self::Unavailable(Service::Rest, unavailable)
                if unavailable.reason == UnavailableReason::Off =>
            {
                json(
                    self.status(),
                    &serde_json::json!({
                        "code": "PGRST002",
                        "details": null,
                        "hint": null,
                        "message": self.message(),
                    }),
                )
            }
            _ => message(self.status(), &self.message()),
        };
        if self.ends_connection() && version < Version::HTTP_2 {
            close(response.headers_mut());
        }
        let retry_secs = match self {
            Self::Busy | Self::TooMany => Some(1),
            Self::Unavailable(_, unavailable) => Some(unavailable.retry_secs),
            _ => None,
        };
        if let Some(secs) = retry_secs {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}

impl From<CapacityExceeded> for RequestRejection {
    fn from(exceeded: CapacityExceeded) -> Self {
        match exceeded {
            CapacityExceeded::Project => Self::Busy,
            CapacityExceeded::Client => Self::TooMany,
            CapacityExceeded::Body => Self::Stalled,
        }
    }
}

/// Closes the connection after this response.
pub(super) fn close(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}

fn message(status: StatusCode, message: &str) -> Response<DownloadBody> {
    json(status, &serde_json::json!({ "message": message }))
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response<DownloadBody> {
    let mut response = Response::new(full(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_function_is_told_with_its_timeout() {
        let text = RequestRejection::Late(Service::Functions).message();
        assert_eq!(text, "Request idle timeout limit (150s) reached");
    }
}
