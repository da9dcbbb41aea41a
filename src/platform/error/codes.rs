//! The table of error codes.

/// Stable code of an error: metric label, and row of `docs/reference/errors.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    /// Snake-case name. Responses of v2 have it as `error.code`.
    pub name: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Description of the situation.
    pub when: &'static str,
    /// Advice for the user.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($ident:ident = $name:literal, $status:literal, $when:literal, $remedy:literal;)*) => {
        $(pub(super) const $ident: ErrorCode = ErrorCode { name: $name, status: $status, when: $when, remedy: $remedy };)*
        /// All codes, in the order of `docs/reference/errors.md`.
        pub const CODES: &[ErrorCode] = &[$($ident),*];
    };
}

codes! {
    VALIDATION_FAILED = "validation_failed", 400, "A field, parameter or header is not what the operation accepts.", "Correct the field the message names.";
    BAD_REQUEST = "bad_request", 400, "The subject's state forbids the operation.", "Read the message; wait or change the state first.";
    SQL_FAILED = "sql_failed", 400, "PostgreSQL refused the statement.", "Read SQLSTATE, detail and line in the message; nothing was applied.";
    OAUTH_REFUSED = "oauth_refused", 400, "A request of the OAuth protocol cannot be answered; `error` names the reason as its specifications do.", "Read `error_description`; ask the user again if it is `invalid_grant`.";
    UNAUTHORIZED = "unauthorized", 401, "No token, or one that is malformed, unknown, expired or revoked.", "Send `Authorization: Bearer <token>` with a live token.";
    INVALID_CLIENT = "invalid_client", 401, "An application did not prove which it is.", "Send the client id with a live secret, by HTTP Basic or in the body.";
    SMTP_REQUIRED = "smtp_required", 401, "A setting of emails needs an own mail server.", "Set the fields that the message names in the same request.";
    FORBIDDEN = "forbidden", 403, "The role, or the token's permissions, do not include what the operation needs.", "Ask an owner for the role, or use a token with the permissions named.";
    APPROVAL_REQUIRED = "approval_required", 403, "The project is protected, and the request is destructive or cannot be judged.", "Let another member approve it on the page that the message names, then send it again.";
    INSECURE_TRANSPORT = "insecure_transport", 403, "The request came over plain HTTP from another machine.", "Use https.";
    ENDPOINT_DISABLED = "endpoint_disabled", 400, "A disabled webhook endpoint gets no tests and no retries.", "Enable the endpoint first.";
    EVENT_TYPE_NOT_SUBSCRIBED = "endpoint_event_type_not_subscribed", 400, "The webhook endpoint does not receive events of the type of a test.", "Test a type of its `event_types`, or add the type.";
    ENDPOINT_URL_UNRESOLVABLE = "endpoint_url_unresolvable", 400, "The URL of a webhook endpoint has an IP address, or a name without a public address.", "Use a domain name that resolves to a public address; the operator can permit others with `--outbound-networks`.";
    NOTEBOOK_CELL_DUPLICATE = "notebook_cell_duplicate", 400, "Two cells of a notebook have one id.", "Leave the id out of the cell that is new.";
    NOTEBOOK_CELL_UNKNOWN = "notebook_cell_unknown", 400, "A cell has an id that no cell of the notebook has.", "Leave the id out for a new cell, or get the notebook and send the ids of its cells.";
    NOTEBOOK_SORT_INVALID = "notebook_sort_invalid", 400, "Notebooks cannot be sorted in this order.", "Use `name`, `-name`, `inserted_at` or `-inserted_at`.";
    PAGINATION_CURSOR_INVALID = "pagination_cursor_invalid", 400, "A parameter is not a cursor of this list.", "Follow `links.next` or `links.prev` of a page in the same order, or start without a cursor.";
    NOT_FOUND = "not_found", 404, "Nothing there, or nothing the caller may see.", "Check path, method and identifier.";
    ENDPOINT_NOT_FOUND = "endpoint_not_found", 404, "The organization or project has no webhook endpoint of this id.", "List the endpoints; those of projects are not listed for their organization.";
    DELIVERY_NOT_FOUND = "delivery_not_found", 404, "The organization or project has no webhook delivery of this id, or it is older than 14 days.", "List the deliveries of the endpoint.";
    NOTEBOOK_NOT_FOUND = "notebook_not_found", 404, "The project has no notebook of this id.", "List the notebooks of the project.";
    CONFLICT = "conflict", 409, "The same identity exists with other content.", "Use another key, or send the first content again.";
    GONE = "gone", 410, "Events after the cursor are not kept any more.", "Read the present state, and continue with the cursor that the message names.";
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused", 409, "The `Idempotency-Key` was sent with another request in the last 24 hours.", "Send a new key, or the first request unchanged.";
    IDEMPOTENCY_KEY_IN_USE = "idempotency_key_in_use", 409, "The first request with this `Idempotency-Key` may still be running.", "Wait the seconds of `Retry-After` and send it again.";
    IDEMPOTENCY_OUTCOME_UNKNOWN = "idempotency_outcome_unknown", 409, "The server stopped during the first request with this `Idempotency-Key`.", "Read the state that the request changes; send a new key if it is still to be done.";
    IDEMPOTENCY_ANSWER_NOT_KEPT = "idempotency_answer_not_kept", 409, "The first request with this `Idempotency-Key` is done, but its answer was too large or was lost.", "Read the current state; a new key would do it again.";
    REQUEST_TOO_LARGE = "request_too_large", 413, "The body is over the operation's bound.", "Send less at once.";
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "The body's `Content-Type` is not one that the operation reads.", "Send `Content-Type: application/json`, in UTF-8.";
    UNKNOWN_CLIENT = "unknown_client", 422, "No application has this client id, or none is named.", "Register the application, or correct `client_id`.";
    UNPROCESSABLE = "unprocessable", 422, "The operation does not apply to this kind of subject.", "Read the message.";
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded", 429, "A quota is used up.", "Wait the seconds of `Retry-After`.";
    INTERNAL_SERVER_ERROR = "internal_server_error", 500, "A fault of the server.", "Report the `errorEventId`; the log has the cause.";
    NOT_IMPLEMENTED = "not_implemented", 501, "A published operation that Gantry does not have.", "Read the reason in the message, and use what it names instead; `GET /v1/compatibility` lists all reasons. `Retry-After` is a day, so that clients do not retry.";
    NOT_CONFIGURED = "not_configured", 503, "The operation needs an option that the operator of the server did not set.", "Tell the operator; the message names the option.";
    UNAVAILABLE = "unavailable", 503, "The server is short of something for now.", "Wait the seconds of `Retry-After`.";
    REQUEST_TIMEOUT = "request_timeout", 504, "The operation took longer than its bound.", "Try again, or ask for less.";
    HOSTNAME_CONFIGURED = "hostname_configured", 544, "A project that has a custom hostname asked for another.", "Delete the first one.";
    DATABASE_UNREACHABLE = "database_unreachable", 544, "The project's database did not answer.", "Look at the project's health; start it if it is paused.";
}
