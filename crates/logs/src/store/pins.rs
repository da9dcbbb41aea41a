//! Pins that keep the files of a view readable.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;

/// The last view number, and the numbers of live views.
#[derive(Debug, Default)]
pub(super) struct ViewPins(Mutex<(u64, BTreeSet<u64>)>);

/// Keeps the files of a view from being deleted.
#[derive(Debug)]
pub(super) struct ViewPin {
    pins: Arc<ViewPins>,
    number: u64,
}

impl ViewPins {
    pub(super) fn pin(self: &Arc<Self>) -> ViewPin {
        let mut pins = self.0.lock();
        pins.0 += 1;
        let number = pins.0;
        pins.1.insert(number);
        ViewPin {
            pins: Arc::clone(self),
            number,
        }
    }

    /// Returns the number of the latest view.
    pub(super) fn latest(&self) -> u64 {
        self.0.lock().0
    }

    /// Whether all views up to a number are dropped.
    pub(super) fn all_dropped_up_to(&self, latest: u64) -> bool {
        self.0.lock().1.first().is_none_or(|first| *first > latest)
    }
}

impl Drop for ViewPin {
    fn drop(&mut self) {
        self.pins.0.lock().1.remove(&self.number);
    }
}
