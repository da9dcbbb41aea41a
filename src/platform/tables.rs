//! The tables of the control database that other parts react to, each declared once: whether a
//! change is published, which caches it invalidates, which tasks it wakes, and what happens to its
//! rows when a project is removed.
//!
//! A test compares the list with the triggers and foreign keys of the migrations.

use gantry_base::ids::ProjectId;
use tokio_postgres::Transaction;

use crate::platform::error::{Context, Error};

/// A cache in the memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// Personal access tokens by digest.
    AccessTokens,
    /// OAuth access tokens by digest.
    OauthTokens,
    /// Organizations and the roles of their members.
    Organizations,
    /// Projects and the roles of their members.
    Projects,
    /// Names of organizations and projects that do not exist for a user.
    UnknownNames,
    /// Serialized lists of projects.
    ProjectListings,
    /// Host names of the service proxy, with certificates and upstreams.
    Hosts,
    /// Whether the projects behind host names are running: reread with a short delay.
    HostStatus,
    /// API keys that the service proxy accepts.
    ApiKeys,
    /// Live versions of functions, and the numbers of their environments.
    Functions,
    /// Nodes of projects.
    ProjectNodes,
    /// Hosts that requests of organizations and projects may go to.
    OutboundHosts,
}

/// A background task that reacts to notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Drives projects to their desired state.
    Reconciler,
    /// Creates and revokes temporary logins.
    TemporaryAccess,
    /// Rereads the rate limits that operators changed.
    RateLimitOverrides,
    /// Starts and stops the delivery of log drains.
    LogDrains,
    /// Starts and stops services of projects.
    Services,
    /// Carries out runs of branches.
    Branches,
    /// Passes new events on to the requests that wait for them.
    Events,
    /// Delivers events to webhook endpoints.
    PlatformWebhooks,
}

impl Task {
    /// Every task.
    pub const ALL: &[Self] = &[
        Self::Reconciler,
        Self::TemporaryAccess,
        Self::RateLimitOverrides,
        Self::LogDrains,
        Self::Services,
        Self::Branches,
        Self::Events,
        Self::PlatformWebhooks,
    ];
}

/// The treatment of a table's rows of a project when the project is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectRemoval {
    /// The table has no column `project_id`.
    Unrelated,
    /// The rows are deleted in the transaction that removes the project.
    Delete,
    /// Foreign keys delete the rows with those of another table.
    Cascade,
    /// The rows stay, for this reason.
    Keep(&'static str),
}

/// The declaration of a table.
#[derive(Debug)]
struct Declaration {
    name: &'static str,
    /// Whether a trigger publishes changes to all nodes.
    published: bool,
    /// Caches that a change invalidates, on this node at once and elsewhere by notification.
    caches: &'static [Cache],
    /// Tasks that a notification wakes.
    wakes: &'static [Task],
    on_project_removed: ProjectRemoval,
}

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident = $name:literal, $published:expr, $caches:expr, $wakes:expr, $removal:expr;)*) => {
        /// A table that other parts react to. The order is that in which rows are deleted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Table {
            $($(#[$doc])* $table,)*
        }

        impl Table {
            /// Every declared table.
            pub const ALL: &[Self] = &[$(Self::$table),*];

            fn declaration(self) -> &'static Declaration {
                match self {
                    $(Self::$table => {
                        const DECLARATION: Declaration = Declaration {
                            name: $name,
                            published: $published,
                            caches: $caches,
                            wakes: $wakes,
                            on_project_removed: $removal,
                        };
                        &DECLARATION
                    })*
                }
            }
        }
    };
}

const PUBLISHED: bool = true;
const QUIET: bool = false;
const MEMBERSHIP: &[Cache] = &[
    Cache::OauthTokens,
    Cache::Organizations,
    Cache::Projects,
    Cache::UnknownNames,
];
const MEMBERS: &[Cache] = &[
    Cache::OauthTokens,
    Cache::Organizations,
    Cache::Projects,
    Cache::UnknownNames,
    Cache::ProjectListings,
];
const KEPT_FOR_ROLES: &str = "deleted with the member or the project row";

tables! {
    /// Users.
    Users = "users", PUBLISHED, &[Cache::AccessTokens, Cache::OauthTokens], &[], ProjectRemoval::Unrelated;
    /// Organizations.
    Organizations = "organizations", PUBLISHED, &[Cache::Organizations, Cache::UnknownNames, Cache::ProjectListings], &[], ProjectRemoval::Unrelated;
    /// Members of organizations.
    Members = "members", PUBLISHED, MEMBERS, &[Task::TemporaryAccess], ProjectRemoval::Unrelated;
    /// Roles on single projects.
    ProjectRoles = "project_roles", PUBLISHED, MEMBERSHIP, &[Task::TemporaryAccess], ProjectRemoval::Keep(KEPT_FOR_ROLES);
    /// Personal access tokens.
    Tokens = "tokens", PUBLISHED, &[Cache::AccessTokens], &[], ProjectRemoval::Unrelated;
    /// Registered OAuth applications.
    OauthApplications = "oauth_applications", PUBLISHED, &[Cache::OauthTokens], &[], ProjectRemoval::Unrelated;
    /// Approvals of OAuth applications.
    OauthGrants = "oauth_grants", PUBLISHED, &[Cache::OauthTokens], &[], ProjectRemoval::Unrelated;
    /// OAuth access tokens.
    OauthAccessTokens = "oauth_access_tokens", PUBLISHED, &[Cache::OauthTokens], &[], ProjectRemoval::Unrelated;
    /// Projects: desired and observed state.
    Projects = "projects", PUBLISHED, &[Cache::Projects, Cache::UnknownNames, Cache::ProjectListings, Cache::HostStatus], &[Task::Reconciler, Task::TemporaryAccess, Task::Branches], ProjectRemoval::Unrelated;
    /// Rate limits that operators changed.
    LimitOverrides = "limit_overrides", PUBLISHED, &[], &[Task::RateLimitOverrides], ProjectRemoval::Unrelated;
    /// API keys of projects.
    ApiKeys = "api_keys", PUBLISHED, &[Cache::ApiKeys], &[], ProjectRemoval::Cascade;
    /// The secret from which a project's legacy API keys are signed.
    KeyRings = "key_rings", PUBLISHED, &[Cache::ApiKeys], &[], ProjectRemoval::Delete;
    /// Invitations to temporary access.
    TemporaryAccessInvitations = "jit_invitations", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Temporary logins.
    TemporaryLogins = "jit_logins", PUBLISHED, &[], &[Task::TemporaryAccess], ProjectRemoval::Delete;
    /// Grants of temporary access.
    TemporaryAccessGrants = "jit_grants", PUBLISHED, &[], &[Task::TemporaryAccess], ProjectRemoval::Delete;
    /// Whether a project has temporary access switched on.
    TemporaryAccessSettings = "jit_settings", PUBLISHED, &[], &[Task::TemporaryAccess], ProjectRemoval::Delete;
    /// Saved SQL snippets.
    Snippets = "snippets", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Notebooks.
    Notebooks = "notebooks", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Approvals of destructive requests in protected projects.
    Approvals = "approvals", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Network restrictions and TLS enforcement of databases.
    ProjectNetworks = "project_networks", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Addresses banned from databases.
    NetworkBans = "network_bans", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Vanity subdomains.
    VanitySubdomains = "vanity_subdomains", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Keep("released by domains::vanity, which reserves the name for its organization");
    /// Custom hostnames.
    CustomHostnames = "custom_hostnames", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Delete;
    /// Certificates of custom hostnames.
    HostnameCertificates = "hostname_certificates", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Unrelated;
    /// ACME orders in progress.
    AcmeOrders = "acme_orders", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Unrelated;
    /// Names that the operator blocked.
    BlockedHostnames = "blocked_hostnames", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Unrelated;
    /// Upstreams that the operator set for a project's services.
    ProjectUpstreams = "project_upstreams", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Delete;
    /// Whether the service proxy checks a project's API keys.
    ProjectKeyChecks = "project_key_checks", PUBLISHED, &[Cache::Hosts], &[], ProjectRemoval::Delete;
    /// Keys that sign tokens of projects' users.
    SigningKeys = "signing_keys", PUBLISHED, &[Cache::ApiKeys], &[], ProjectRemoval::Delete;
    /// Other sign-in services. Projects accept their tokens.
    ThirdPartyAuth = "third_party_auth", PUBLISHED, &[Cache::ApiKeys], &[], ProjectRemoval::Delete;
    /// Settings of projects' Data APIs.
    RestSettings = "rest_settings", PUBLISHED, &[], &[Task::Services], ProjectRemoval::Delete;
    /// Settings of projects' Auth, Storage and Realtime services.
    ServiceSettings = "service_settings", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Settings of the documents that were applied last.
    AppliedSettings = "applied_settings", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Settings before a change that the server has not started with.
    SettingsFallbacks = "settings_fallbacks", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Versions of Edge Functions.
    FunctionVersions = "function_versions", PUBLISHED, &[Cache::Functions], &[Task::Services], ProjectRemoval::Cascade;
    /// Edge Functions.
    Functions = "functions", PUBLISHED, &[Cache::Functions], &[Task::Services], ProjectRemoval::Delete;
    /// Secrets of functions. A change is announced by the number of the environment.
    FunctionSecrets = "function_secrets", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Numbers of the environments of functions.
    FunctionEnvironments = "function_environments", PUBLISHED, &[Cache::Functions], &[Task::Services], ProjectRemoval::Delete;
    /// Keys with which log lines are sent.
    IngestKeys = "ingest_keys", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Action runs of branches.
    ActionRuns = "action_runs", PUBLISHED, &[], &[Task::Branches], ProjectRemoval::Delete;
    /// Branches of projects.
    Branches = "branches", PUBLISHED, &[Cache::Projects, Cache::UnknownNames, Cache::ProjectListings], &[Task::Branches], ProjectRemoval::Delete;
    /// SQL that masks data of branches.
    BranchMaskings = "branch_maskings", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Upgrades of projects to another version of PostgreSQL.
    ProjectUpgrades = "project_upgrades", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Claim tokens of projects.
    ProjectClaims = "project_claims", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Rows of removed projects that can be restored.
    RemovedProjectRows = "removed_project_rows", QUIET, &[], &[], ProjectRemoval::Keep("deleted by projects::held at the end of the hold");
    /// SQL that fills empty branches.
    BranchSeeds = "branch_seeds", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Clusters of projects that were rebuilt on other nodes.
    SupersededClusters = "superseded_clusters", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Moves of projects between nodes.
    ProjectMoves = "project_moves", PUBLISHED, &[Cache::ProjectNodes], &[Task::Reconciler], ProjectRemoval::Delete;
    /// Restores of projects.
    Restores = "restores", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Restores of single tables.
    TableRestores = "table_restores", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Restore points.
    RestorePoints = "restore_points", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Base backups.
    BaseBackups = "base_backups", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Archives of the write-ahead log.
    Archives = "archives", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Times of daily backups.
    BackupSchedules = "backup_schedules", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Keys of backups.
    BackupKeys = "backup_keys", QUIET, &[], &[], ProjectRemoval::Delete;
    /// Hosts that requests of organizations and projects may go to.
    OutboundHosts = "outbound_hosts", PUBLISHED, &[Cache::OutboundHosts], &[], ProjectRemoval::Delete;
    /// Log drains.
    LogDrains = "log_drains", PUBLISHED, &[], &[Task::LogDrains], ProjectRemoval::Delete;
    /// Events of organizations.
    Events = "events", PUBLISHED, &[], &[Task::Events, Task::PlatformWebhooks], ProjectRemoval::Unrelated;
    /// Endpoints of platform webhooks.
    WebhookEndpoints = "webhook_endpoints", QUIET, &[], &[], ProjectRemoval::Delete;
}

impl Table {
    /// The name in the control database, which is also the payload of its notifications.
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// The declared table of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|table| table.name() == name)
    }

    /// Whether a trigger publishes changes to all nodes.
    pub fn is_published(self) -> bool {
        self.declaration().published
    }

    /// Caches that a change invalidates.
    pub fn caches(self) -> &'static [Cache] {
        self.declaration().caches
    }

    /// Tasks that a notification wakes.
    pub fn wakes(self) -> &'static [Task] {
        self.declaration().wakes
    }

    /// The treatment of its rows when a project is removed.
    pub fn on_project_removed(self) -> ProjectRemoval {
        self.declaration().on_project_removed
    }
}

/// Deletes the rows of a removed project from every table that declares [`ProjectRemoval::Delete`].
pub async fn delete_project_rows(
    transaction: &Transaction<'_>,
    project: ProjectId,
) -> Result<(), Error> {
    for table in Table::ALL {
        if table.on_project_removed() == ProjectRemoval::Delete {
            let sql = format!("delete from {} where project_id = $1", table.name());
            transaction
                .execute(&sql, &[&project.0])
                .await
                .context("deleting the rows of a removed project")?;
        }
    }
    Ok(())
}
