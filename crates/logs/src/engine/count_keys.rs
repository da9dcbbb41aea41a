//! Distinct grouping keys and the runs of equal keys in a batch.

use std::{borrow::Borrow, hash::Hash, ops::Range, sync::Arc};

use datafusion::arrow::{
    array::{Array, ArrayRef, AsArray as _, StringViewArray, TimestampSecondArray},
    buffer::Buffer,
    datatypes::{DataType, TimeUnit, TimestampSecondType},
};
use hashbrown::HashMap;

/// Number of distinct keys, and approximate bytes of their texts, after which counts are emitted.
const BUFFERED_KEYS_MAX: usize = 16 * 1024;
const BUFFERED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Distinct keys, numbered in the order of their first occurrence.
pub(super) enum Keys {
    Texts(TextKeys),
    Timestamps(KeyNumbers<i64>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Texts(TextKeys::default())
    }
}

impl Keys {
    /// Returns `None` for key types that the engine counts equally fast.
    pub(super) fn of_type(ty: &DataType) -> Option<Self> {
        match ty {
            DataType::Utf8View => Some(Self::default()),
            DataType::Timestamp(TimeUnit::Second, None) => {
                Some(Self::Timestamps(KeyNumbers::default()))
            }
            _ => None,
        }
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Texts(texts) => {
                let entries = texts.numbers.len() * size_of::<(String, usize)>();
                entries + texts.bytes + texts.views.capacity() * size_of::<(u128, usize)>()
            }
            Self::Timestamps(numbers) => numbers.len() * size_of::<(i64, usize)>(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::Texts(texts) => {
                texts.numbers.len() >= BUFFERED_KEYS_MAX || texts.bytes >= BUFFERED_BYTES_MAX
            }
            Self::Timestamps(numbers) => numbers.len() >= BUFFERED_KEYS_MAX,
        }
    }

    /// Calls `visit` with the key number and the row range of every run of equal keys.
    pub(super) fn visit_runs(&mut self, keys: &ArrayRef, visit: impl FnMut(usize, Range<usize>)) {
        match self {
            Self::Texts(texts) => texts.visit_runs(keys.as_string_view(), visit),
            Self::Timestamps(numbers) => {
                let timestamps = keys.as_primitive::<TimestampSecondType>();
                for_each_run(
                    timestamps,
                    |row| timestamps.value(row),
                    |key, _| numbers.number(key.as_ref()),
                    visit,
                );
            }
        }
    }

    /// Returns the keys and leaves an empty set of the same type.
    pub(super) fn take(&mut self) -> Self {
        match self {
            Self::Texts(texts) => Self::Texts(std::mem::take(texts)),
            Self::Timestamps(numbers) => Self::Timestamps(std::mem::take(numbers)),
        }
    }

    /// Returns the keys as a column in the order of their numbers.
    pub(super) fn into_array(self) -> ArrayRef {
        match self {
            Self::Texts(texts) => {
                let keys = texts.numbers.into_keys();
                Arc::new(keys.iter().collect::<StringViewArray>())
            }
            Self::Timestamps(numbers) => Arc::new(TimestampSecondArray::from(numbers.into_keys())),
        }
    }
}

/// Numbers of keys, including the null key.
pub(super) struct KeyNumbers<K> {
    numbers: HashMap<K, usize>,
    null_number: Option<usize>,
}

impl<K> Default for KeyNumbers<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            null_number: None,
        }
    }
}

impl<K: Eq + Hash> KeyNumbers<K> {
    fn len(&self) -> usize {
        self.numbers.len() + usize::from(self.null_number.is_some())
    }

    /// Returns the number of a key and assigns the next one to a new key.
    fn number<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, key: Option<&Q>) -> usize
    where
        K: Borrow<Q>,
    {
        let next = self.len();
        match key {
            Some(key) => *self.numbers.entry_ref(key).or_insert(next),
            None => *self.null_number.get_or_insert(next),
        }
    }

    /// Returns the keys in the order of their numbers.
    fn into_keys(self) -> Vec<Option<K>> {
        let mut keys: Vec<_> = std::iter::repeat_with(|| None).take(self.len()).collect();
        for (key, number) in self.numbers {
            keys[number] = Some(key);
        }
        keys
    }
}

#[derive(Default)]
pub(super) struct TextKeys {
    numbers: KeyNumbers<String>,
    /// Size of all texts.
    bytes: usize,
    /// Key numbers by string view. Valid only for the buffers below, which the views point into.
    views: HashMap<u128, usize>,
    buffers: Vec<Buffer>,
}

impl TextKeys {
    fn visit_runs(&mut self, texts: &StringViewArray, visit: impl FnMut(usize, Range<usize>)) {
        let buffers = texts.data_buffers();
        let same_buffers = self.buffers.len() == buffers.len()
            && self
                .buffers
                .iter()
                .zip(buffers)
                .all(|(known, buffer)| known.ptr_eq(buffer));
        if !same_buffers {
            self.views.clear();
            self.buffers = buffers.to_vec();
        }
        let number = |view: Option<u128>, row| self.number(texts, view, row);
        for_each_run(texts, |row| texts.views()[row], number, visit);
    }

    /// Returns the number of the text in a row, which is hashed only if its view is new.
    fn number(&mut self, texts: &StringViewArray, view: Option<u128>, row: usize) -> usize {
        let Some(view) = view else {
            return self.numbers.number(None::<&str>);
        };
        if let Some(number) = self.views.get(&view) {
            return *number;
        }
        let text = texts.value(row);
        let next = self.numbers.len();
        let number = self.numbers.number(Some(text));
        if number == next {
            self.bytes += text.len();
        }
        self.views.insert(view, number);
        number
    }
}

/// Calls `visit` with the key number and the row range of every run of equal keys. `number` maps a
/// key, or null, and its first row to the key number.
fn for_each_run<K: PartialEq>(
    keys: &impl Array,
    key: impl Fn(usize) -> K,
    mut number: impl FnMut(Option<K>, usize) -> usize,
    mut visit: impl FnMut(usize, Range<usize>),
) {
    let key = |row| keys.is_valid(row).then(|| key(row));
    let mut start = 0;
    while start < keys.len() {
        let current = key(start);
        let mut end = start + 1;
        while end < keys.len() && key(end) == current {
            end += 1;
        }
        visit(number(current, start), start..end);
        start = end;
    }
}
