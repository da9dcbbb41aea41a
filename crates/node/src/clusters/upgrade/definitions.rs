//! Keeps definitions of the tenant from running while `pg_upgrade` reads them as a superuser.
//!
//! In the copy that is upgraded, functions of the tenant are blocked and constraints of its domains
//! are removed. Both come back in the upgraded cluster, the constraints in sessions of the owners
//! of the domains.

use tokio_postgres::Row;

use crate::{
    clusters::{
        quarantine::OwnerLogins,
        superuser::{self, SqlArgument, SuperuserSession},
        upgrade::build::{sql_error, value},
    },
    error::{ClusterError, Result},
};

/// Maximum number of constraints of domains in a database.
const CONSTRAINTS_MAX: i64 = 10_000;
/// Number of functions that an error names.
const NAMED_MAX: i64 = 3;

/// A constraint of a domain, removed for the time of an upgrade.
#[derive(Debug)]
pub(super) struct DomainConstraint {
    database: String,
    /// The domain, quoted.
    domain: String,
    name: String,
    definition: String,
    owner: String,
    is_valid: bool,
}

/// Blocks the functions of a database in the copy, and removes constraints of its domains.
pub(super) async fn block(
    session: &SuperuserSession,
    database: &str,
) -> Result<Vec<DomainConstraint>> {
    let rows = session
        .query(&superuser::NOT_BLOCKABLE, &[&NAMED_MAX])
        .await;
    let names: Result<Vec<String>> = rows
        .map_err(sql_error)?
        .iter()
        .map(|row| value(row, 0))
        .collect();
    let names = names?;
    if !names.is_empty() {
        return Err(ClusterError::Upgrade(format!(
            "functions set default_tablespace; remove the setting from {}",
            names.join(", ")
        )));
    }
    let blocked = session.execute(&superuser::BLOCK_FUNCTIONS, &[]).await;
    blocked.map_err(sql_error)?;
    let limit = CONSTRAINTS_MAX + 1;
    let rows = session
        .query(&superuser::DOMAIN_CONSTRAINTS, &[&limit])
        .await;
    let rows = rows.map_err(sql_error)?;
    if i64::try_from(rows.len()).is_ok_and(|count| count > CONSTRAINTS_MAX) {
        let text = format!("its domains have more than {CONSTRAINTS_MAX} constraints");
        return Err(ClusterError::Upgrade(text));
    }
    let constraints: Result<Vec<DomainConstraint>> =
        rows.iter().map(|row| constraint(row, database)).collect();
    let constraints = constraints?;
    for constraint in &constraints {
        let arguments = [
            SqlArgument::Quoted(&constraint.domain),
            SqlArgument::Identifier(&constraint.name),
        ];
        let dropped = session.run_with(&superuser::DROP_DOMAIN_CONSTRAINT, &arguments);
        dropped.await.map_err(sql_error)?;
    }
    Ok(constraints)
}

fn constraint(row: &Row, database: &str) -> Result<DomainConstraint> {
    Ok(DomainConstraint {
        database: database.to_owned(),
        domain: value(row, 0)?,
        name: value(row, 1)?,
        definition: value(row, 2)?,
        owner: value(row, 3)?,
        is_valid: value(row, 4)?,
    })
}

/// Lets the functions of a database run again, and restores the constraints of its domains.
pub(super) async fn unblock(
    session: &SuperuserSession,
    logins: &OwnerLogins,
    database: &str,
    constraints: &[DomainConstraint],
) -> Result<()> {
    let unblocked = session.execute(&superuser::UNBLOCK_FUNCTIONS, &[]).await;
    unblocked.map_err(sql_error)?;
    let own = constraints
        .iter()
        .filter(|constraint| constraint.database == database);
    for constraint in own {
        let client = logins.session(&constraint.owner, database).await?;
        client
            .batch_execute(&constraint.addition())
            .await
            .map_err(|cause| {
                ClusterError::Upgrade(format!(
                    "the constraint {} of domain {} cannot be restored: {}",
                    constraint.name,
                    constraint.domain,
                    crate::error::sql_text(&cause)
                ))
            })?;
        if constraint.is_valid {
            let arguments = [
                SqlArgument::Literal(&constraint.domain),
                SqlArgument::Literal(&constraint.name),
            ];
            let marked = session.run_with(&superuser::MARK_CONSTRAINT_VALID, &arguments);
            marked.await.map_err(sql_error)?;
        }
    }
    Ok(())
}

impl DomainConstraint {
    /// Returns the statement that adds the constraint. Values are not checked: they were.
    fn addition(&self) -> String {
        let name = postgres_protocol::escape::escape_identifier(&self.name);
        let definition = &self.definition;
        let definition = definition.strip_suffix(" NOT VALID").unwrap_or(definition);
        format!(
            "alter domain {} add constraint {name} {definition} not valid",
            self.domain
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraint_is_added_without_a_check_of_values() {
        let mut constraint = DomainConstraint {
            database: "postgres".to_owned(),
            domain: "public.mail".to_owned(),
            name: "has at".to_owned(),
            definition: "CHECK ((VALUE ~ '@'::text))".to_owned(),
            owner: "postgres".to_owned(),
            is_valid: true,
        };
        let expected = "alter domain public.mail add constraint \"has at\" \
                        CHECK ((VALUE ~ '@'::text)) not valid";
        assert_eq!(constraint.addition(), expected);
        constraint.definition.push_str(" NOT VALID");
        assert_eq!(constraint.addition(), expected);
    }
}
