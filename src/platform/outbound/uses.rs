//! The uses of the outgoing client, each with its bounds. Metrics and documentation have these
//! names.

use std::time::Duration;

/// A use of the client.
#[derive(Debug)]
pub struct OutboundUse {
    /// Value of the label `use` of the metrics.
    pub name: &'static str,
    /// Longest time from resolving the name to the last byte of the response.
    pub timeout: Duration,
    /// The body of the response.
    pub body: BodyUse,
    /// Redirects that are followed. The policy applies to each address.
    pub redirects_max: usize,
    /// Whether HTTP/2 is used if the receiver offers it over TLS.
    pub http2: bool,
}

/// The use of a body, with its largest size in bytes. Bodies are not decompressed, so it is also
/// the largest memory.
#[derive(Debug, Clone, Copy)]
pub enum BodyUse {
    /// The body is returned. A longer one is an error.
    Returned(usize),
    /// The body is returned, or left out if it is longer.
    Optional(usize),
    /// The body is dropped. It is read up to this size, so that the connection can be used again.
    Dropped(usize),
}

/// Bounds of a delivery of lines.
const DELIVERY: OutboundUse = OutboundUse {
    name: "",
    timeout: Duration::from_secs(15),
    body: BodyUse::Dropped(64 << 10),
    redirects_max: 0,
    http2: false,
};

/// Lines of a project for the target of a log drain.
pub static LOG_DRAIN: OutboundUse = OutboundUse {
    name: "log_drain",
    ..DELIVERY
};

/// Lines of a project for a webhook with HTTP/2.
pub static HTTP2_LOG_DRAIN: OutboundUse = OutboundUse {
    name: "http2_log_drain",
    http2: true,
    ..DELIVERY
};

/// A call that a database makes with `pg_net`. The call may have a shorter timeout.
pub static DATABASE_CALL: OutboundUse = OutboundUse {
    name: "database_call",
    timeout: Duration::from_mins(5),
    body: BodyUse::Returned(1 << 20),
    redirects_max: 10,
    http2: false,
};

/// A notification about a branch.
pub static BRANCH_NOTIFICATION: OutboundUse = OutboundUse {
    name: "branch_notification",
    timeout: Duration::from_secs(10),
    body: BodyUse::Dropped(64 << 10),
    redirects_max: 0,
    http2: false,
};

/// An event for an endpoint of platform webhooks.
pub static PLATFORM_WEBHOOK: OutboundUse = OutboundUse {
    name: "platform_webhook",
    timeout: Duration::from_secs(20),
    body: BodyUse::Optional(64 << 10),
    redirects_max: 0,
    http2: false,
};

/// Public keys, or the metadata, of a sign-in service that a project accepts tokens of, or of an
/// issuer that an organization trusts.
pub static SIGNING_KEYS: OutboundUse = OutboundUse {
    name: "signing_keys",
    timeout: Duration::from_secs(8),
    body: BodyUse::Returned(64 << 10),
    redirects_max: 0,
    http2: false,
};

/// The metadata of a SAML identity provider.
pub static SAML_METADATA: OutboundUse = OutboundUse {
    name: "saml_metadata",
    timeout: Duration::from_secs(8),
    body: BodyUse::Returned(256 << 10),
    redirects_max: 0,
    http2: false,
};

/// A request to the identity provider of the operator, for a sign-in.
pub static IDENTITY_PROVIDER: OutboundUse = OutboundUse {
    name: "identity_provider",
    timeout: Duration::from_secs(10),
    body: BodyUse::Returned(1 << 20),
    redirects_max: 0,
    http2: false,
};

/// All uses.
pub static ALL: &[&OutboundUse] = &[
    &LOG_DRAIN,
    &HTTP2_LOG_DRAIN,
    &DATABASE_CALL,
    &BRANCH_NOTIFICATION,
    &PLATFORM_WEBHOOK,
    &SIGNING_KEYS,
    &SAML_METADATA,
    &IDENTITY_PROVIDER,
];
