//! Inputs made from seeds by a few random edits. The edits shrink, so that a failure is reported
//! with a small input.

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::{Index, select},
    strategy::BoxedStrategy,
};

/// Maximum size of an input, in bytes.
const BYTES_MAX: usize = 16 * 1024;
/// Maximum number of edits of one seed.
const EDITS_MAX: usize = 8;
/// Maximum number of copies in one edit.
const COPIES_MAX: usize = 64;

/// A place between two bytes, or at an end.
#[derive(Debug, Clone)]
enum Place {
    Any(Index),
    /// A place where a word, a number or a sign begins or ends. Most defects are at such places.
    Boundary(Index),
}

impl Place {
    fn offset(&self, bytes: &[u8]) -> usize {
        match self {
            Self::Any(index) => index.index(bytes.len() + 1),
            Self::Boundary(index) => *index.get(&boundaries(bytes)),
        }
    }
}

#[derive(Debug, Clone)]
enum Edit {
    /// Replaces a byte.
    Set(Index, u8),
    /// Inserts bytes.
    Insert(Place, Vec<u8>),
    /// Removes the bytes between two places.
    Remove(Place, Place),
    /// Repeats the bytes between two places.
    Repeat(Place, Place, usize),
}

/// Returns one of the seeds, or an empty input, with some edits.
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
        4 => (place(), select(pieces)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (place(), vec(any::<u8>(), 1..8)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Remove(from, to)),
        1 => (place(), place(), 1..COPIES_MAX)
            .prop_map(|(from, to, copies)| Edit::Repeat(from, to, copies)),
    ];
    let seed = prop_oneof![1 => Just(Vec::new()), 9 => select(seeds.to_vec())];
    // Mostly few edits, so that most of the seed is unchanged.
    let count = prop_oneof![3 => Just(1), 2 => Just(2), 1 => 0..EDITS_MAX];
    let edits = count.prop_flat_map(move |count| vec(edit.clone(), count));
    (seed, edits)
        .prop_map(|(seed, edits)| edits.iter().fold(seed, apply))
        .boxed()
}

fn place() -> impl Strategy<Value = Place> + Clone {
    prop_oneof![
        any::<Index>().prop_map(Place::Any),
        any::<Index>().prop_map(Place::Boundary),
    ]
}

/// Returns both ends, and the places between bytes of different classes.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let inner = (1..bytes.len()).filter(|at| {
        let sign = !bytes[*at].is_ascii_alphanumeric();
        sign || class(bytes[at - 1]) != class(bytes[*at])
    });
    [0, bytes.len()].into_iter().chain(inner).collect()
}

fn class(byte: u8) -> (bool, bool) {
    (byte.is_ascii_alphanumeric(), byte.is_ascii_whitespace())
}

fn apply(mut bytes: Vec<u8>, edit: &Edit) -> Vec<u8> {
    match edit {
        Edit::Set(at, byte) => {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        Edit::Insert(at, inserted) => {
            let at = at.offset(&bytes);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Edit::Remove(from, to) => {
            let (from, to) = ordered(from.offset(&bytes), to.offset(&bytes));
            bytes.drain(from..to);
        }
        Edit::Repeat(from, to, copies) => {
            let (from, to) = ordered(from.offset(&bytes), to.offset(&bytes));
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
