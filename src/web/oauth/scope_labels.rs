//! Labels of OAuth scopes.

use crate::{
    api::endpoints,
    platform::access::{OauthScope, Role},
};

/// A scope on a page.
pub(super) struct ScopeLabel {
    /// The name in the API, such as `projects:read`.
    pub(super) name: &'static str,
    /// The description.
    pub(super) text: &'static str,
    /// Whether the scope permits changes.
    pub(super) writes: bool,
    /// Whether the role of the approving member permits no operation of the scope.
    pub(super) above_role: bool,
}

/// Returns the labels of scopes for a member with this role. Unknown names are skipped.
pub(super) fn scope_labels<'a>(
    names: impl IntoIterator<Item = &'a str>,
    role: Option<Role>,
) -> Vec<ScopeLabel> {
    let scopes = names.into_iter().filter_map(OauthScope::from_name);
    scopes
        .map(|scope| ScopeLabel {
            name: scope.name(),
            text: description(scope),
            writes: scope.name().ends_with(":write"),
            above_role: is_above_role(scope, role),
        })
        .collect()
}

/// Returns whether the role permits no operation of the scope.
fn is_above_role(scope: OauthScope, role: Option<Role>) -> bool {
    let mut of_scope = endpoints::all()
        .iter()
        .filter(|endpoint| endpoint.access.oauth() == Some(scope))
        .peekable();
    let Some(role) = role.filter(|_| of_scope.peek().is_some()) else {
        return false;
    };
    !of_scope.any(|endpoint| {
        endpoint
            .access
            .permissions()
            .met(|permission| role.holds(permission))
    })
}

fn description(scope: OauthScope) -> &'static str {
    match scope {
        OauthScope::AnalyticsRead => "Read logs and usage",
        OauthScope::AnalyticsWrite => "Change analytics",
        OauthScope::AnalyticsConfigRead => "Read log destinations",
        OauthScope::AnalyticsConfigWrite => "Change log destinations",
        OauthScope::AuthRead => "Read authentication settings",
        OauthScope::AuthWrite => "Change authentication settings",
        OauthScope::DatabaseRead => "Read databases, their structure and backups",
        OauthScope::DatabaseWrite => "Run any SQL and change databases and their settings",
        OauthScope::DomainsRead => "Read custom domains",
        OauthScope::DomainsWrite => "Change custom domains",
        OauthScope::EdgeFunctionsRead => "Read edge functions",
        OauthScope::EdgeFunctionsWrite => "Deploy, change and delete edge functions",
        OauthScope::EnvironmentRead => "Read branches",
        OauthScope::EnvironmentWrite => "Create, change and delete branches",
        OauthScope::OrganizationsRead => "Read the organization and its members",
        OauthScope::OrganizationsWrite => "Change the organization",
        OauthScope::ProjectsRead => "Read projects and their status",
        OauthScope::ProjectsWrite => "Create, pause, restore and delete projects",
        OauthScope::RestRead => "Read Data API settings",
        OauthScope::RestWrite => "Change Data API settings",
        OauthScope::SecretsRead => "Read API keys and other secrets",
        OauthScope::SecretsWrite => "Create, change and delete API keys and other secrets",
        OauthScope::StorageRead => "Read storage and its files",
        OauthScope::StorageWrite => "Change storage and its files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_has_a_distinct_label() {
        let all = scope_labels(
            OauthScope::ALL.iter().map(|scope| scope.name()),
            Some(Role::Owner),
        );
        let texts: std::collections::BTreeSet<_> = all.iter().map(|label| label.text).collect();
        assert_eq!(
            (texts.len(), all.iter().filter(|label| label.writes).count()),
            (24, 12)
        );
        assert!(
            all.iter().all(|label| !label.above_role),
            "the owner role has every permission"
        );
    }

    #[test]
    fn scope_above_the_role_is_marked() {
        let above = |name, role| scope_labels([name], Some(role))[0].above_role;
        assert!(
            above("projects:write", Role::Developer)
                && !above("projects:write", Role::Administrator)
        );
        assert!(above("domains:write", Role::Developer) && !above("domains:read", Role::ReadOnly));
        // The scope includes SQL queries, and the Read-only role permits reading ones.
        assert!(!above("database:write", Role::ReadOnly));
    }
}
