//! Keys of recent batches, so that a batch that its sender repeats is stored once.
//!
//! A key is appended atomically with the lines of its batch, in the form of a reader offset, and is
//! copied to each new segment like one. Earlier versions keep it as an offset that no reader uses.

use std::collections::{BTreeSet, HashMap};

use smol_str::SmolStr;

use super::batch::ReaderOffset;

/// A digest that identifies a batch within its project.
pub type BatchKey = [u8; 16];

/// Maximum number of remembered batches of a project.
pub const BATCH_KEYS_PROJECT_MAX: usize = 256;
/// Maximum number of remembered batches.
const BATCH_KEYS_MAX: usize = 16 * 1024;
/// Time in microseconds after which a newer batch replaces the memory of a batch.
const AGE_MAX: i64 = 60 * 60 * 1_000_000;
/// Start of the name of a reader offset that holds a key, followed by the project and the key.
const NAME_PREFIX: &str = "batch ";

/// Returns the reader offset that holds a key. `at` is in microseconds since 1970.
pub(super) fn to_reader_offset(project: &str, key: &BatchKey, at: i64) -> ReaderOffset {
    let key = u128::from_be_bytes(*key);
    ReaderOffset {
        name: format!("{NAME_PREFIX}{project} {key:032x}"),
        value: at.to_string(),
    }
}

/// Whether a reader offset holds a key.
pub(super) fn is_batch_key(reader_offset: &ReaderOffset) -> bool {
    reader_offset.name.starts_with(NAME_PREFIX)
}

/// The remembered batches of all projects.
#[derive(Debug, Default)]
pub(super) struct BatchKeys {
    by_age: BTreeSet<(i64, SmolStr, BatchKey)>,
    projects: HashMap<SmolStr, HashMap<BatchKey, i64>>,
}

impl BatchKeys {
    pub(super) fn contains(&self, project: &str, key: &BatchKey) -> bool {
        let keys = self.projects.get(project);
        keys.is_some_and(|keys| keys.contains_key(key))
    }

    /// Adds the key in a reader offset and removes those beyond the limits. Malformed ones are
    /// ignored.
    pub(super) fn insert(&mut self, reader_offset: &ReaderOffset) {
        let Some((project, key, at)) = parse(reader_offset) else {
            return;
        };
        let keys = self.projects.entry(project.clone()).or_default();
        if keys.contains_key(&key) {
            return;
        }
        keys.insert(key, at);
        if keys.len() > BATCH_KEYS_PROJECT_MAX {
            let oldest = keys.iter().map(|(key, at)| (*at, *key)).min();
            if let Some((at, key)) = oldest {
                keys.remove(&key);
                self.by_age.remove(&(at, project.clone(), key));
            }
        }
        if self.contains(&project, &key) {
            self.by_age.insert((at, project, key));
        }
        self.remove_oldest();
    }

    fn remove_oldest(&mut self) {
        let newest = self.by_age.last().map_or(0, |(at, ..)| *at);
        while let Some((at, ..)) = self.by_age.first()
            && (self.by_age.len() > BATCH_KEYS_MAX || *at < newest.saturating_sub(AGE_MAX))
        {
            let Some((_, project, key)) = self.by_age.pop_first() else {
                return;
            };
            if let Some(keys) = self.projects.get_mut(&project) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.projects.remove(&project);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, project: &str) {
        if self.projects.remove(project).is_some() {
            self.by_age.retain(|(_, of, _)| of != project);
        }
    }

    /// Returns all keys as reader offsets.
    pub(super) fn reader_offsets(&self) -> impl Iterator<Item = ReaderOffset> {
        let keys = self.by_age.iter();
        keys.map(|(at, project, key)| to_reader_offset(project, key, *at))
    }
}

fn parse(reader_offset: &ReaderOffset) -> Option<(SmolStr, BatchKey, i64)> {
    let name = reader_offset.name.strip_prefix(NAME_PREFIX)?;
    let (project, key) = name.split_once(' ')?;
    let key = u128::from_str_radix(key, 16).ok()?;
    let at = reader_offset.value.parse().ok()?;
    Some((project.into(), key.to_be_bytes(), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> BatchKey {
        (number as u128).to_be_bytes()
    }

    fn insert(keys: &mut BatchKeys, project: &str, number: usize, at: i64) {
        keys.insert(&to_reader_offset(project, &key(number), at));
    }

    #[test]
    fn keys_are_limited_per_project_in_total_and_in_age() {
        let mut keys = BatchKeys::default();
        for number in 0..=BATCH_KEYS_PROJECT_MAX {
            insert(&mut keys, "p", number, number.try_into().unwrap());
        }
        assert!(!keys.contains("p", &key(0)) && keys.contains("p", &key(1)));
        assert!(!keys.contains("q", &key(1)));
        for project in 0..100 {
            for number in 0..BATCH_KEYS_PROJECT_MAX {
                insert(&mut keys, &project.to_string(), number, 1_000);
            }
        }
        assert_eq!(keys.by_age.len(), BATCH_KEYS_MAX);
        let total: usize = keys.projects.values().map(HashMap::len).sum();
        assert_eq!(total, BATCH_KEYS_MAX);
        assert!(!keys.contains("p", &key(1)), "the oldest");
        insert(&mut keys, "late", 7, 1_001 + AGE_MAX);
        assert_eq!(keys.by_age.len(), 1);
        let copy: Vec<_> = keys.reader_offsets().collect();
        let mut restored = BatchKeys::default();
        for offset in &copy {
            restored.insert(offset);
        }
        assert!(restored.contains("late", &key(7)));
        restored.forget("late");
        assert!(restored.by_age.is_empty() && !restored.contains("late", &key(7)));
    }
}
