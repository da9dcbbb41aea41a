//! The option for header fields that proxies and services read differently.

use clap::ValueEnum;

/// Treatment of header fields with underscores in their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnderscoreHeaders {
    /// Removed from requests.
    Drop,
    /// Forwarded, except those that read as fields of the proxy.
    Pass,
}
