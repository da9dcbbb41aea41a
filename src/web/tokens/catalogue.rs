//! The permissions as people choose them: in groups, by what they are about, with what can go wrong.

use crate::platform::access::{Permission as P, PermissionLevel, Role};

/// A group of rows.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) rows: &'static [Row],
}

/// What can be granted together, to be seen or also to be changed.
pub(super) struct Row {
    /// Name of its field.
    pub(super) key: &'static str,
    pub(super) label: &'static str,
    pub(super) read: &'static [P],
    pub(super) write: &'static [P],
    /// Why it deserves a second look, if it does.
    pub(super) risk: Option<&'static str>,
}

impl Row {
    /// What is granted on this level.
    pub(super) fn granted(&self, level: &str) -> impl Iterator<Item = P> {
        let (read, write) = (matches!(level, "read" | "write"), level == "write");
        self.read
            .iter()
            .filter(move |_| read)
            .chain(self.write.iter().filter(move |_| write))
            .copied()
    }

    /// Whom it is offered, as a class: what is about organizations is nothing for a token that reaches projects.
    pub(super) fn reached_by(&self) -> &'static str {
        let levels = self.read.iter().map(|it| {
            if it.lists() {
                PermissionLevel::Project
            } else {
                it.level()
            }
        });
        match levels.min() {
            Some(PermissionLevel::Project) => "by-project",
            _ => "by-organization",
        }
    }

    /// The lowest role with which it is of use.
    pub(super) fn role(permissions: &[P]) -> Role {
        permissions
            .iter()
            .map(|it| it.minimum_role())
            .max()
            .unwrap_or(Role::Member)
    }
}

const fn row(
    key: &'static str,
    label: &'static str,
    read: &'static [P],
    write: &'static [P],
) -> Row {
    Row {
        key,
        label,
        read,
        write,
        risk: None,
    }
}

const fn risky(
    key: &'static str,
    label: &'static str,
    read: &'static [P],
    write: &'static [P],
    risk: &'static str,
) -> Row {
    Row {
        key,
        label,
        read,
        write,
        risk: Some(risk),
    }
}

/// Every row, in groups.
pub(super) static GROUPS: &[Group] = &[
    Group {
        title: "Project",
        rows: &[
            risky(
                "project",
                "Project settings",
                &[P::ProjectAdminRead],
                &[P::ProjectAdminWrite],
                "Writing can pause or delete projects.",
            ),
            row(
                "action_runs",
                "Action runs",
                &[P::ActionRunsRead],
                &[P::ActionRunsWrite],
            ),
            row("advisors", "Advisors", &[P::AdvisorsRead], &[]),
            row(
                "analytics_config",
                "Analytics configuration",
                &[P::AnalyticsConfigRead],
                &[P::AnalyticsConfigWrite],
            ),
            risky(
                "logs",
                "Logs",
                &[P::AnalyticsLogsRead],
                &[],
                "Logs can hold personal data.",
            ),
            row("usage", "Usage", &[P::AnalyticsUsageRead], &[]),
            row(
                "webhooks",
                "Platform webhooks",
                &[P::PlatformWebhooksProjectsRead],
                &[P::PlatformWebhooksProjectsWrite],
            ),
            row(
                "snippets",
                "SQL snippets",
                &[P::ProjectSnippetsRead],
                &[P::ProjectSnippetsWrite],
            ),
            row(
                "notebooks",
                "Notebooks",
                &[P::ProjectNotebooksRead],
                &[P::ProjectNotebooksWrite],
            ),
        ],
    },
    Group {
        title: "Database",
        rows: &[
            risky(
                "database",
                "Database",
                &[P::DatabaseRead],
                &[P::DatabaseWrite],
                "Runs any SQL: reading sees all data, writing can drop it.",
            ),
            risky(
                "migrations",
                "Migrations",
                &[P::DatabaseMigrationsRead],
                &[P::DatabaseMigrationsWrite],
                "Writing runs SQL that can change or drop anything.",
            ),
            risky(
                "backups",
                "Backups",
                &[P::BackupsRead],
                &[P::BackupsWrite],
                "Writing can put older data in the place of what is there.",
            ),
            row(
                "database_config",
                "Database configuration",
                &[P::DatabaseConfigRead],
                &[P::DatabaseConfigWrite],
            ),
            risky(
                "jit",
                "Temporary access",
                &[P::DatabaseJitRead],
                &[P::DatabaseJitWrite],
                "Writing lets others into the database.",
            ),
            row(
                "pooling",
                "Connection pooling",
                &[P::DatabasePoolingConfigRead],
                &[P::DatabasePoolingConfigWrite],
            ),
            row(
                "readonly",
                "Read-only mode",
                &[P::DatabaseReadonlyConfigRead],
                &[P::DatabaseReadonlyConfigWrite],
            ),
            row(
                "ssl",
                "SSL enforcement",
                &[P::DatabaseSslConfigRead],
                &[P::DatabaseSslConfigWrite],
            ),
            row(
                "database_webhooks",
                "Database webhooks",
                &[P::DatabaseWebhooksConfigRead],
                &[P::DatabaseWebhooksConfigWrite],
            ),
            row(
                "bans",
                "Network bans",
                &[P::DatabaseNetworkBansRead],
                &[P::DatabaseNetworkBansWrite],
            ),
            risky(
                "restrictions",
                "Network restrictions",
                &[P::DatabaseNetworkRestrictionsRead],
                &[P::DatabaseNetworkRestrictionsWrite],
                "Writing can open the database to every network.",
            ),
        ],
    },
    Group {
        title: "Application services",
        rows: &[
            row(
                "api_keys",
                "API keys",
                &[P::ApiGatewayKeysRead],
                &[P::ApiGatewayKeysWrite],
            ),
            risky(
                "api_key_secrets",
                "API key secrets",
                &[P::ApiGatewayKeysSecretRead],
                &[],
                "Shows keys that reach past row level security.",
            ),
            row(
                "auth",
                "Auth configuration",
                &[P::AuthConfigRead],
                &[P::AuthConfigWrite],
            ),
            risky(
                "signing_keys",
                "Auth signing keys",
                &[P::AuthSigningKeysRead],
                &[P::AuthSigningKeysWrite],
                "Writing can sign every user out.",
            ),
            row(
                "data_api",
                "Data API configuration",
                &[P::DataApiConfigRead],
                &[P::DataApiConfigWrite],
            ),
            risky(
                "data_api_secrets",
                "Data API secrets",
                &[P::DataApiConfigSecretRead],
                &[],
                "Shows what user tokens are signed with.",
            ),
            row(
                "functions",
                "Edge functions",
                &[P::EdgeFunctionsRead],
                &[P::EdgeFunctionsWrite],
            ),
            risky(
                "function_secrets",
                "Edge function secrets",
                &[P::EdgeFunctionsSecretsRead],
                &[P::EdgeFunctionsSecretsWrite],
                "They open other services.",
            ),
            row(
                "realtime",
                "Realtime configuration",
                &[P::RealtimeConfigRead],
                &[P::RealtimeConfigWrite],
            ),
            risky(
                "storage",
                "Storage",
                &[P::StorageRead],
                &[P::StorageWrite],
                "Reaches the files themselves.",
            ),
            row(
                "storage_config",
                "Storage configuration",
                &[P::StorageConfigRead],
                &[P::StorageConfigWrite],
            ),
            row("workers", "Compute", &[P::WorkersRead], &[P::WorkersWrite]),
        ],
    },
    Group {
        title: "Infrastructure and delivery",
        rows: &[
            row(
                "branches",
                "Development branches",
                &[P::BranchingDevelopmentRead],
                &[
                    P::BranchingDevelopmentCreate,
                    P::BranchingDevelopmentDelete,
                    P::BranchingDevelopmentWrite,
                ],
            ),
            risky(
                "production_branches",
                "Production branches",
                &[P::BranchingProductionRead],
                &[
                    P::BranchingProductionCreate,
                    P::BranchingProductionDelete,
                    P::BranchingProductionWrite,
                ],
                "Writing changes what is in production.",
            ),
            row(
                "domains",
                "Custom domains",
                &[P::CustomDomainRead],
                &[P::CustomDomainWrite],
            ),
            row(
                "subdomain",
                "Vanity subdomain",
                &[P::VanitySubdomainRead],
                &[P::VanitySubdomainWrite],
            ),
            risky(
                "add_ons",
                "Add-ons",
                &[P::InfraAddOnsRead],
                &[P::InfraAddOnsWrite],
                "Writing can cost money.",
            ),
            risky(
                "disk",
                "Disk configuration",
                &[P::InfraDiskConfigRead],
                &[P::InfraDiskConfigWrite],
                "Writing can cost money.",
            ),
            risky(
                "replicas",
                "Read replicas",
                &[P::InfraReadReplicasRead],
                &[P::InfraReadReplicasWrite],
                "Writing can cost money.",
            ),
        ],
    },
    Group {
        title: "Account and organization",
        rows: &[
            row(
                "organizations",
                "Organizations",
                &[P::OrganizationsRead],
                &[P::OrganizationsCreate],
            ),
            row("projects", "List of projects", &[P::ProjectsRead], &[]),
            row(
                "all_snippets",
                "List of SQL snippets",
                &[P::SnippetsRead],
                &[],
            ),
            risky(
                "organization",
                "Organization settings",
                &[P::OrganizationAdminRead],
                &[P::OrganizationAdminWrite],
                "Writing can rename or delete organizations.",
            ),
            risky(
                "members",
                "Organization members",
                &[P::MembersRead],
                &[P::MembersWrite],
                "Writing decides who else gets in.",
            ),
            row(
                "organization_projects",
                "Organization projects",
                &[P::OrganizationProjectsRead],
                &[P::OrganizationProjectsCreate],
            ),
            row(
                "organization_webhooks",
                "Organization webhooks",
                &[P::PlatformWebhooksOrganizationRead],
                &[P::PlatformWebhooksOrganizationWrite],
            ),
        ],
    },
];

/// Every row.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|group| group.rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_permission_can_be_chosen_in_one_place() {
        let mut chosen: Vec<P> = rows()
            .flat_map(|row| row.granted("write").collect::<Vec<_>>())
            .collect();
        chosen.sort_unstable();
        assert_eq!(
            chosen,
            P::ALL
                .iter()
                .copied()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        assert_eq!(
            rows().map(|row| row.key).collect::<BTreeSet<_>>().len(),
            rows().count()
        );
    }

    #[test]
    fn reading_only_sees() {
        for row in rows() {
            assert!(
                row.granted("read").all(P::only_reads) && row.granted("none").count() == 0,
                "{}",
                row.key
            );
            assert!(row.granted("read").count() > 0);
        }
    }
}
