//! Types and spelling of known attributes. `BigQuery` SQL has typed attributes; the store has text.

use crate::layout::{self, Kind as Column};

/// The `BigQuery` type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text, the default for unknown attributes.
    Text,
    /// A 64-bit integer.
    Integer,
    /// A 64-bit float.
    Float,
    /// A boolean.
    Boolean,
}

/// Typed attributes without an integer column in [`layout::COLUMNS`].
const TYPED: &[(&str, Kind)] = &[
    ("request.cf.asn", Kind::Integer),
    ("request.cf.clientTcpRtt", Kind::Integer),
    ("request.cf.clientTrustScore", Kind::Integer),
    ("request.cf.edgeRequestKeepAliveStatus", Kind::Integer),
    ("request.cf.botManagement.corporateProxy", Kind::Boolean),
    ("request.cf.botManagement.score", Kind::Integer),
    ("request.cf.botManagement.staticResource", Kind::Boolean),
    ("request.cf.botManagement.verifiedBot", Kind::Boolean),
    ("parsed.query_id", Kind::Integer),
    ("parsed.session_line_num", Kind::Integer),
    ("parsed.transaction_id", Kind::Integer),
    ("auth_event.actor_via_sso", Kind::Boolean),
    ("auth_audit_event.actor_via_sso", Kind::Boolean),
    ("context.pid", Kind::Integer),
    ("req.remotePort", Kind::Integer),
    ("res.headers.content_length", Kind::Integer),
    ("responseTime", Kind::Float),
    ("measurements.connected", Kind::Integer),
    ("measurements.connected_cluster", Kind::Integer),
    ("measurements.limit", Kind::Integer),
    ("measurements.sum", Kind::Integer),
];

/// Known text attributes without a column. Knowing them lets a query omit the record alias.
const TEXTS: &[&str] = &[
    "load_balancer_redirect_identifier",
    "request.protocol",
    "request.headers.accept",
    "request.headers.cf_ipcountry",
    "request.headers.cf_ray",
    "request.headers.host",
    "request.headers.x_forwarded_proto",
    "request.headers.content_length",
    "request.headers.x_forwarded_user_agent",
    "request.headers.range",
    "request.headers.prefer",
    "request.cf.asOrganization",
    "request.cf.city",
    "request.cf.colo",
    "request.cf.continent",
    "request.cf.httpProtocol",
    "request.cf.latitude",
    "request.cf.longitude",
    "request.cf.metroCode",
    "request.cf.postalCode",
    "request.cf.region",
    "request.cf.timezone",
    "request.cf.tlsCipher",
    "request.cf.tlsVersion",
    "request.cf.botManagement.detectionIds",
    "request.cf.botManagement.ja3Hash",
    "response.headers.cf_ray",
    "response.headers.content_location",
    "response.headers.content_range",
    "response.headers.content_length",
    "response.headers.date",
    "response.headers.server",
    "response.headers.vary",
    "response.headers.sb_gateway_version",
    "response.headers.sb_gateway_mode",
    "response.headers.sb_error_code",
    "response.headers.x_sb_error_code",
    "response.headers.transfer_encoding",
    "response.headers.x_kong_proxy_latency",
    "response.headers.x_kong_upstream_latency",
    "parsed.connection_from",
    "parsed.session_start_time",
    "parsed.timestamp",
    "parsed.virtual_transaction_id",
    "referer",
    "remote_addr",
    "auth_event.action",
    "auth_event.actor_id",
    "auth_event.actor_username",
    "auth_event.log_type",
    "auth_event.traits.provider",
    "auth_event.traits.user_email",
    "auth_event.traits.user_id",
    "auth_event.traits.user_phone",
    "auth_audit_event.action",
    "auth_audit_event.actor_id",
    "auth_audit_event.actor_name",
    "auth_audit_event.actor_username",
    "auth_audit_event.audit_log_id",
    "auth_audit_event.created_at",
    "auth_audit_event.log_type",
    "auth_audit_event.request_id",
    "auth_audit_event.user_agent",
    "project_ref",
    "region",
    "reqId",
    "rawError",
    "context.host",
    "req.hostname",
    "req.remoteAddress",
    "res.headers.content_type",
    "db_name",
    "user",
    "type",
    "instance_id",
    "file",
];

/// Returns the type of a key. Equal keys of different sources have the same type.
pub fn kind(key: &str) -> Kind {
    for (typed, kind) in TYPED {
        if *typed == key {
            return *kind;
        }
    }
    match layout::column(key) {
        Some((_, Column::Integer)) => Kind::Integer,
        _ => Kind::Text,
    }
}

/// Whether numbers of a key can have fractions, which the integer column cannot store.
pub fn may_be_fractional(key: &str) -> bool {
    matches!(key, "responseTime" | "duration" | "execution_time_ms")
}

/// Iterates over all known keys.
fn keys() -> impl Iterator<Item = &'static str> {
    let columns = layout::COLUMNS.iter().map(|(key, _)| *key);
    let typed = TYPED.iter().map(|(key, _)| *key);
    columns.chain(typed).chain(TEXTS.iter().copied())
}

/// Returns the canonical spelling of a known key. Exact matches win, because `BigQuery` field names
/// are case-insensitive.
pub fn canonical(key: &str) -> Option<&'static str> {
    keys()
        .find(|known| *known == key)
        .or_else(|| keys().find(|known| known.eq_ignore_ascii_case(key)))
}

/// Whether a key is a record with known fields.
pub fn is_parent(key: &str) -> bool {
    for known in keys() {
        if let Some(rest) = known.strip_prefix(key)
            && rest.starts_with('.')
        {
            return true;
        }
    }
    false
}
