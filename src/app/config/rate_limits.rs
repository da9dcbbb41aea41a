//! Options of the rate limits.

use clap::Args;
use secrecy::SecretString;

use super::sections;

/// Store of the rate-limit counters.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = sections::RATE_LIMITS.heading)]
pub struct RateLimitFlags {
    /// Store of the rate-limit counters: `postgres` for the control database, `memory` for this
    /// process only, or the URL of a Valkey or Redis server (`redis://host:port`,
    /// `redis+unix:///path`) without eviction. Default: `postgres` with --database-url, otherwise
    /// `memory`.
    #[arg(
        long,
        env = "GANTRY_LIMITS_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub limits_url: Option<SecretString>,

    /// Minimum timeout of a request to the shared counters, in milliseconds. The timeout grows up
    /// to two seconds while the store is slow. When the store is unreachable, each of several
    /// processes rejects requests until the windows that others may have used have ended, and then
    /// admits its share of each limit; a single process continues with its own counters.
    #[arg(long, env = "GANTRY_LIMITS_DEADLINE_MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=10_000), value_name = "MS")]
    pub limits_deadline_ms: u64,
}
