//! A bounded multi-producer queue, drained in batches. Drops items when full.

use std::mem;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A queue of at most `MOST` items.
///
/// The consumer takes all items at once. It is woken by the first item and when the queue is half
/// full, but not by each item, because waking a thread costs more than adding an item.
pub struct BatchQueue<T, const MOST: usize> {
    items: Mutex<Vec<T>>,
    consumer: Notify,
}

impl<T, const MOST: usize> Default for BatchQueue<T, MOST> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            consumer: Notify::new(),
        }
    }
}

impl<T, const MOST: usize> BatchQueue<T, MOST> {
    const HALF: usize = MOST.div_ceil(2);

    /// Adds an item. Returns `false` if the queue is full and the item is dropped.
    pub fn add(&self, item: T) -> bool {
        let count = {
            let mut items = self.items.lock();
            if items.len() >= MOST {
                return false;
            }
            items.push(item);
            items.len()
        };
        if count == 1 || count == Self::HALF {
            self.consumer.notify_one();
        }
        true
    }

    /// Waits for an item. Supports one waiting consumer.
    pub async fn wait_for_item(&self) {
        self.wait_for_count(1).await;
    }

    /// Waits until the queue is half full. Supports one waiting consumer.
    pub async fn wait_until_half_full(&self) {
        self.wait_for_count(Self::HALF).await;
    }

    async fn wait_for_count(&self, count: usize) {
        while self.items.lock().len() < count {
            self.consumer.notified().await;
        }
    }

    /// Moves all items to `items`, in order. `items` must be empty; its allocation is used for the
    /// next items.
    pub fn take(&self, items: &mut Vec<T>) {
        mem::swap(items, &mut *self.items.lock());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Wake},
    };

    use super::*;

    #[tokio::test]
    async fn full_queue_drops_items() {
        let queue = BatchQueue::<_, 2>::default();
        let mut items = Vec::new();
        assert_eq!([1, 2, 3].map(|item| queue.add(item)), [true, true, false]);
        queue.wait_for_item().await;
        queue.take(&mut items);
        assert_eq!(items, [1, 2]);
        items.clear();
        queue.take(&mut items);
        assert!(items.is_empty() && queue.add(4));
    }

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn consumer_is_woken_by_first_item_and_half_full_queue() {
        let (queue, woken) = (BatchQueue::<_, 8>::default(), Arc::new(Woken::default()));
        let (waker, count) = (woken.clone().into(), || woken.0.load(Ordering::Relaxed));
        let mut cx = Context::from_waker(&waker);
        let (mut any, mut many) = (
            pin!(queue.wait_for_item()),
            pin!(queue.wait_until_half_full()),
        );
        assert!(any.as_mut().poll(&mut cx).is_pending());
        queue.add(1);
        assert_eq!(count(), 1);
        assert!(any.poll(&mut cx).is_ready() && many.as_mut().poll(&mut cx).is_pending());
        queue.add(2);
        queue.add(3);
        assert_eq!(count(), 1);
        queue.add(4);
        assert_eq!(count(), 2);
        assert!(many.poll(&mut cx).is_ready());
    }
}
