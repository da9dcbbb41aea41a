//! Results of `pgbench`.

use crate::dev::Outcome;

/// Returns the transactions in a second that `pgbench` reports.
pub(crate) fn rate(said: &str) -> Outcome<f64> {
    let rate = said
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench says no rate: {said}").into())
}

/// Returns the median. There must be a value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
