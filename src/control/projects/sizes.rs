//! Compute sizes: the share of the machine that the server of a project gets.
//!
//! The operator's limits of a project (`--project-memory` and others) are those of the smallest
//! size. A larger size has a multiple of them, and settings of PostgreSQL that use it. Settings
//! that the owner chose come before those of the size.

use gantry_node::clusters::ResourceLimits;
use schemars::JsonSchema;
use serde::Deserialize;

macro_rules! sizes {
    ($(
        $variant:ident = $code:literal, $name:literal,
        $factor:literal, $cores:literal, $direct:literal, $pool:literal, $pooled:literal;
    )*) => {
        /// Compute size of the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
        #[expect(missing_docs, reason = "each name is the size's code")]
        pub enum InstanceSize { $(#[serde(rename = $code)] $variant),* }

        impl InstanceSize {
            /// Every size, the smallest first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Every code.
            pub const CODES: &'static [&'static str] = &[$($code),*];

            /// Code on the wire.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// Name in listings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            const fn facts(self) -> SizeFacts {
                match self {
                    $(Self::$variant => SizeFacts {
                        factor: $factor,
                        cores: $cores,
                        connections: ConnectionBudget {
                            direct: $direct,
                            pool: $pool,
                            pooled: $pooled,
                        },
                    }),*
                }
            }
        }
    };
}

struct SizeFacts {
    /// Multiple of the limits of the smallest size.
    factor: u64,
    /// Processors of the contract, from which the number of workers derives.
    cores: u64,
    connections: ConnectionBudget,
}

/// The connections of a project's database by the way that they are made. Each way keeps its own
/// bound, so that none takes the places of another (decision 0165).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionBudget {
    /// Sessions of clients of the PostgreSQL port.
    pub direct: u32,
    /// Server connections of the pooler, for each database.
    pub pool: u32,
    /// Clients of the pooler.
    pub pooled: u32,
}

impl ConnectionBudget {
    /// Sessions of the Data API, if its owner does not choose their number: those of its requests,
    /// and the one by which it learns of changes.
    pub const DATA_API: u32 = 11;
    /// Sessions of SQL over HTTP, migrations and generated types.
    pub const SQL_OVER_HTTP: u32 = 6;
    /// Sessions of all functions.
    pub const FUNCTIONS: u32 = 16;
    /// Sessions of Auth, Storage, Realtime and Gantry, of which PostgreSQL reserves three for
    /// superusers.
    pub const PLATFORM: u32 = 10;
    /// Longest time that a client of the pooler waits for a server connection, in seconds.
    pub const QUERY_WAIT_SECS: u32 = 120;

    /// Places that PostgreSQL keeps for superusers (`superuser_reserved_connections`).
    const RESERVED: u32 = 3;
    const OTHERS: u32 = Self::DATA_API + Self::SQL_OVER_HTTP + Self::FUNCTIONS + Self::PLATFORM;

    /// Returns the budget of a project with this compute size, and with the `max_connections` that
    /// its owner chose, if any.
    pub fn of(size: &str, chosen: Option<i64>) -> Self {
        let size = InstanceSize::of_code(size).unwrap_or(InstanceSize::Micro);
        let budget = size.connections();
        let chosen = chosen.and_then(|total| u32::try_from(total).ok());
        chosen.map_or(budget, |total| budget.within(total))
    }

    /// Returns the value of `max_connections`.
    pub const fn total(self) -> u32 {
        self.direct + self.pool + Self::OTHERS
    }

    /// Returns the budget of a server with another `max_connections`, which its owner chose. A
    /// smaller number than [`Self::total`] has no room for all ways at once: clients of the
    /// PostgreSQL port then share it with the others, and the pool gets at most a third of it.
    #[must_use]
    pub fn within(self, total: u32) -> Self {
        let direct = match total.checked_sub(self.total()) {
            Some(further) => self.direct + further,
            None => total.saturating_sub(Self::RESERVED).max(1),
        };
        Self {
            direct,
            pool: self.pool.min(total / 3).max(1),
            ..self
        }
    }
}

// The sizes of the contract with their proportions: code, name, multiple of the limits, processors;
// then sessions, server connections of the pooler, and clients of the pooler.
sizes! {
    Nano = "nano", "Nano", 1, 2, 60, 15, 200;
    Micro = "micro", "Micro", 1, 2, 60, 15, 200;
    Small = "small", "Small", 2, 2, 90, 20, 400;
    Medium = "medium", "Medium", 4, 2, 120, 25, 600;
    Large = "large", "Large", 8, 2, 160, 35, 800;
    XLarge = "xlarge", "XL", 16, 4, 240, 50, 1000;
    X2 = "2xlarge", "2XL", 32, 8, 380, 75, 1500;
    X4 = "4xlarge", "4XL", 64, 16, 480, 100, 3000;
    X8 = "8xlarge", "8XL", 128, 32, 490, 120, 3000;
    X12 = "12xlarge", "12XL", 192, 48, 500, 150, 3000;
    X16 = "16xlarge", "16XL", 256, 64, 500, 150, 3000;
    X24 = "24xlarge", "24XL", 384, 96, 500, 150, 3000;
    X24Memory = "24xlarge_optimized_memory", "24XL - Optimized Memory", 384, 96, 500, 150, 3000;
    X24Cpu = "24xlarge_optimized_cpu", "24XL - Optimized CPU", 384, 96, 500, 150, 3000;
    X24HighMemory = "24xlarge_high_memory", "24XL - High Memory", 384, 96, 500, 150, 3000;
    X48 = "48xlarge", "48XL", 768, 192, 500, 150, 3000;
    X48Memory = "48xlarge_optimized_memory", "48XL - Optimized Memory", 768, 192, 500, 150, 3000;
    X48Cpu = "48xlarge_optimized_cpu", "48XL - Optimized CPU", 768, 192, 500, 150, 3000;
    X48HighMemory = "48xlarge_high_memory", "48XL - High Memory", 768, 192, 500, 150, 3000;
}

/// Largest multiple of the limit of processes: sessions do not grow further.
const PROCESSES_FACTOR_MAX: u64 = 4;
/// Largest shares that control groups accept.
const CPU_WEIGHT_MAX: u32 = 10_000;
const IO_WEIGHT_MAX: u32 = 1000;
/// Most worker processes, and most for one query.
const WORKERS_MAX: u64 = 64;
const WORKERS_OF_QUERY_MAX: u64 = 16;
/// Part of the memory for shared buffers.
const BUFFERS_DIVISOR: u64 = 8;

impl InstanceSize {
    /// Returns the size with this code.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|size| size.code() == code)
    }

    /// Returns whether the limits are those of the smallest size.
    pub const fn is_smallest(self) -> bool {
        self.factor() == 1
    }

    /// Returns the multiple of the limits of the smallest size.
    pub const fn factor(self) -> u64 {
        self.facts().factor
    }

    /// Returns whether two sizes have the same limits and settings.
    pub fn limits_equal(self, other: Self) -> bool {
        self == other || self.is_smallest() && other.is_smallest()
    }

    /// Returns the limits of this size. `smallest` are those of the smallest one.
    pub fn limits(self, smallest: &ResourceLimits) -> ResourceLimits {
        let factor = self.factor();
        let share = u32::try_from(factor).unwrap_or(u32::MAX);
        ResourceLimits {
            memory_bytes: smallest.memory_bytes.saturating_mul(factor),
            process_memory_bytes: smallest.process_memory_bytes.saturating_mul(factor),
            processes: (smallest.processes).saturating_mul(factor.min(PROCESSES_FACTOR_MAX)),
            cpu_weight: (smallest.cpu_weight)
                .saturating_mul(share)
                .min(CPU_WEIGHT_MAX),
            io_weight: (smallest.io_weight)
                .saturating_mul(share)
                .min(IO_WEIGHT_MAX),
            ..*smallest
        }
    }

    /// Returns the connections of a server of this size.
    pub const fn connections(self) -> ConnectionBudget {
        self.facts().connections
    }

    /// Returns the settings of PostgreSQL of this size with these limits. The smallest size has
    /// those of the template. Older clusters have a smaller number of connections.
    pub fn parameters(self, limits: &ResourceLimits) -> Vec<(&'static str, String)> {
        let sessions = ("max_connections", self.connections().total().to_string());
        if self.is_smallest() {
            return vec![sessions];
        }
        let cores = self.facts().cores;
        let megabytes = limits.memory_bytes >> 20;
        let workers = (2 * cores).clamp(8, WORKERS_MAX);
        vec![
            ("effective_cache_size", format!("{}MB", megabytes / 4 * 3)),
            sessions,
            (
                "max_parallel_workers",
                cores.clamp(2, WORKERS_MAX).to_string(),
            ),
            (
                "max_parallel_workers_per_gather",
                (cores / 2).clamp(1, WORKERS_OF_QUERY_MAX).to_string(),
            ),
            ("max_worker_processes", workers.to_string()),
            (
                "shared_buffers",
                format!("{}MB", megabytes / BUFFERS_DIVISOR),
            ),
        ]
    }
}

/// A size that the operator offers, with its price.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OfferedSize {
    /// The size.
    pub size: InstanceSize,
    /// Price for an hour, in dollars. Nothing is billed by Gantry.
    pub hourly_price: f64,
}

impl std::str::FromStr for OfferedSize {
    type Err = &'static str;

    /// Parses `small` and `small=0.02`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (code, price) = text.split_once('=').unwrap_or((text, "0"));
        let size = InstanceSize::of_code(code.trim())
            .ok_or("expected a compute size, such as small or 2xlarge")?;
        let hourly_price = price.trim().parse().ok();
        let hourly_price = hourly_price.filter(|price: &f64| price.is_finite() && *price >= 0.0);
        Ok(Self {
            size,
            hourly_price: hourly_price.ok_or("expected a price for an hour, such as 0.02")?,
        })
    }
}

/// The sizes that projects can have.
#[derive(Debug, Clone)]
pub struct SizeTable(Vec<OfferedSize>);

impl Default for SizeTable {
    /// All sizes, at no price.
    fn default() -> Self {
        Self::new(&[], &ResourceLimits::default(), None)
    }
}

impl SizeTable {
    /// Returns the table of the operator, or without one, all sizes with at most half of the
    /// machine's memory. The smallest size is always part of it.
    pub fn new(
        operator: &[OfferedSize],
        smallest: &ResourceLimits,
        machine_bytes: Option<u64>,
    ) -> Self {
        let free = |size| OfferedSize {
            size,
            hourly_price: 0.0,
        };
        let fits = |size: &InstanceSize| {
            let needed = size.limits(smallest).memory_bytes;
            machine_bytes.is_none_or(|machine| needed <= machine / 2)
        };
        let mut sizes = if operator.is_empty() {
            let all = InstanceSize::ALL.iter().copied();
            all.filter(fits).map(free).collect()
        } else {
            operator.to_vec()
        };
        sizes.retain(|offered| offered.size != InstanceSize::Nano);
        if !sizes
            .iter()
            .any(|offered| offered.size == InstanceSize::Micro)
        {
            sizes.push(free(InstanceSize::Micro));
        }
        sizes.sort_by_key(|offered| offered.size);
        sizes.dedup_by_key(|offered| offered.size);
        Self(sizes)
    }

    /// Returns the sizes, the smallest first.
    pub fn all(&self) -> &[OfferedSize] {
        &self.0
    }

    /// Returns whether a project can get this size.
    pub fn offers(&self, size: InstanceSize) -> bool {
        self.0.iter().any(|offered| offered.size == size)
    }

    /// Returns the price of a size for an hour.
    pub fn hourly_price(&self, size: InstanceSize) -> f64 {
        let offered = self.0.iter().find(|offered| offered.size == size);
        offered.map_or(0.0, |offered| offered.hourly_price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_sizes_have_larger_limits_and_settings_that_fit_them() {
        let smallest = ResourceLimits::default();
        let mut before = smallest;
        for size in InstanceSize::ALL {
            let limits = size.limits(&smallest);
            assert!(limits.memory_bytes >= before.memory_bytes, "{size:?}");
            assert!(limits.processes >= before.processes, "{size:?}");
            assert!(
                (1..=CPU_WEIGHT_MAX).contains(&limits.cpu_weight),
                "{size:?}"
            );
            assert!((1..=IO_WEIGHT_MAX).contains(&limits.io_weight), "{size:?}");
            assert_eq!(limits.disk_hard_bytes, smallest.disk_hard_bytes);
            let parameters = size.parameters(&limits);
            assert_eq!(parameters.len() == 1, size.is_smallest());
            let connections = size.connections();
            assert!(connections.pool <= connections.direct, "{size:?}");
            assert!(connections.pooled >= 200, "{size:?}");
            assert_eq!(InstanceSize::of_code(size.code()), Some(*size));
            before = limits;
        }
        assert_eq!(InstanceSize::of_code("vast"), None);
    }

    #[test]
    fn budget_within_another_number_of_connections_leaves_a_place_to_each() {
        let smallest = InstanceSize::Micro.connections();
        assert_eq!(smallest.within(smallest.total()), smallest);
        for (total, direct, pool) in [(1, 1, 1), (30, 27, 10), (60, 57, 15), (150, 92, 15)] {
            let budget = smallest.within(total);
            assert_eq!((budget.direct, budget.pool), (direct, pool), "{total}");
        }
        let template = include_str!("../../../crates/node/src/clusters/recipes/project.conf");
        let line = format!("\nmax_connections = {}\n", smallest.total());
        assert!(template.contains(&line), "the template has{line}");
    }

    #[test]
    fn table_has_the_sizes_of_the_operator_or_those_that_fit() {
        let smallest = ResourceLimits::default();
        let codes = |table: &SizeTable| -> Vec<&str> {
            table
                .all()
                .iter()
                .map(|offered| offered.size.code())
                .collect()
        };
        let fitting = SizeTable::new(&[], &smallest, Some(8 << 30));
        assert_eq!(codes(&fitting), ["micro", "small", "medium"]);
        let tiny = SizeTable::new(&[], &smallest, Some(1 << 30));
        assert_eq!(codes(&tiny), ["micro"]);
        let operator = ["large=0.5".parse().unwrap(), "small".parse().unwrap()];
        let chosen = SizeTable::new(&operator, &smallest, Some(1 << 30));
        assert_eq!(codes(&chosen), ["micro", "small", "large"]);
        assert!((chosen.hourly_price(InstanceSize::Large) - 0.5).abs() < f64::EPSILON);
        for bad in ["vast", "small=", "small=-1", "small=NaN", ""] {
            assert!(bad.parse::<OfferedSize>().is_err(), "{bad}");
        }
    }
}
