//! The sections of the configuration.

/// A section of the configuration: a heading of help texts, and a table of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Heading in help texts.
    pub heading: &'static str,
    /// Name of the table in the file.
    pub table: &'static str,
    /// Prefixes of flags that the keys of the table leave out: `--db-listen` is `listen` in the
    /// table `databases`.
    prefixes: &'static [&'static str],
}

impl Section {
    const fn new(
        heading: &'static str,
        table: &'static str,
        prefixes: &'static [&'static str],
    ) -> Self {
        Self {
            heading,
            table,
            prefixes,
        }
    }

    /// Returns the section with this heading.
    pub fn of_heading(heading: &str) -> Option<&'static Self> {
        ALL.iter().find(|section| section.heading == heading)
    }

    /// Returns the key of a flag. A flag that is named like the table has its value name as key.
    pub fn key(&self, flag: &str, value_name: Option<&str>) -> String {
        if flag == self.table
            && let Some(value_name) = value_name
        {
            return value_name.to_lowercase();
        }
        let without_prefix = |prefix: &&str| flag.strip_prefix(*prefix);
        let short = self.prefixes.iter().find_map(without_prefix);
        short.unwrap_or(flag).replace('-', "_")
    }
}

/// Data folder, control database and sealing key.
pub const DATA: Section = Section::new("Data", "data", &["data-"]);
/// Addresses and certificate of the API.
pub const API: Section = Section::new("API", "api", &[]);
/// OpenID Connect provider for signing in.
pub const SIGN_IN: Section = Section::new("Sign-in", "sign_in", &[]);
/// Store of the rate-limit counters.
pub const RATE_LIMITS: Section = Section::new("Rate limits", "rate_limits", &["limits-"]);
/// Addresses and certificate for PostgreSQL clients.
pub const DATABASES: Section = Section::new("Database connections", "databases", &["db-"]);
/// Proxy in front of services.
pub const EDGE: Section = Section::new("Proxy of services", "edge", &["edge-"]);
/// Services of projects.
pub const SERVICES: Section = Section::new("Services", "services", &["services-"]);
/// Certificates for custom hostnames.
pub const ACME: Section = Section::new("Custom hostnames", "acme", &["acme-"]);
/// Servers and limits of projects.
pub const PROJECTS: Section = Section::new("Projects", "projects", &["project-"]);
/// Limits of branches.
pub const BRANCHES: Section = Section::new("Branches", "branches", &["branch-", "branches-"]);
/// Backups.
pub const BACKUPS: Section = Section::new("Backups", "backups", &["backups-"]);
/// Log lines of projects.
pub const LOGS: Section = Section::new("Logs of projects", "logs", &["logs-"]);
/// Requests to other servers.
pub const OUTBOUND: Section = Section::new("Requests to other servers", "outbound", &["outbound-"]);
/// This machine among others.
pub const NODE: Section = Section::new("Node", "node", &["node-"]);
/// Log of this process.
pub const LOG: Section = Section::new("Log of this process", "log", &["log-"]);

/// All sections, in the order of the file.
pub const ALL: [Section; 15] = [
    DATA,
    API,
    SIGN_IN,
    RATE_LIMITS,
    DATABASES,
    EDGE,
    SERVICES,
    ACME,
    PROJECTS,
    BRANCHES,
    BACKUPS,
    LOGS,
    OUTBOUND,
    NODE,
    LOG,
];
