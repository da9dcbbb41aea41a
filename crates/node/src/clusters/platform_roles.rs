//! Roles of the platform in the servers of projects.

/// The superuser of a project's cluster. Has no password.
pub const SUPERUSER: &str = "supabase_admin";

/// The owner of a project's database. Customers log in as this role with a password.
pub(super) const OWNER: &str = "postgres";

/// Gantry's login role for `postgres`: it switches to the owner at login, and no other client can
/// use it.
///
/// The owner itself cannot have a second authentication method: PostgreSQL chooses the method by
/// role and database, and proxied connections have the same peer account as Gantry.
pub const OWNER_LOGIN: &str = "gantry_owner";

/// Gantry's login role for rows of the tables of Auth and Storage. No superuser: it inherits the
/// rights of the roles that own these tables. Triggers and policies of the tenant do not run in its
/// sessions, by its attributes and settings.
pub const ROWS_LOGIN: &str = "gantry_rows";

/// Roles that own the tables of the platform's services. None of them is the tenant's: they are
/// made with the cluster, before the tenant can create a role.
pub const SERVICE_ROLES: [&str; 3] = [
    "supabase_auth_admin",
    "supabase_storage_admin",
    "supabase_realtime_admin",
];

/// A database of the superuser, which the owner of a project cannot close, rename or drop.
pub(super) const REPAIR_DATABASE: &str = "template1";

/// Roles of a project's cluster that Gantry's account logs in as.
pub(super) const PLATFORM_LOGINS: [&str; 4] = [
    SUPERUSER,
    OWNER_LOGIN,
    ROWS_LOGIN,
    "supabase_read_only_user",
];

/// Returns the login role and the startup parameter with which peer authentication yields `role`.
pub fn peer_login(role: &str) -> (&str, Option<(&'static str, &'static str)>) {
    if role == OWNER {
        (OWNER_LOGIN, Some(("role", OWNER)))
    } else {
        (role, None)
    }
}
