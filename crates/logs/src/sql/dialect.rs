//! The SQL dialects of clients.

/// The SQL dialect of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// One table per source with `metadata` as nested records.
    BigQuery,
    /// One table `logs` with `log_attributes` as a map.
    ClickHouse,
}
