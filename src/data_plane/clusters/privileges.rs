//! Privileges that only the platform has: found in the catalogs of a cluster, and revoked.

use super::{
    ClusterError, Result,
    superuser::{self, SqlArgument, SqlError, SuperuserSession},
};

/// The first version that records the grantor of a membership, as `granted by` names it.
const GRANTORS_SINCE: u16 = 16;

/// A privilege that a role of a tenant must not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivilegeFinding(String);

impl std::fmt::Display for PrivilegeFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Revokes privileges that only the platform has from other roles. Returns what was found.
pub(super) async fn revoke(
    session: &SuperuserSession,
    major: u16,
) -> Result<Vec<PrivilegeFinding>> {
    let rows = session.query(&superuser::PRIVILEGE_FINDINGS, &[]).await;
    let mut found = Vec::new();
    for row in rows.map_err(sql_error)? {
        let text = |column| row.try_get::<_, String>(column).map_err(sql_error);
        let (kind, role, group, grantor) = (text(0)?, text(1)?, text(2)?, text(3)?);
        let identifier = SqlArgument::Identifier(&role);
        let attribute = |keyword| [identifier, SqlArgument::Keyword(keyword)];
        let membership = [
            SqlArgument::Identifier(&group),
            identifier,
            SqlArgument::Identifier(&grantor),
        ];
        let (finding, done) = match kind.as_str() {
            "member" if major < GRANTORS_SINCE || grantor.is_empty() => {
                let statement = &superuser::REVOKE_MEMBERSHIP_15;
                let revoked = session.run_with(statement, &membership[..2]).await;
                (format!("role {role} was a member of {group}"), revoked)
            }
            "member" => {
                let statement = &superuser::REVOKE_MEMBERSHIP;
                let revoked = session.run_with(statement, &membership).await;
                (format!("role {role} was a member of {group}"), revoked)
            }
            kind => {
                let (what, keyword) = match kind {
                    "superuser" => ("was a superuser", "nosuperuser"),
                    "createrole" => ("could create roles", "nocreaterole"),
                    "replication" => ("could replicate", "noreplication"),
                    _ => ("bypassed row-level security", "nobypassrls"),
                };
                let statement = &superuser::REVOKE_ATTRIBUTE;
                let revoked = session.run_with(statement, &attribute(keyword)).await;
                (format!("role {role} {what}"), revoked)
            }
        };
        done.map_err(sql_error)?;
        found.push(PrivilegeFinding(finding));
    }
    Ok(found)
}

/// Returns the objects of a database that only a superuser can have made, and that are not the
/// platform's. They stay: the operator decides.
pub(super) async fn foreign_objects(session: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
    let rows = session.query(&superuser::FOREIGN_OBJECTS, &[]).await;
    let rows = rows.map_err(sql_error)?;
    rows.iter()
        .map(|row| {
            let (kind, name): (String, String) = (
                row.try_get(0).map_err(sql_error)?,
                row.try_get(1).map_err(sql_error)?,
            );
            let text = format!("{kind} {name} belongs to the superuser and is not the platform's");
            Ok(PrivilegeFinding(text))
        })
        .collect()
}

fn sql_error(cause: SqlError) -> ClusterError {
    ClusterError::Sql {
        doing: "comparing the privileges of roles",
        cause,
    }
}
