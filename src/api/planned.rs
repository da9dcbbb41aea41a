//! Operations of the contract that are not built yet. Each is routed, permitted, counted and documented like a built one,
//! and answers 501. To build one, move its line into its slice as an [`Endpoint`] with a handler.

use serde::Deserialize;

use crate::platform::{
    access::{AnyOf, Case, OauthScope as S, Permission as P, needs, pat_only},
    http::{Endpoint, Tag, Verb, endpoint::not_built},
    rate_limits::STANDARD,
};

/// A branch with the data of production is as good as production.
const BRANCH: &[Case] = &[
    Case {
        when: "`with_data` is true",
        applies: |asked| asked.body().is_none_or(Branch::has_data),
        permissions: AnyOf(&[&[P::BranchingProductionCreate]]),
    },
    Case::otherwise(AnyOf(&[&[P::BranchingDevelopmentCreate]])),
];

/// The body of v1; that of v2 has the same in `data.attributes`.
#[derive(Deserialize)]
struct Branch {
    #[serde(default)]
    with_data: bool,
    data: Option<Wrapped>,
}

#[derive(Deserialize)]
struct Wrapped {
    attributes: Box<Branch>,
}

impl Branch {
    fn has_data(self) -> bool {
        self.with_data || self.data.is_some_and(|data| data.attributes.has_data())
    }
}

macro_rules! planned {
    ($($verb:ident $path:literal $aliases:tt $id:literal $title:literal $tag:ident, $access:expr, $limit:ident;)*) => {
        /// What is declared and not built.
        pub static PLANNED: &[&Endpoint] = &[$(&Endpoint {
            id: $id,
            summary: $title,
            tag: Tag::$tag,
            method: Verb::$verb,
            path: $path,
            aliases: &$aliases,
            access: $access,
            limit: &$limit,
            handler: || not_built($title),
        }),*];
    };
}

planned! {
    Delete "/v1/branches/{branch_id_or_ref}" [] "v1-delete-a-branch" "Delete a branch" Environments, needs(&[&[P::BranchingDevelopmentDelete], &[P::BranchingProductionDelete]], S::EnvironmentWrite), STANDARD;
    Get "/v1/branches/{branch_id_or_ref}" [] "v1-get-a-branch-config" "Get a branch config" Environments, needs(&[&[P::BranchingDevelopmentRead], &[P::BranchingProductionRead]], S::EnvironmentRead), STANDARD;
    Patch "/v1/branches/{branch_id_or_ref}" [] "v1-update-a-branch-config" "Update a branch config" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Get "/v1/branches/{branch_id_or_ref}/diff" [] "v1-diff-a-branch" "Diff a branch" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Post "/v1/branches/{branch_id_or_ref}/merge" [] "v1-merge-a-branch" "Merge a branch" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Post "/v1/branches/{branch_id_or_ref}/push" [] "v1-push-a-branch" "Push a branch" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Post "/v1/branches/{branch_id_or_ref}/reset" [] "v1-reset-a-branch" "Reset a branch" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Post "/v1/branches/{branch_id_or_ref}/restore" [] "v1-restore-a-branch" "Restore a branch" Environments, needs(&[&[P::BranchingDevelopmentWrite], &[P::BranchingProductionWrite]], S::EnvironmentWrite), STANDARD;
    Get "/v1/organizations/{slug}/entitlements" [] "v1-get-organization-entitlements" "Get organization entitlements" Organizations, needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead), STANDARD;
    Get "/v1/organizations/{slug}/project-claim/{token}" [] "v1-get-organization-project-claim" "Get organization project claim" Organizations, pat_only(&[&[P::OrganizationAdminWrite]]), STANDARD;
    Post "/v1/organizations/{slug}/project-claim/{token}" [] "v1-claim-project-for-organization" "Claim project for organization" Organizations, pat_only(&[&[P::OrganizationAdminWrite]]), STANDARD;
    Get "/v1/projects/{ref}/actions" [] "v1-list-action-runs" "List action runs" Environments, needs(&[&[P::ActionRunsRead]], S::EnvironmentRead), STANDARD;
    Head "/v1/projects/{ref}/actions" [] "v1-count-action-runs" "Count action runs" Environments, needs(&[&[P::ActionRunsRead]], S::EnvironmentRead), STANDARD;
    Get "/v1/projects/{ref}/actions/{run_id}" [] "v1-get-action-run" "Get action run" Environments, needs(&[&[P::ActionRunsRead]], S::EnvironmentRead), STANDARD;
    Get "/v1/projects/{ref}/actions/{run_id}/logs" [] "v1-get-action-run-logs" "Get action run logs" Environments, needs(&[&[P::ActionRunsRead]], S::EnvironmentRead), STANDARD;
    Patch "/v1/projects/{ref}/actions/{run_id}/status" [] "v1-update-action-run-status" "Update action run status" Environments, needs(&[&[P::ActionRunsWrite]], S::EnvironmentWrite), STANDARD;
    Get "/v1/projects/{ref}/billing/addons" [] "v1-list-project-addons" "List project addons" Billing, pat_only(&[&[P::InfraAddOnsRead]]), STANDARD;
    Patch "/v1/projects/{ref}/billing/addons" [] "v1-apply-project-addon" "Apply project addon" Billing, pat_only(&[&[P::InfraAddOnsWrite]]), STANDARD;
    Delete "/v1/projects/{ref}/billing/addons/{addon_variant}" [] "v1-remove-project-addon" "Remove project addon" Billing, pat_only(&[&[P::InfraAddOnsWrite]]), STANDARD;
    Delete "/v1/projects/{ref}/branches" [] "v1-disable-preview-branching" "Disable preview branching" Environments, needs(&[&[P::BranchingProductionDelete]], S::EnvironmentWrite), STANDARD;
    Get "/v1/projects/{ref}/branches" [] "v1-list-all-branches" "List all branches" Environments, needs(&[&[P::BranchingDevelopmentRead], &[P::BranchingProductionRead]], S::EnvironmentRead), STANDARD;
    Post "/v1/projects/{ref}/branches" [] "v1-create-a-branch" "Create a branch" Environments, needs(&[&[P::BranchingDevelopmentCreate], &[P::BranchingProductionCreate]], S::EnvironmentWrite).by_case(BRANCH), STANDARD;
    Get "/v1/projects/{ref}/branches/{name}" [] "v1-get-a-branch" "Get a branch" Environments, needs(&[&[P::BranchingDevelopmentRead], &[P::BranchingProductionRead]], S::EnvironmentRead), STANDARD;
    Delete "/v1/projects/{ref}/claim-token" [] "v1-delete-project-claim-token" "Delete project claim token" Projects, pat_only(&[&[P::OrganizationAdminWrite, P::ProjectAdminWrite]]), STANDARD;
    Get "/v1/projects/{ref}/claim-token" [] "v1-get-project-claim-token" "Get project claim token" Projects, pat_only(&[&[P::ProjectAdminRead]]), STANDARD;
    Post "/v1/projects/{ref}/claim-token" [] "v1-create-project-claim-token" "Create project claim token" Projects, pat_only(&[&[P::OrganizationAdminWrite, P::ProjectAdminWrite]]), STANDARD;
    Get "/v1/projects/{ref}/config/auth" [] "v1-get-auth-service-config" "Get auth service config" Auth, needs(&[&[P::AuthConfigRead]], S::AuthRead), STANDARD;
    Patch "/v1/projects/{ref}/config/auth" [] "v1-update-auth-service-config" "Update auth service config" Auth, needs(&[&[P::AuthConfigWrite, P::ProjectAdminWrite]], S::AuthWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/signing-keys" [] "v1-get-project-signing-keys" "Get project signing keys" Auth, needs(&[&[P::AuthSigningKeysRead]], S::SecretsRead), STANDARD;
    Post "/v1/projects/{ref}/config/auth/signing-keys" [] "v1-create-project-signing-key" "Create project signing key" Auth, needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/signing-keys/legacy" [] "v1-get-legacy-signing-key" "Get legacy signing key" Auth, needs(&[&[P::AuthSigningKeysRead]], S::SecretsRead), STANDARD;
    Post "/v1/projects/{ref}/config/auth/signing-keys/legacy" [] "v1-create-legacy-signing-key" "Create legacy signing key" Auth, needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite), STANDARD;
    Delete "/v1/projects/{ref}/config/auth/signing-keys/{id}" [] "v1-remove-project-signing-key" "Remove project signing key" Auth, needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/signing-keys/{id}" [] "v1-get-project-signing-key" "Get project signing key" Auth, pat_only(&[&[P::AuthSigningKeysRead]]), STANDARD;
    Patch "/v1/projects/{ref}/config/auth/signing-keys/{id}" [] "v1-update-project-signing-key" "Update project signing key" Auth, needs(&[&[P::AuthSigningKeysWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/sso/providers" [] "v1-list-all-sso-provider" "List all SSO provider" Auth, needs(&[&[P::AuthConfigRead]], S::AuthRead), STANDARD;
    Post "/v1/projects/{ref}/config/auth/sso/providers" [] "v1-create-a-sso-provider" "Create a SSO provider" Auth, needs(&[&[P::AuthConfigWrite]], S::AuthWrite), STANDARD;
    Delete "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}" [] "v1-delete-a-sso-provider" "Delete a SSO provider" Auth, needs(&[&[P::AuthConfigWrite]], S::AuthWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}" [] "v1-get-a-sso-provider" "Get a SSO provider" Auth, needs(&[&[P::AuthConfigRead]], S::AuthRead), STANDARD;
    Put "/v1/projects/{ref}/config/auth/sso/providers/{provider_id}" [] "v1-update-a-sso-provider" "Update a SSO provider" Auth, needs(&[&[P::AuthConfigWrite]], S::AuthWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/third-party-auth" [] "v1-list-project-tpa-integrations" "List project third-party auth integrations" Auth, needs(&[&[P::AuthConfigRead]], S::AuthRead), STANDARD;
    Post "/v1/projects/{ref}/config/auth/third-party-auth" [] "v1-create-project-tpa-integration" "Create project third-party auth integration" Auth, needs(&[&[P::AuthConfigWrite]], S::AuthWrite), STANDARD;
    Delete "/v1/projects/{ref}/config/auth/third-party-auth/{tpa_id}" [] "v1-delete-project-tpa-integration" "Delete project third-party auth integration" Auth, needs(&[&[P::AuthConfigWrite]], S::AuthWrite), STANDARD;
    Get "/v1/projects/{ref}/config/auth/third-party-auth/{tpa_id}" [] "v1-get-project-tpa-integration" "Get project third-party auth integration" Auth, needs(&[&[P::AuthConfigRead]], S::AuthRead), STANDARD;
    Get "/v1/projects/{ref}/config/disk" [] "v1-get-database-disk" "Get database disk" Projects, pat_only(&[&[P::InfraDiskConfigRead]]), STANDARD;
    Post "/v1/projects/{ref}/config/disk" [] "v1-modify-database-disk" "Modify database disk" Projects, pat_only(&[&[P::InfraDiskConfigWrite]]), STANDARD;
    Get "/v1/projects/{ref}/config/disk/autoscale" [] "v1-get-project-disk-autoscale-config" "Get project disk autoscale config" Projects, pat_only(&[&[P::InfraDiskConfigRead]]), STANDARD;
    Get "/v1/projects/{ref}/config/disk/util" [] "v1-get-disk-utilization" "Get disk utilization" Projects, pat_only(&[&[P::InfraDiskConfigRead]]), STANDARD;
    Get "/v1/projects/{ref}/config/realtime" [] "v1-get-realtime-config" "Get realtime config" Realtime, pat_only(&[&[P::RealtimeConfigRead]]), STANDARD;
    Patch "/v1/projects/{ref}/config/realtime" [] "v1-update-realtime-config" "Update realtime config" Realtime, pat_only(&[&[P::RealtimeConfigWrite]]), STANDARD;
    Post "/v1/projects/{ref}/config/realtime/shutdown" [] "v1-shutdown-realtime" "Shutdown realtime" Realtime, pat_only(&[&[P::RealtimeConfigWrite]]), STANDARD;
    Get "/v1/projects/{ref}/config/storage" [] "v1-get-storage-config" "Get storage config" Storage, pat_only(&[&[P::StorageConfigRead]]), STANDARD;
    Patch "/v1/projects/{ref}/config/storage" [] "v1-update-storage-config" "Update storage config" Storage, pat_only(&[&[P::StorageConfigWrite]]), STANDARD;
    Get "/v1/projects/{ref}/database/backups" [] "v1-list-all-backups" "List all backups" Database, needs(&[&[P::BackupsRead]], S::DatabaseRead), STANDARD;
    Post "/v1/projects/{ref}/database/backups/restore" [] "v1-restore-physical-backup" "Restore physical backup" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Post "/v1/projects/{ref}/database/backups/restore-pitr" [] "v1-restore-pitr-backup" "Restore PITR backup" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Get "/v1/projects/{ref}/database/backups/restore-point" [] "v1-get-restore-point" "Get restore point" Database, needs(&[&[P::BackupsRead]], S::DatabaseRead), STANDARD;
    Post "/v1/projects/{ref}/database/backups/restore-point" [] "v1-create-restore-point" "Create restore point" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Get "/v1/projects/{ref}/database/backups/schedule" [] "v1-get-backup-schedule" "Get backup schedule" Database, needs(&[&[P::BackupsRead]], S::DatabaseRead), STANDARD;
    Patch "/v1/projects/{ref}/database/backups/schedule" [] "v1-update-backup-schedule" "Update backup schedule" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Post "/v1/projects/{ref}/database/backups/undo" [] "v1-undo" "Undo the last restore" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Get "/v1/projects/{ref}/functions" [] "v1-list-all-functions" "List all functions" EdgeFunctions, needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead), STANDARD;
    Post "/v1/projects/{ref}/functions" [] "v1-create-a-function" "Create a function" EdgeFunctions, needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite), STANDARD;
    Put "/v1/projects/{ref}/functions" [] "v1-bulk-update-functions" "Bulk update functions" EdgeFunctions, needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite), STANDARD;
    Post "/v1/projects/{ref}/functions/deploy" [] "v1-deploy-a-function" "Deploy a function" EdgeFunctions, needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite), STANDARD;
    Delete "/v1/projects/{ref}/functions/{function_slug}" [] "v1-delete-a-function" "Delete a function" EdgeFunctions, needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v1/projects/{ref}/functions/{function_slug}" [] "v1-get-a-function" "Get a function" EdgeFunctions, needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead), STANDARD;
    Patch "/v1/projects/{ref}/functions/{function_slug}" [] "v1-update-a-function" "Update a function" EdgeFunctions, needs(&[&[P::EdgeFunctionsWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v1/projects/{ref}/functions/{function_slug}/body" [] "v1-get-a-function-body" "Get a function body" EdgeFunctions, needs(&[&[P::EdgeFunctionsRead]], S::EdgeFunctionsRead), STANDARD;
    Post "/v1/projects/{ref}/network-restrictions/review" [] "v1-review-network-restrictions" "Review network restrictions" Projects, needs(&[&[P::DatabaseNetworkRestrictionsWrite]], S::ProjectsWrite), STANDARD;
    Get "/v1/projects/{ref}/pgsodium" [] "v1-get-pgsodium-config" "Get pgsodium config" Secrets, needs(&[&[P::ProjectAdminWrite]], S::SecretsRead), STANDARD;
    Put "/v1/projects/{ref}/pgsodium" [] "v1-update-pgsodium-config" "Update pgsodium config" Secrets, needs(&[&[P::ProjectAdminWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/postgrest" [] "v1-get-postgrest-service-config" "Get Postgrest service config" Rest, needs(&[&[P::DataApiConfigRead], &[P::DataApiConfigRead, P::DataApiConfigSecretRead]], S::RestRead), STANDARD;
    Patch "/v1/projects/{ref}/postgrest" [] "v1-update-postgrest-service-config" "Update Postgrest service config" Rest, needs(&[&[P::DataApiConfigWrite]], S::RestWrite), STANDARD;
    Post "/v1/projects/{ref}/read-replicas/remove" [] "v1-remove-a-read-replica" "Remove a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), STANDARD;
    Post "/v1/projects/{ref}/read-replicas/setup" [] "v1-setup-a-read-replica" "Setup a read replica" Database, pat_only(&[&[P::InfraReadReplicasWrite]]), STANDARD;
    Get "/v1/projects/{ref}/readonly" [] "v1-get-readonly-mode-status" "Get readonly mode status" Database, needs(&[&[P::DatabaseReadonlyConfigRead]], S::DatabaseRead), STANDARD;
    Post "/v1/projects/{ref}/readonly/temporary-disable" [] "v1-disable-readonly-mode-temporarily" "Disable readonly mode temporarily" Database, needs(&[&[P::DatabaseReadonlyConfigWrite]], S::DatabaseWrite), STANDARD;
    Delete "/v1/projects/{ref}/secrets" [] "v1-bulk-delete-secrets" "Bulk delete secrets" Secrets, needs(&[&[P::EdgeFunctionsSecretsWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/secrets" [] "v1-list-all-secrets" "List all secrets" Secrets, needs(&[&[P::EdgeFunctionsSecretsRead]], S::SecretsRead), STANDARD;
    Post "/v1/projects/{ref}/secrets" [] "v1-bulk-create-secrets" "Bulk create secrets" Secrets, needs(&[&[P::EdgeFunctionsSecretsWrite]], S::SecretsWrite), STANDARD;
    Get "/v1/projects/{ref}/storage/buckets" [] "v1-list-all-buckets" "List all buckets" Storage, needs(&[&[P::StorageRead]], S::StorageRead), STANDARD;
    Post "/v1/projects/{ref}/upgrade" [] "v1-upgrade-postgres-version" "Upgrade Postgres version" Projects, needs(&[&[P::ProjectAdminWrite, P::DatabaseWrite]], S::ProjectsWrite), STANDARD;
    Get "/v1/projects/{ref}/upgrade/eligibility" [] "v1-get-postgres-upgrade-eligibility" "Get Postgres upgrade eligibility" Projects, needs(&[&[P::ProjectAdminRead, P::DatabaseRead]], S::ProjectsRead), STANDARD;
    Get "/v1/projects/{ref}/upgrade/status" [] "v1-get-postgres-upgrade-status" "Get Postgres upgrade status" Projects, needs(&[&[P::ProjectAdminRead, P::DatabaseRead]], S::ProjectsRead), STANDARD;
    Get "/v2/organizations/{slug}/integrations/github/connections" [] "v2-list-organization-github-connections" "List organization GitHub connections" Organizations, needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead), STANDARD;
    Get "/v2/organizations/{slug}/maintenance/windows" [] "v2-list-organization-maintenance-windows" "List organization maintenance windows" Organizations, needs(&[&[P::OrganizationAdminRead]], S::OrganizationsRead), STANDARD;
    Get "/v2/organizations/{slug}/projects" [] "v2-list-organization-projects" "List organization projects" Organizations, needs(&[&[P::OrganizationProjectsRead]], S::ProjectsRead), STANDARD;
    Get "/v2/organizations/{slug}/webhooks/deliveries/{id}" [] "v2-organizations-slug-webhooks-deliveries-id-get" "Get webhook delivery for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationRead]]), STANDARD;
    Post "/v2/organizations/{slug}/webhooks/deliveries/{id}/retry" [] "v2-organizations-slug-webhooks-deliveries-id-retry-post" "Retry webhook delivery for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Delete "/v2/organizations/{slug}/webhooks/endpoints" [] "v2-organizations-slug-webhooks-endpoints-delete" "Delete webhook endpoints for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Get "/v2/organizations/{slug}/webhooks/endpoints" [] "v2-organizations-slug-webhooks-endpoints-get" "Get webhook endpoints for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationRead]]), STANDARD;
    Post "/v2/organizations/{slug}/webhooks/endpoints" [] "v2-organizations-slug-webhooks-endpoints-post" "Create webhook endpoints for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Delete "/v2/organizations/{slug}/webhooks/endpoints/{id}" [] "v2-organizations-slug-webhooks-endpoints-id-delete" "Delete webhook endpoint for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Get "/v2/organizations/{slug}/webhooks/endpoints/{id}" [] "v2-organizations-slug-webhooks-endpoints-id-get" "Get webhook endpoint for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationRead]]), STANDARD;
    Patch "/v2/organizations/{slug}/webhooks/endpoints/{id}" [] "v2-organizations-slug-webhooks-endpoints-id-patch" "Update webhook endpoint for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Get "/v2/organizations/{slug}/webhooks/endpoints/{id}/deliveries" [] "v2-organizations-slug-webhooks-endpoints-id-deliveries-get" "Get webhook deliveries of an endpoint for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationRead]]), STANDARD;
    Post "/v2/organizations/{slug}/webhooks/endpoints/{id}/test" [] "v2-organizations-slug-webhooks-endpoints-id-test-post" "Test webhook endpoint for an organization" Webhooks, pat_only(&[&[P::PlatformWebhooksOrganizationWrite]]), STANDARD;
    Get "/v2/projects/{ref}/analytics/log-drains" [] "v2-list-log-drains" "List log drains" Analytics, needs(&[&[P::AnalyticsConfigRead]], S::AnalyticsConfigRead), STANDARD;
    Post "/v2/projects/{ref}/analytics/log-drains" [] "v2-create-log-drain" "Create log drain" Analytics, needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite), STANDARD;
    Delete "/v2/projects/{ref}/analytics/log-drains/{id}" [] "v2-delete-log-drain" "Delete log drain" Analytics, needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite), STANDARD;
    Put "/v2/projects/{ref}/analytics/log-drains/{id}" [] "v2-update-log-drain" "Update log drain" Analytics, needs(&[&[P::AnalyticsConfigWrite]], S::AnalyticsConfigWrite), STANDARD;
    Post "/v2/projects/{ref}/backups/download" [] "v2-download-project-backup" "Download project backup" Database, needs(&[&[P::BackupsWrite]], S::DatabaseWrite), STANDARD;
    Post "/v2/projects/{ref}/branches" [] "v2-create-a-branch" "Create a branch" Environments, needs(&[&[P::BranchingDevelopmentCreate], &[P::BranchingProductionCreate]], S::EnvironmentWrite).by_case(BRANCH), STANDARD;
    Get "/v2/projects/{ref}/compute" [] "v2-list-all-compute-instances" "List all compute instances" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), STANDARD;
    Delete "/v2/projects/{ref}/compute/{name}" [] "v2-delete-a-compute-instance" "Delete a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v2/projects/{ref}/compute/{name}" [] "v2-get-a-compute-instance" "Get a compute instance" Compute, needs(&[&[P::WorkersRead]], S::EdgeFunctionsRead), STANDARD;
    Post "/v2/projects/{ref}/compute/{name}/deploy" [] "v2-deploy-a-compute-instance" "Deploy a compute instance" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Post "/v2/projects/{ref}/compute/{name}/uploads" [] "v2-create-compute-instance-upload" "Create compute instance upload" Compute, needs(&[&[P::WorkersWrite]], S::EdgeFunctionsWrite), STANDARD;
    Get "/v2/projects/{ref}/config" [] "v2-get-project-config" "Get project config" Projects, pat_only(&[&[P::DatabaseConfigRead, P::DatabaseRead, P::DatabaseSslConfigRead, P::DatabaseNetworkRestrictionsRead, P::AuthConfigRead, P::DataApiConfigRead, P::RealtimeConfigRead, P::StorageConfigRead]]), STANDARD;
    Get "/v2/projects/{ref}/notebooks" [] "v2-list-notebooks" "List notebooks" Notebooks, needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead), STANDARD;
    Post "/v2/projects/{ref}/notebooks" [] "v2-create-notebook" "Create notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Delete "/v2/projects/{ref}/notebooks/{id}" [] "v2-delete-notebook" "Delete notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Get "/v2/projects/{ref}/notebooks/{id}" [] "v2-get-notebook" "Get notebook" Notebooks, needs(&[&[P::ProjectNotebooksRead]], S::DatabaseRead), STANDARD;
    Patch "/v2/projects/{ref}/notebooks/{id}" [] "v2-update-notebook" "Update notebook" Notebooks, needs(&[&[P::ProjectNotebooksWrite]], S::DatabaseWrite), STANDARD;
    Get "/v2/projects/{ref}/private-link/associations" [] "v2-list-private-link-associations" "List private link associations" Projects, pat_only(&[&[P::ProjectAdminRead]]), STANDARD;
    Post "/v2/projects/{ref}/private-link/associations" [] "v2-create-private-link-association" "Create private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}" [] "v2-delete-private-link-association" "Delete private link association" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/private-link/associations/aws-account/{aws_account_id}/database/{database_identifier}" [] "v2-delete-private-link-association-for-database" "Delete private link association for database" Projects, pat_only(&[&[P::ProjectAdminWrite]]), STANDARD;
    Post "/v2/projects/{ref}/transfers" [] "v2-transfer-a-project" "Transfer a project" Projects, pat_only(&[&[P::OrganizationAdminWrite]]), STANDARD;
    Post "/v2/projects/{ref}/transfers/previews" [] "v2-preview-a-project-transfer" "Preview a project transfer" Projects, pat_only(&[&[P::ProjectAdminRead]]), STANDARD;
    Get "/v2/projects/{ref}/webhooks/deliveries/{id}" [] "v2-projects-ref-webhooks-deliveries-id-get" "Get webhook delivery for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsRead]]), STANDARD;
    Post "/v2/projects/{ref}/webhooks/deliveries/{id}/retry" [] "v2-projects-ref-webhooks-deliveries-id-retry-post" "Retry webhook delivery for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/webhooks/endpoints" [] "v2-projects-ref-webhooks-endpoints-delete" "Delete webhook endpoints for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
    Get "/v2/projects/{ref}/webhooks/endpoints" [] "v2-projects-ref-webhooks-endpoints-get" "Get webhook endpoints for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsRead]]), STANDARD;
    Post "/v2/projects/{ref}/webhooks/endpoints" [] "v2-projects-ref-webhooks-endpoints-post" "Create webhook endpoints for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
    Delete "/v2/projects/{ref}/webhooks/endpoints/{id}" [] "v2-projects-ref-webhooks-endpoints-id-delete" "Delete webhook endpoint for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
    Get "/v2/projects/{ref}/webhooks/endpoints/{id}" [] "v2-projects-ref-webhooks-endpoints-id-get" "Get webhook endpoint for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsRead]]), STANDARD;
    Patch "/v2/projects/{ref}/webhooks/endpoints/{id}" [] "v2-projects-ref-webhooks-endpoints-id-patch" "Update webhook endpoint for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
    Get "/v2/projects/{ref}/webhooks/endpoints/{id}/deliveries" [] "v2-projects-ref-webhooks-endpoints-id-deliveries-get" "Get webhook deliveries of an endpoint for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsRead]]), STANDARD;
    Post "/v2/projects/{ref}/webhooks/endpoints/{id}/test" [] "v2-projects-ref-webhooks-endpoints-id-test-post" "Test webhook endpoint for a project" Webhooks, pat_only(&[&[P::PlatformWebhooksProjectsWrite]]), STANDARD;
}
