//! Inputs made from seeds by a few random edits. The edits shrink, so that a failure is reported with a small input.

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::{Index, select},
    strategy::BoxedStrategy,
};

/// The longest input.
const BYTES_MAX: usize = 16 * 1024;
/// The most edits of one seed.
const EDITS_MAX: usize = 8;
/// The most copies that one edit makes.
const COPIES_MAX: usize = 64;

#[derive(Debug, Clone)]
enum Edit {
    /// Replaces a byte.
    Set(Index, u8),
    /// Inserts bytes.
    Insert(Index, Vec<u8>),
    /// Removes the bytes between two places.
    Remove(Index, Index),
    /// Repeats the bytes between two places.
    Repeat(Index, Index, usize),
}

/// One of the seeds, or nothing, with some edits.
pub(super) fn from_seeds(
    seeds: &[Vec<u8>],
    tokens: &'static [&'static str],
) -> BoxedStrategy<Vec<u8>> {
    // Parts of other seeds are tokens as well.
    let pieces: Vec<Vec<u8>> = tokens
        .iter()
        .map(|token| token.as_bytes().to_vec())
        .chain(seeds.iter().cloned())
        .collect();
    let edit = prop_oneof![
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        4 => (any::<Index>(), select(pieces)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (any::<Index>(), vec(any::<u8>(), 1..8)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Edit::Remove(from, to)),
        1 => (any::<Index>(), any::<Index>(), 1..COPIES_MAX)
            .prop_map(|(from, to, copies)| Edit::Repeat(from, to, copies)),
    ];
    let seed = prop_oneof![1 => Just(Vec::new()), 9 => select(seeds.to_vec())];
    (seed, vec(edit, 0..EDITS_MAX))
        .prop_map(|(seed, edits)| edits.iter().fold(seed, apply))
        .boxed()
}

fn apply(mut bytes: Vec<u8>, edit: &Edit) -> Vec<u8> {
    // A place is between two bytes, or at an end.
    let places = bytes.len() + 1;
    match edit {
        Edit::Set(at, byte) => {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        Edit::Insert(at, inserted) => {
            let at = at.index(places);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Edit::Remove(from, to) => {
            let (from, to) = ordered(from.index(places), to.index(places));
            bytes.drain(from..to);
        }
        Edit::Repeat(from, to, copies) => {
            let (from, to) = ordered(from.index(places), to.index(places));
            let room = BYTES_MAX.saturating_sub(bytes.len()) / (to - from).max(1);
            let copied = bytes[from..to].repeat((*copies).min(room));
            bytes.splice(to..to, copied);
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn ordered(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}
