//! Helpers shared by the benchmarks.

#![expect(dead_code, reason = "each benchmark uses a part of it")]

use std::time::Instant;

/// The result of a benchmark step.
pub(crate) type BenchResult<T> = Result<T, Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A deterministic pseudo-random generator (`SplitMix64`).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a random item.
    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap_or(0)]
    }

    /// Returns a random item. Earlier items are more likely.
    pub(crate) fn skewed<T: Copy>(&mut self, of: &[T]) -> T {
        let a = self.below(of.len() as u64);
        let b = self.below(of.len() as u64);
        of[usize::try_from(a.min(b)).unwrap_or(0)]
    }

    pub(crate) fn hex(&mut self, digits: usize) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())[..digits].to_owned()
    }
}
