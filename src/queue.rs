//! What many note and one takes: a bounded queue that nobody waits for.

use parking_lot::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Room for `MOST` items. What comes when it is full is dropped.
pub struct Queue<T, const MOST: usize> {
    sender: Sender<T>,
    receiver: Mutex<Option<Receiver<T>>>,
}

impl<T, const MOST: usize> Default for Queue<T, MOST> {
    fn default() -> Self {
        let (sender, receiver) = channel(MOST);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl<T, const MOST: usize> Queue<T, MOST> {
    /// Adds an item. Tells whether there was room.
    pub fn add(&self, item: T) -> bool {
        self.sender.try_send(item).is_ok()
    }

    /// The end to take items from. Only the first who asks gets it.
    pub fn take(&self) -> Option<Receiver<T>> {
        self.receiver.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_told() {
        let queue = Queue::<_, 2>::default();
        assert_eq!([1, 2, 3].map(|item| queue.add(item)), [true, true, false]);
        let mut items = queue.take().unwrap();
        assert!(queue.take().is_none());
        assert_eq!((items.recv().await, items.recv().await), (Some(1), Some(2)));
        assert!(queue.add(4));
    }
}
