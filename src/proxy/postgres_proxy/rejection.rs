//! Errors that the proxy sends to PostgreSQL clients.

use bytes::{BufMut, BytesMut};
use gantry_base::ids::ProjectRef;
use gantry_node::clusters::NO_LIBRARIES;

/// The reason for rejecting a connection before it reaches a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionRejection {
    /// Protocol violation.
    Malformed(&'static str),
    /// Unsupported protocol version.
    Protocol,
    /// The startup message names no role.
    NoUser,
    /// Physical replication.
    Replication,
    /// The startup message names no project.
    NoProject,
    /// The startup message names two projects.
    Conflict(ProjectRef, ProjectRef),
    /// The project does not exist or was removed.
    Unknown,
    /// The role is reserved.
    Reserved(String),
    /// The startup message names libraries to load.
    Libraries,
    /// The project requires TLS.
    TlsRequired,
    /// The project's network restrictions exclude the address.
    Restricted,
    /// The address is banned after too many wrong passwords.
    Banned,
    /// The project is paused.
    Paused,
    /// The project's server is not running.
    Away,
    /// The project's pooler is not available.
    PoolerAway(&'static str),
    /// The pooler does not accept the password of this role, or does not know the role.
    WrongPassword(String),
    /// The console of the pooler.
    Console,
    /// The control database, which holds the access rules, is unreachable.
    ControlAway,
    /// The project's server runs on another node.
    Elsewhere,
    /// The proxy's connection limit is reached.
    Full,
    /// The project's connection limit is reached.
    ProjectFull,
    /// The server does not authenticate clients by SCRAM-SHA-256.
    Unguarded,
    /// Timeout.
    Late,
    /// Shutdown.
    Stopping,
    /// Internal error, logged where it occurred.
    Fault,
}

impl ConnectionRejection {
    /// Returns the SQLSTATE, message and hint.
    fn text(&self) -> (&'static str, String, Option<&'static str>) {
        const NAME_IT: &str = "Log in as <role>.<ref>, give options=reference=<ref>, or connect with TLS to db.<ref>.<domain>.";
        let hint = match self {
            Self::NoProject | Self::Conflict(..) => Some(NAME_IT),
            Self::Unknown => Some("Check the project's ref: twenty lowercase letters."),
            Self::Reserved(_) => Some("Log in as postgres, or as a role of your own."),
            Self::Libraries => Some("Connect without this parameter."),
            Self::TlsRequired => Some("Connect with sslmode=require or better."),
            Self::Restricted => Some("Look at the project's network restrictions."),
            Self::Banned => Some("Wait, or lift the ban: DELETE /v1/projects/{ref}/network-bans."),
            Self::Paused => Some("Restore the project first: POST /v1/projects/{ref}/restore."),
            Self::Away => Some("Look at the project's health: GET /v1/projects/{ref}/health."),
            Self::PoolerAway(_) => Some("Try again shortly, or connect to the port for sessions."),
            Self::ControlAway => Some("Try again shortly."),
            Self::Elsewhere => Some("Connect to the machine that runs the project."),
            Self::Full | Self::ProjectFull => {
                Some("Close connections that are not used, or try again.")
            }
            _ => None,
        };
        let (state, message) = match self {
            Self::Malformed(what) => ("08P01", (*what).into()),
            Self::Protocol => ("0A000", "unsupported frontend protocol: only version 3 is supported".into()),
            Self::NoUser => ("28000", "no PostgreSQL user name specified in startup packet".into()),
            Self::Replication => ("28000", "physical replication is not available; logical replication is".into()),
            Self::NoProject => ("XX000", "no tenant identifier provided: nothing says which project is meant".into()),
            Self::Conflict(one, other) => ("28000", format!("both project {one} and project {other} are named")),
            Self::Unknown => ("XX000", "Tenant or user not found".into()),
            Self::Reserved(role) => ("28000", format!("role \"{role}\" is not for logging in")),
            Self::Libraries => ("42501", format!("permission denied to set parameter \"{}\"", NO_LIBRARIES.0)),
            Self::TlsRequired => ("28000", "SSL connection is required".into()),
            Self::Restricted => ("28000", "address not in the project's allow list".into()),
            Self::Banned => ("28000", "this address is banned for a while: too many wrong passwords".into()),
            Self::Paused => ("57P03", "the project is paused".into()),
            Self::Away => ("57P03", "the project's database is not running".into()),
            Self::PoolerAway(why) => ("57P03", format!("the connection pooler is not available: {why}")),
            Self::WrongPassword(role) => ("28P01", format!("password authentication failed for user \"{role}\"")),
            Self::Console => ("28000", "database \"pgbouncer\" is not available on this port: it is the console of the pooler".into()),
            Self::ControlAway => ("57P03", "the control database does not answer".into()),
            Self::Elsewhere => ("57P03", "the project's database is on another machine".into()),
            Self::Full => ("53300", "sorry, too many clients already".into()),
            Self::ProjectFull => ("53300", "too many connections for this project".into()),
            Self::Unguarded => ("28000", "the project's server does not authenticate by SCRAM-SHA-256; nobody is let in otherwise".into()),
            Self::Late => ("08006", "logging in took too long".into()),
            Self::Stopping => ("57P01", "terminating connection due to administrator command".into()),
            Self::Fault => ("XX000", "internal error".into()),
        };
        (state, message, hint)
    }

    /// Returns an `ErrorResponse` message.
    pub(super) fn message(&self) -> BytesMut {
        let (state, message, hint) = self.text();
        let mut out = BytesMut::with_capacity(256);
        out.put_u8(b'E');
        out.put_u32(0);
        let fields = [
            (b'S', "FATAL"),
            (b'V', "FATAL"),
            (b'C', state),
            (b'M', &message),
        ];
        for (field, text) in fields.into_iter().chain(hint.map(|text| (b'H', text))) {
            out.put_u8(field);
            // A zero byte would terminate the field.
            out.extend(text.bytes().filter(|byte| *byte != 0));
            out.put_u8(0);
        }
        out.put_u8(0);
        let length = u32::try_from(out.len() - 1).unwrap_or(u32::MAX);
        out[1..5].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// Returns the `outcome` label of the metrics.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::Protocol | Self::NoUser | Self::Replication | Self::Late => {
                "malformed"
            }
            Self::NoProject | Self::Conflict(..) | Self::Unknown => "unknown project",
            Self::Reserved(_)
            | Self::Libraries
            | Self::Console
            | Self::WrongPassword(_)
            | Self::TlsRequired
            | Self::Restricted
            | Self::Banned
            | Self::Unguarded => "forbidden",
            Self::Paused
            | Self::Away
            | Self::PoolerAway(_)
            | Self::ControlAway
            | Self::Elsewhere
            | Self::Stopping
            | Self::Fault => "unavailable",
            Self::Full | Self::ProjectFull => "full",
        }
    }
}

/// Returns the SQLSTATE field of an `ErrorResponse` body.
pub(super) fn sqlstate(body: &[u8]) -> Option<&[u8]> {
    body.split(|byte| *byte == 0)
        .find_map(|field| field.strip_prefix(b"C"))
}

#[cfg(test)]
mod tests {
    use postgres_protocol::message::backend::Message;

    use super::*;

    #[test]
    fn rejection_is_a_valid_error_response() {
        for rejection in [
            ConnectionRejection::NoProject,
            ConnectionRejection::Unknown,
            ConnectionRejection::Reserved("a\0b".to_owned()),
            ConnectionRejection::Paused,
            ConnectionRejection::Stopping,
        ] {
            let mut bytes = rejection.message();
            assert_eq!(
                sqlstate(&bytes[5..]).unwrap(),
                rejection.text().0.as_bytes(),
                "{rejection:?}"
            );
            assert!(
                matches!(
                    Message::parse(&mut bytes).unwrap().unwrap(),
                    Message::ErrorResponse(_)
                ),
                "{rejection:?}"
            );
            assert!(bytes.is_empty());
        }
    }
}
