//! The permission picker of the token form: permissions grouped by resource, with their risks.

use crate::platform::access::{Permission as P, PermissionLevel, Role};

/// A titled group of rows.
pub(super) struct PermissionGroup {
    pub(super) title: &'static str,
    pub(super) rows: &'static [PermissionRow],
}

/// Permissions that are granted together, for reading or for reading and writing.
pub(super) struct PermissionRow {
    /// Name of the form field, after the prefix `may.`.
    pub(super) key: &'static str,
    pub(super) label: &'static str,
    pub(super) read: &'static [P],
    pub(super) write: &'static [P],
    /// A warning about the risk of the permissions.
    pub(super) risk: Option<&'static str>,
}

impl PermissionRow {
    /// Returns the permissions of a level: `none`, `read` or `write`.
    pub(super) fn granted(&self, level: &str) -> impl Iterator<Item = P> {
        let read = matches!(level, "read" | "write");
        let write = level == "write";
        self.read
            .iter()
            .filter(move |_| read)
            .chain(self.write.iter().filter(move |_| write))
            .copied()
    }

    /// Returns the CSS class that hides organization permissions for a token limited to projects.
    pub(super) fn level_class(&self) -> &'static str {
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

    /// Returns the lowest role that has all of the permissions.
    pub(super) fn required_role(permissions: &[P]) -> Role {
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
) -> PermissionRow {
    PermissionRow {
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
) -> PermissionRow {
    PermissionRow {
        key,
        label,
        read,
        write,
        risk: Some(risk),
    }
}

/// All groups.
pub(super) static GROUPS: &[PermissionGroup] = &[
    PermissionGroup {
        title: "Project",
        rows: &[
            risky(
                "project",
                "Project settings",
                &[P::ProjectAdminRead],
                &[P::ProjectAdminWrite],
                "Write access can pause and delete projects.",
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
                "Logs can contain personal data.",
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
    PermissionGroup {
        title: "Database",
        rows: &[
            risky(
                "database",
                "Database",
                &[P::DatabaseRead],
                &[P::DatabaseWrite],
                "Runs arbitrary SQL: read access sees all data, write access can drop it.",
            ),
            risky(
                "migrations",
                "Migrations",
                &[P::DatabaseMigrationsRead],
                &[P::DatabaseMigrationsWrite],
                "Write access runs SQL that can change or drop any data.",
            ),
            risky(
                "backups",
                "Backups",
                &[P::BackupsRead],
                &[P::BackupsWrite],
                "Write access can overwrite data with an older backup.",
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
                "Write access can give others access to the database.",
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
                "Write access can open the database to every network.",
            ),
        ],
    },
    PermissionGroup {
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
                "Shows keys that bypass row-level security.",
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
                "Write access can sign out every user.",
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
                "Shows the secret that signs user tokens.",
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
                "Gives access to other services.",
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
                "Includes the stored files.",
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
    PermissionGroup {
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
                "Write access changes production.",
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
                "Write access can cause costs.",
            ),
            risky(
                "disk",
                "Disk configuration",
                &[P::InfraDiskConfigRead],
                &[P::InfraDiskConfigWrite],
                "Write access can cause costs.",
            ),
            risky(
                "replicas",
                "Read replicas",
                &[P::InfraReadReplicasRead],
                &[P::InfraReadReplicasWrite],
                "Write access can cause costs.",
            ),
        ],
    },
    PermissionGroup {
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
                "Write access can rename and delete organizations.",
            ),
            risky(
                "members",
                "Organization members",
                &[P::MembersRead],
                &[P::MembersWrite],
                "Write access can add and remove members.",
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

/// Returns the rows of all groups.
pub(super) fn rows() -> impl Iterator<Item = &'static PermissionRow> {
    GROUPS.iter().flat_map(|group| group.rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_permission_is_in_exactly_one_row() {
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
    fn read_level_contains_only_read_permissions() {
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
