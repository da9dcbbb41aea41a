//! Passwords, grants and repair of the roles in a project's cluster.

use gantry_base::ids::ProjectRef;

use super::{local_driver::LocalDriver, platform::PlatformConflict, privileges::PrivilegeFinding};
use crate::{
    background::blocking,
    clusters::{
        platform, privileges,
        superuser::{self, SqlArgument, SuperuserSession},
        template,
    },
    error::{ClusterError, Result},
};

impl LocalDriver {
    /// Sets the password of `role` to a SCRAM-SHA-256 verifier. Neither the server nor its log
    /// receives the password itself.
    pub async fn set_password(
        &self,
        project: &ProjectRef,
        role: &str,
        verifier: &str,
    ) -> Result<()> {
        if !is_scram_verifier(verifier) {
            return Err(ClusterError::NotAVerifier);
        }
        let admin = self.superuser_session(project).await?;
        let sql_error = |cause| ClusterError::Sql {
            doing: "setting a password",
            cause,
        };
        admin.run(&superuser::QUIET).await.map_err(sql_error)?;
        let arguments = [
            SqlArgument::Identifier(role),
            SqlArgument::Literal(verifier),
        ];
        let set = admin.run_with(&superuser::SET_PASSWORD, &arguments);
        set.await.map_err(sql_error)
    }

    /// Brings a database to the platform's schemas and grants of this version of Gantry.
    /// Idempotent. Returns the parts that objects of the tenant are in the way of.
    pub async fn apply_platform(&self, admin: &SuperuserSession) -> Result<Vec<PlatformConflict>> {
        let conflicts = platform::apply(admin).await?;
        platform::grant(admin).await?;
        Ok(conflicts)
    }

    /// Grants privileges on new objects in `public` to the roles of the Data API. Idempotent.
    pub async fn grant_on_new_tables(&self, admin: &SuperuserSession) -> Result<()> {
        platform::grant_on_new_tables(admin).await
    }

    /// Identifier of the platform's schemas and grants of this version of Gantry.
    pub fn platform_version(&self) -> String {
        template::platform_version()
    }

    /// Restores the platform's roles and the database `postgres`. Idempotent.
    pub async fn repair_roles(&self, project: &ProjectRef) -> Result<()> {
        let admin = self.existing(project)?.repairer().await?;
        self.repair_roles_over(&admin).await
    }

    /// Does [`Self::repair_roles`] over an open superuser session.
    pub async fn repair_roles_over(&self, admin: &SuperuserSession) -> Result<()> {
        let repaired = admin.run(&superuser::REPAIR_ROLES).await;
        repaired.map_err(|cause| ClusterError::Sql {
            doing: "repairing the platform's roles",
            cause,
        })
    }

    /// Writes the rules of authentication of this version of Gantry, and makes a running server use
    /// them if they were others.
    pub async fn refresh_access(&self, project: &ProjectRef) -> Result<()> {
        let server = self.existing(project)?;
        let (data, owner) = (server.data().to_owned(), server.run_as());
        let rules = template::access_rules()?;
        let changed = blocking(move || template::write_rules(&data, owner, &rules)).await?;
        if changed && self.running(project).await?.is_some() {
            self.reload(project).await?;
        }
        Ok(())
    }

    /// Returns privileges of roles that only the platform has, and objects in database `postgres`
    /// that only a superuser can have made.
    pub async fn find_privileges(&self, admin: &SuperuserSession) -> Result<Vec<PrivilegeFinding>> {
        let mut found = privileges::find(admin).await?;
        found.extend(privileges::foreign_objects(admin).await?);
        Ok(found)
    }

    /// Revokes privileges that were found. Objects stay. Idempotent.
    pub async fn revoke_privileges(
        &self,
        project: &ProjectRef,
        admin: &SuperuserSession,
        found: &[PrivilegeFinding],
    ) -> Result<()> {
        let major = self.existing(project)?.major();
        privileges::revoke(admin, major, found).await
    }
}

/// Returns whether `text` is `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`.
/// PostgreSQL takes any other text for a password.
fn is_scram_verifier(text: &str) -> bool {
    let base64 = |text: &str, len: usize| {
        let body = text.trim_end_matches('=');
        text.len() == len
            && len - body.len() <= 2
            && body
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
    };
    let parts = || {
        let (parameters, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let ((iterations, salt), (stored, server)) =
            (parameters.split_once(':')?, keys.split_once(':')?);
        let counted = iterations.bytes().all(|b| b.is_ascii_digit())
            && iterations.parse::<u32>().is_ok_and(|n| n > 0);
        Some(
            counted
                && (4..=128).contains(&salt.len())
                && base64(salt, salt.len())
                && base64(stored, 44)
                && base64(server, 44),
        )
    };
    parts().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_verifiers_are_rejected() {
        let keys = "k3JCUfEzTgPeFmAX8Z0CNPY0GQnO1fW3bnVQXbhCBbk=:5wTSkRZWTBRoMh8CgYHJ3v7XKpLAY8ZVsCbAXb4tPxY=";
        assert!(is_scram_verifier(&format!(
            "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2E=${keys}"
        )));
        for bad in [
            String::new(),
            "hunter2".to_owned(),
            "SCRAM-SHA-256$".to_owned(),
            "SCRAM-SHA-256$hunter2".to_owned(),
            format!("SCRAM-SHA-256$0:c2FsdA==${keys}"),
            format!("SCRAM-SHA-256$+1:c2FsdA==${keys}"),
            format!("SCRAM-SHA-256$4096:${keys}"),
            format!("SCRAM-SHA-256$4096:c2Fs'A==${keys}"),
            format!("SCRAM-SHA-256$4096:c2FsdA==${keys}x"),
            format!("scram-sha-256$4096:c2FsdA==${keys}"),
            "md5d8578edf8458ce06fbc5bb76a58c5ca4".to_owned(),
        ] {
            assert!(!is_scram_verifier(&bad), "{bad}");
        }
    }
}
