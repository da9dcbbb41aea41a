//! Scopes as people understand them.

use crate::{
    api::endpoints,
    platform::access::{OauthScope, Role},
};

/// What a scope lets an application do.
pub(super) struct Line {
    /// The name on the wire.
    pub(super) name: &'static str,
    /// In words.
    pub(super) said: &'static str,
    /// Whether it lets change something.
    pub(super) writes: bool,
    /// Whether the role that approves it may do nothing of that.
    pub(super) above: bool,
}

/// The words for scopes, for somebody of this role. A name that is no scope has none.
pub(super) fn lines<'a>(names: impl IntoIterator<Item = &'a str>, role: Option<Role>) -> Vec<Line> {
    let scopes = names.into_iter().filter_map(OauthScope::from_name);
    scopes
        .map(|scope| Line {
            name: scope.name(),
            said: said(scope),
            writes: scope.name().ends_with(":write"),
            above: above(scope, role),
        })
        .collect()
}

/// Whether none of what a scope lets do is the role's to do.
fn above(scope: OauthScope, role: Option<Role>) -> bool {
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

fn said(scope: OauthScope) -> &'static str {
    match scope {
        OauthScope::AnalyticsRead => "See logs and usage",
        OauthScope::AnalyticsWrite => "Change analytics",
        OauthScope::AnalyticsConfigRead => "See where logs are sent",
        OauthScope::AnalyticsConfigWrite => "Change where logs are sent",
        OauthScope::AuthRead => "See how users of projects sign in",
        OauthScope::AuthWrite => "Change how users of projects sign in",
        OauthScope::DatabaseRead => "Read databases, their structure and backups",
        OauthScope::DatabaseWrite => "Run any SQL, change databases and their settings",
        OauthScope::DomainsRead => "See custom domains",
        OauthScope::DomainsWrite => "Change custom domains",
        OauthScope::EdgeFunctionsRead => "See edge functions",
        OauthScope::EdgeFunctionsWrite => "Deploy, change and delete edge functions",
        OauthScope::EnvironmentRead => "See branches",
        OauthScope::EnvironmentWrite => "Create, change and delete branches",
        OauthScope::OrganizationsRead => "See the organization and its members",
        OauthScope::OrganizationsWrite => "Change the organization",
        OauthScope::ProjectsRead => "See projects and their state",
        OauthScope::ProjectsWrite => "Create, pause, restore and delete projects",
        OauthScope::RestRead => "See the settings of data APIs",
        OauthScope::RestWrite => "Change the settings of data APIs",
        OauthScope::SecretsRead => "Read API keys and other secrets",
        OauthScope::SecretsWrite => "Make, change and delete API keys and other secrets",
        OauthScope::StorageRead => "See storage and its files",
        OauthScope::StorageWrite => "Change storage and its files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_has_words_of_its_own() {
        let all = lines(
            OauthScope::ALL.iter().map(|scope| scope.name()),
            Some(Role::Owner),
        );
        let words: std::collections::BTreeSet<_> = all.iter().map(|line| line.said).collect();
        assert_eq!(
            (words.len(), all.iter().filter(|line| line.writes).count()),
            (24, 12)
        );
        assert!(
            all.iter().all(|line| !line.above),
            "an owner may do whatever there is"
        );
    }

    #[test]
    fn what_a_role_may_not_do_is_marked() {
        let above = |name, role| lines([name], Some(role))[0].above;
        assert!(
            above("projects:write", Role::Developer)
                && !above("projects:write", Role::Administrator)
        );
        assert!(above("domains:write", Role::Developer) && !above("domains:read", Role::ReadOnly));
        // It lets run SQL, and who may only read may run what reads.
        assert!(!above("database:write", Role::ReadOnly));
    }
}
