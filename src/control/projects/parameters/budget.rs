//! The resources that settings of a server may use.

use gantry_node::clusters::ResourceLimits;
use serde_json::{Map, Value};

use super::text;
use crate::{control::projects::InstanceSize, platform::error::Error};

/// The maximum length of a value: a number with a unit, or a word.
const VALUE_BYTES_MAX: usize = 64;
/// The maximum number of digits of a size.
const DIGITS_MAX: usize = 15;
/// Processes of a server besides sessions, workers and senders of its log.
const PROCESSES_OWN: u64 = 20;
/// Code, catalogs and stack of a session, in kB: measured, and doubled.
const SESSION_KB: u64 = 5 << 10;
/// Maximum size of the write-ahead log for one setting, in kB, regardless of the project's disk
/// space.
const WAL_KB: u64 = 4 << 20;

/// Bounds on the resources that settings may make a server use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Memory of all sessions at once, in kB; a quarter of it for any one purpose.
    memory_kb: u64,
    processes: u64,
    /// Disk space of the write-ahead log for any one reason, in kB.
    wal_kb: u64,
}

impl From<&ResourceLimits> for Budget {
    fn from(limits: &ResourceLimits) -> Self {
        // Half of the disk space is for data.
        let wal_kb = WAL_KB.min((limits.disk_hard_bytes >> 10) / 2);
        Self {
            memory_kb: limits.memory_bytes >> 10,
            processes: limits.processes,
            wal_kb,
        }
    }
}

/// Checks what PostgreSQL does not check: that a value cannot inject other settings, and its
/// resource usage.
pub(super) fn check(wanted: &Map<String, Value>, budget: Budget) -> Result<(), Error> {
    for (name, value) in wanted {
        let value = text(value);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" .-_".contains(&byte);
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || !value.bytes().all(plain) {
            return Err(Error::invalid(
                name.clone(),
                "expected a number with a unit, such as 64MB or 30s",
            ));
        }
    }
    let kb = |name: &str, unit_kb: u64, ours: u64| {
        let Some(value) = wanted.get(name) else {
            return Ok(ours);
        };
        kilobytes(&text(value), unit_kb)
            .ok_or_else(|| Error::invalid(name.to_owned(), "expected a size, such as 64MB"))
    };
    let sessions = wanted
        .get("max_connections")
        .and_then(Value::as_u64)
        .unwrap_or_else(|| InstanceSize::Micro.connections().total().into());
    let each = kb("work_mem", 1, 4 << 10)?;
    let buffers = kb("shared_buffers", 8, 16 << 10)?;
    let purposes = [
        ("work_mem", each),
        (
            "maintenance_work_mem",
            kb("maintenance_work_mem", 1, 32 << 10)?,
        ),
        ("shared_buffers", buffers),
    ];
    let purposes = purposes.into_iter().chain([(
        "logical_decoding_work_mem",
        kb("logical_decoding_work_mem", 1, 64 << 10)?,
    )]);
    for (name, size) in purposes {
        if size > budget.memory_kb / 4 {
            let most = (budget.memory_kb / 4) >> 10;
            return Err(Error::invalid(
                name,
                format!("is more than this project's memory allows: at most {most} MB"),
            ));
        }
    }
    // All sessions count, although few of them sort at the same time.
    let needed = sessions
        .saturating_mul(SESSION_KB)
        .saturating_add(buffers)
        .saturating_add(sessions.saturating_mul(each) / 4);
    if needed > budget.memory_kb {
        let text = format!(
            "together with shared_buffers and work_mem needs {} MB, and the project has {}",
            needed >> 10,
            budget.memory_kb >> 10
        );
        return Err(Error::invalid("max_connections", text));
    }
    let count = |name: &str, ours: u64| wanted.get(name).and_then(Value::as_u64).unwrap_or(ours);
    let processes = [
        sessions,
        count("max_worker_processes", 8),
        count("max_wal_senders", 5),
        PROCESSES_OWN,
    ];
    let processes = processes.into_iter().fold(0, u64::saturating_add);
    if ["max_connections", "max_worker_processes", "max_wal_senders"]
        .iter()
        .any(|name| wanted.contains_key(*name))
        && processes > budget.processes
    {
        let text = format!(
            "together with workers needs {processes} processes, and the project has {}",
            budget.processes
        );
        return Err(Error::invalid("max_connections", text));
    }
    // Tables of the lock manager and of workers are shared memory, too.
    for (name, most) in [
        ("max_locks_per_transaction", 4096),
        ("max_worker_processes", 64),
        ("max_wal_senders", 64),
        ("max_replication_slots", 64),
    ] {
        if wanted
            .get(name)
            .and_then(Value::as_u64)
            .is_some_and(|count| count > most)
        {
            return Err(Error::invalid(
                name,
                format!("is more than this project's memory allows: at most {most}"),
            ));
        }
    }
    for name in ["max_wal_size", "wal_keep_size", "max_slot_wal_keep_size"] {
        // A negative size means unlimited, which is not permitted here.
        if kb(name, 1 << 10, 0)? > budget.wal_kb {
            return Err(Error::invalid(
                name,
                format!(
                    "is more than this project's disk allows: at most {} MB",
                    budget.wal_kb >> 10
                ),
            ));
        }
    }
    Ok(())
}

/// Parses a size to kB, rounded up: `64MB`, `1.5 GB`, or a number in the setting's own unit.
fn kilobytes(text: &str, unit_kb: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (whole, fraction) = text[..digits]
        .split_once('.')
        .unwrap_or((&text[..digits], ""));
    let bytes: u128 = match text[digits..].trim() {
        "" => u128::from(unit_kb) << 10,
        "B" => 1,
        "kB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        "TB" => 1 << 40,
        _ => return None,
    };
    // The number of digits excludes overflows below.
    if whole.is_empty() || text[..digits].len() > DIGITS_MAX || fraction.contains('.') {
        return None;
    }
    let number: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from((number * bytes).div_ceil(scale << 10)).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_parsed_as_in_postgresql() {
        for (text, unit_kb, kb) in [
            ("64MB", 1, 64 << 10),
            ("1.5GB", 1, 1536 << 10),
            ("128", 8, 1024),
            ("128", 1, 128),
            ("1 TB", 1, 1 << 30),
            ("1B", 1, 1),
        ] {
            assert_eq!(kilobytes(text, unit_kb), Some(kb), "{text}");
        }
        for bad in [
            "",
            "MB",
            "64mb",
            "-1",
            "1..2GB",
            "9e9GB",
            "64 M B",
            "99999999999999TB",
        ] {
            assert_eq!(kilobytes(bad, 1), None, "{bad}");
        }
    }

    #[test]
    fn excessive_parameter_is_named() {
        let problem = |settings: Value| match settings {
            Value::Object(map) => check(&map, Budget::from(&ResourceLimits::default()))
                .err()
                .map(|error| error.message().into_owned()),
            _ => None,
        };
        for fits in [
            json!({}),
            json!({"max_connections": 100, "shared_buffers": "64MB", "work_mem": "8MB", "statement_timeout": "30s"}),
            json!({"max_wal_size": "1GB", "hot_standby_feedback": true}),
        ] {
            assert_eq!(problem(fits.clone()), None, "{fits}");
        }
        for (settings, named) in [
            (json!({"shared_buffers": "900GB"}), "shared_buffers: "),
            (json!({"max_connections": 10_000}), "max_connections: "),
            (
                json!({"max_connections": 100, "work_mem": "200MB"}),
                "max_connections: ",
            ),
            (json!({"work_mem": "1GB"}), "work_mem: "),
            (
                json!({"max_slot_wal_keep_size": "-1"}),
                "max_slot_wal_keep_size: ",
            ),
            (
                json!({"max_locks_per_transaction": 2_000_000_000}),
                "max_locks_per_transaction: ",
            ),
            (
                json!({"work_mem": "4MB'\nlog_directory = '/tmp"}),
                "work_mem: ",
            ),
            (json!({"statement_timeout": ""}), "statement_timeout: "),
            (json!({"max_wal_size": "5GB"}), "max_wal_size: "),
            (
                json!({"max_connections": 200, "work_mem": "64kB", "max_worker_processes": 64}),
                "max_connections: together with workers needs 289",
            ),
        ] {
            let problem = problem(settings.clone()).unwrap_or_default();
            assert!(problem.starts_with(named), "{settings}: {problem}");
        }
    }
}
