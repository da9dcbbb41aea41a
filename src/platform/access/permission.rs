//! The catalogue of permissions of scoped tokens and of scopes of OAuth applications.

use std::fmt;

use super::role::Role;

/// The kind of resource that a permission is about. A token must reach a resource of this kind to
/// have the permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionLevel {
    /// The user's own account.
    Account,
    /// An organization.
    Organization,
    /// A project.
    Project,
}

macro_rules! permissions {
    ($($variant:ident = $name:literal, $level:ident, $role:ident;)*) => {
        /// A permission of the catalogue (`behaviour.md` §3). The names are those on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each name says what it permits")]
        pub enum Permission { $($variant),* }

        impl Permission {
            /// All permissions, by level, then name.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the kind of resource that the permission is about.
            pub const fn level(self) -> PermissionLevel {
                match self { $(Self::$variant => PermissionLevel::$level),* }
            }

            /// Returns the lowest role that includes the permission.
            pub const fn minimum_role(self) -> Role {
                match self { $(Self::$variant => Role::$role),* }
            }
        }
    };
}

permissions! {
    OrganizationsCreate = "organizations_create", Account, Member;
    OrganizationsRead = "organizations_read", Account, Member;
    ProjectsRead = "projects_read", Account, Member;
    SnippetsRead = "snippets_read", Account, Member;
    MembersRead = "members_read", Organization, ReadOnly;
    MembersWrite = "members_write", Organization, Administrator;
    OrganizationAdminRead = "organization_admin_read", Organization, Member;
    OrganizationAdminWrite = "organization_admin_write", Organization, Owner;
    OrganizationProjectsCreate = "organization_projects_create", Organization, Administrator;
    OrganizationProjectsRead = "organization_projects_read", Organization, Member;
    PlatformWebhooksOrganizationRead = "platform_webhooks_organization_read", Organization, Member;
    PlatformWebhooksOrganizationWrite = "platform_webhooks_organization_write", Organization, Administrator;
    ActionRunsRead = "action_runs_read", Project, ReadOnly;
    ActionRunsWrite = "action_runs_write", Project, Developer;
    AdvisorsRead = "advisors_read", Project, ReadOnly;
    AnalyticsConfigRead = "analytics_config_read", Project, Developer;
    AnalyticsConfigWrite = "analytics_config_write", Project, Administrator;
    AnalyticsLogsRead = "analytics_logs_read", Project, ReadOnly;
    AnalyticsUsageRead = "analytics_usage_read", Project, ReadOnly;
    ApiGatewayKeysRead = "api_gateway_keys_read", Project, Developer;
    ApiGatewayKeysSecretRead = "api_gateway_keys_secret_read", Project, Developer;
    ApiGatewayKeysWrite = "api_gateway_keys_write", Project, Administrator;
    AuthConfigRead = "auth_config_read", Project, ReadOnly;
    AuthConfigWrite = "auth_config_write", Project, Developer;
    AuthSigningKeysRead = "auth_signing_keys_read", Project, Developer;
    AuthSigningKeysWrite = "auth_signing_keys_write", Project, Developer;
    BackupsRead = "backups_read", Project, ReadOnly;
    BackupsWrite = "backups_write", Project, Developer;
    BranchingDevelopmentCreate = "branching_development_create", Project, Developer;
    BranchingDevelopmentDelete = "branching_development_delete", Project, Developer;
    BranchingDevelopmentRead = "branching_development_read", Project, ReadOnly;
    BranchingDevelopmentWrite = "branching_development_write", Project, Developer;
    BranchingProductionCreate = "branching_production_create", Project, Administrator;
    BranchingProductionDelete = "branching_production_delete", Project, Administrator;
    BranchingProductionRead = "branching_production_read", Project, ReadOnly;
    BranchingProductionWrite = "branching_production_write", Project, Developer;
    CustomDomainRead = "custom_domain_read", Project, ReadOnly;
    CustomDomainWrite = "custom_domain_write", Project, Administrator;
    DataApiConfigRead = "data_api_config_read", Project, ReadOnly;
    DataApiConfigSecretRead = "data_api_config_secret_read", Project, Developer;
    DataApiConfigWrite = "data_api_config_write", Project, Administrator;
    DatabaseConfigRead = "database_config_read", Project, ReadOnly;
    DatabaseConfigWrite = "database_config_write", Project, Administrator;
    DatabaseJitRead = "database_jit_read", Project, ReadOnly;
    DatabaseJitWrite = "database_jit_write", Project, Administrator;
    DatabaseMigrationsRead = "database_migrations_read", Project, ReadOnly;
    DatabaseMigrationsWrite = "database_migrations_write", Project, Developer;
    DatabaseNetworkBansRead = "database_network_bans_read", Project, ReadOnly;
    DatabaseNetworkBansWrite = "database_network_bans_write", Project, Administrator;
    DatabaseNetworkRestrictionsRead = "database_network_restrictions_read", Project, ReadOnly;
    DatabaseNetworkRestrictionsWrite = "database_network_restrictions_write", Project, Administrator;
    DatabasePoolingConfigRead = "database_pooling_config_read", Project, ReadOnly;
    DatabasePoolingConfigWrite = "database_pooling_config_write", Project, Administrator;
    DatabaseRead = "database_read", Project, ReadOnly;
    DatabaseReadonlyConfigRead = "database_readonly_config_read", Project, ReadOnly;
    DatabaseReadonlyConfigWrite = "database_readonly_config_write", Project, Administrator;
    DatabaseSslConfigRead = "database_ssl_config_read", Project, ReadOnly;
    DatabaseSslConfigWrite = "database_ssl_config_write", Project, Administrator;
    DatabaseWebhooksConfigRead = "database_webhooks_config_read", Project, ReadOnly;
    DatabaseWebhooksConfigWrite = "database_webhooks_config_write", Project, Developer;
    DatabaseWrite = "database_write", Project, Developer;
    EdgeFunctionsRead = "edge_functions_read", Project, ReadOnly;
    EdgeFunctionsSecretsRead = "edge_functions_secrets_read", Project, ReadOnly;
    EdgeFunctionsSecretsWrite = "edge_functions_secrets_write", Project, Administrator;
    EdgeFunctionsWrite = "edge_functions_write", Project, Developer;
    InfraAddOnsRead = "infra_add_ons_read", Project, ReadOnly;
    InfraAddOnsWrite = "infra_add_ons_write", Project, Administrator;
    InfraDiskConfigRead = "infra_disk_config_read", Project, ReadOnly;
    InfraDiskConfigWrite = "infra_disk_config_write", Project, Administrator;
    InfraReadReplicasRead = "infra_read_replicas_read", Project, ReadOnly;
    InfraReadReplicasWrite = "infra_read_replicas_write", Project, Administrator;
    PlatformWebhooksProjectsRead = "platform_webhooks_projects_read", Project, Member;
    PlatformWebhooksProjectsWrite = "platform_webhooks_projects_write", Project, Administrator;
    ProjectAdminRead = "project_admin_read", Project, Member;
    ProjectAdminWrite = "project_admin_write", Project, Administrator;
    ProjectNotebooksRead = "project_notebooks_read", Project, ReadOnly;
    ProjectNotebooksWrite = "project_notebooks_write", Project, Developer;
    ProjectSnippetsRead = "project_snippets_read", Project, ReadOnly;
    ProjectSnippetsWrite = "project_snippets_write", Project, ReadOnly;
    RealtimeConfigRead = "realtime_config_read", Project, ReadOnly;
    RealtimeConfigWrite = "realtime_config_write", Project, Administrator;
    StorageConfigRead = "storage_config_read", Project, ReadOnly;
    StorageConfigWrite = "storage_config_write", Project, Administrator;
    StorageRead = "storage_read", Project, ReadOnly;
    StorageWrite = "storage_write", Project, Developer;
    VanitySubdomainRead = "vanity_subdomain_read", Project, Administrator;
    VanitySubdomainWrite = "vanity_subdomain_write", Project, Administrator;
    WorkersRead = "workers_read", Project, ReadOnly;
    WorkersWrite = "workers_write", Project, Developer;
}

impl Permission {
    /// Returns whether the permission only lists resources. A token with a smaller reach may have
    /// it, and lists fewer resources.
    pub const fn lists(self) -> bool {
        matches!(
            self,
            Self::OrganizationsRead | Self::ProjectsRead | Self::SnippetsRead
        )
    }

    /// Returns whether the permission only permits reading.
    pub fn only_reads(self) -> bool {
        self.name().ends_with("_read")
    }

    /// Returns the permission with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|p| p.name() == name)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! oauth_scopes {
    ($($variant:ident = $name:literal;)*) => {
        /// A scope that a user can approve for an application (`behaviour.md` §4). The names are
        /// those on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each name says what it approves")]
        pub enum OauthScope { $($variant),* }

        impl OauthScope {
            /// All scopes, by name.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the scope with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|scope| scope.name() == name)
            }
        }
    };
}

oauth_scopes! {
    AnalyticsRead = "analytics:read";
    AnalyticsWrite = "analytics:write";
    AnalyticsConfigRead = "analytics_config:read";
    AnalyticsConfigWrite = "analytics_config:write";
    AuthRead = "auth:read";
    AuthWrite = "auth:write";
    DatabaseRead = "database:read";
    DatabaseWrite = "database:write";
    DomainsRead = "domains:read";
    DomainsWrite = "domains:write";
    EdgeFunctionsRead = "edge_functions:read";
    EdgeFunctionsWrite = "edge_functions:write";
    EnvironmentRead = "environment:read";
    EnvironmentWrite = "environment:write";
    OrganizationsRead = "organizations:read";
    OrganizationsWrite = "organizations:write";
    ProjectsRead = "projects:read";
    ProjectsWrite = "projects:write";
    RestRead = "rest:read";
    RestWrite = "rest:write";
    SecretsRead = "secrets:read";
    SecretsWrite = "secrets:write";
    StorageRead = "storage:read";
    StorageWrite = "storage:write";
}

/// Groups of required permissions. One group must be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnyOf(pub &'static [&'static [Permission]]);

impl AnyOf {
    /// Returns whether one group is complete, or whether there is no group.
    pub fn met(self, holds: impl Fn(Permission) -> bool) -> bool {
        self.0.is_empty()
            || self
                .0
                .iter()
                .any(|group| group.iter().all(|permission| holds(*permission)))
    }

    /// Returns the permissions missing from the most complete group, according to `holds`. Only
    /// groups count in which all permissions are `possible`.
    pub fn missing(
        self,
        possible: impl Fn(Permission) -> bool,
        holds: impl Fn(Permission) -> bool,
    ) -> Vec<Permission> {
        let groups = self
            .0
            .iter()
            .filter(|group| group.iter().all(|permission| possible(*permission)));
        let lacking = |group: &&[Permission]| {
            group
                .iter()
                .copied()
                .filter(|p| !holds(*p))
                .collect::<Vec<_>>()
        };
        groups.map(lacking).min_by_key(Vec::len).unwrap_or_default()
    }
}

impl fmt::Display for AnyOf {
    /// Writes `a+b | c`, the notation of the contract's table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(" | ")?;
            }
            for (j, permission) in group.iter().enumerate() {
                write!(f, "{}{permission}", if j > 0 { "+" } else { "" })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Permission::{
        ApiGatewayKeysRead as Keys, ApiGatewayKeysSecretRead as Secret, DatabaseRead,
    };

    #[test]
    fn catalogue_has_the_size_of_the_contract_and_unique_names() {
        assert_eq!((Permission::ALL.len(), OauthScope::ALL.len()), (89, 24));
        for permission in Permission::ALL {
            assert_eq!(Permission::from_name(permission.name()), Some(*permission));
        }
    }

    #[test]
    fn any_complete_group_is_sufficient() {
        let either = AnyOf(&[&[Keys, Secret], &[DatabaseRead]]);
        assert!(either.met(|p| p == DatabaseRead) && either.met(|p| p == Keys || p == Secret));
        assert!(!either.met(|p| p == Keys) && !either.met(|_| false) && AnyOf(&[]).met(|_| false));
    }

    #[test]
    fn missing_returns_permissions_of_the_nearest_possible_group() {
        let either = AnyOf(&[&[Keys, Secret], &[DatabaseRead]]);
        assert_eq!(either.missing(|_| true, |_| false), [DatabaseRead]);
        assert_eq!(
            either.missing(|p| p != DatabaseRead, |_| false),
            [Keys, Secret]
        );
        assert_eq!(
            either.missing(|p| p != DatabaseRead, |p| p == Keys),
            [Secret]
        );
        assert_eq!(either.missing(|_| true, |p| p == DatabaseRead), []);
        assert_eq!(
            either.to_string(),
            "api_gateway_keys_read+api_gateway_keys_secret_read | database_read"
        );
    }
}
