//! Listeners: every connection is begun with or turned away at once, and at the end they are seen out.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper::rt::{Sleep, Timer};
use hyper_util::server::graceful::GracefulConnection;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
    time::{self, timeout},
};

/// The pause after a connection could not be taken: no file descriptor is left, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Stops listeners and what they took, all together.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    already: AtomicBool,
    told: Notify,
}

impl Stop {
    /// No connection is taken any more, and none goes on after the requests it has begun.
    pub fn stop(&self) {
        self.0.already.store(true, Ordering::Release);
        self.0.told.notify_waiters();
    }

    /// Until then.
    ///
    /// A connection asks again whenever something comes in. Asking costs one load as long as it is the same task that asks: what
    /// wakes it is entered once.
    pub async fn asked(&self) {
        let (mut told, mut woken) = (pin!(self.0.told.notified()), None::<Waker>);
        poll_fn(|cx| {
            if self.0.already.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if woken
                .as_ref()
                .is_some_and(|woken| woken.will_wake(cx.waker()))
            {
                return Poll::Pending;
            }
            woken = Some(cx.waker().clone());
            told.as_mut().poll(cx)
        })
        .await;
    }
}

/// Where connections come from.
pub trait Listener: Send {
    /// A connection.
    type Stream;
    /// What is known of who makes it.
    type Peer;

    /// Waits for the next one.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send {
        self.accept()
    }
}

/// Takes connections until `stopping`, and returns when they have ended, or when `drain` is over.
///
/// `take` begins with a connection in the set, or turns it away: how many there are at a time is its to bound. `what` names
/// the connections in the log.
pub async fn run<L: Listener>(
    listener: L,
    stopping: impl Future<Output = ()>,
    (what, drain): (&'static str, Duration),
    mut take: impl FnMut(&mut JoinSet<()>, L::Stream, L::Peer),
) {
    let mut connections = JoinSet::new();
    let mut stopping = pin!(stopping);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopping => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => take(&mut connections, stream, peer),
            Err(error) => {
                tracing::warn!(what, %error, "a connection could not be taken");
                // Asked again at once it would fail again.
                if timeout(PAUSE, &mut stopping).await.is_ok() {
                    break;
                }
            }
        }
    }
    drop(listener);
    if timeout(drain, async {
        while connections.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        tracing::warn!(
            what,
            connections = connections.len(),
            "what still worked was ended"
        );
    }
    connections.shutdown().await;
}

/// Runs an HTTP connection to its end, which is after the requests it has begun once it is `stopping`.
pub async fn see_out<C: GracefulConnection>(
    connection: C,
    stopping: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// The timer of one connection: one entry among the runtime's timers as long as it lasts.
///
/// hyper gives the head of every request a deadline, which nearly all meet at once. An entry for each would be put in and taken
/// out under a lock, a noticeable part of a small request. This one stays where it is, and is moved when it fires too early.
#[derive(Debug, Clone, Default)]
pub struct ConnectionTimer(Arc<Mutex<Option<Pin<Box<time::Sleep>>>>>);

impl Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until {
            deadline: deadline.into(),
            timer: self.clone(),
        })
    }

    fn now(&self) -> std::time::Instant {
        time::Instant::now().into_std()
    }
}

/// Over at its deadline. What waits for it is the connection that the timer belongs to, as for all others of that timer.
struct Until {
    deadline: time::Instant,
    timer: ConnectionTimer,
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut entry = self.timer.0.lock();
        let entry = entry.get_or_insert_with(|| Box::pin(time::sleep_until(self.deadline)));
        // One that was made for a later deadline would fire too late.
        if entry.deadline() > self.deadline {
            entry.as_mut().reset(self.deadline);
        }
        while entry.as_mut().poll(cx).is_ready() {
            if entry.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            entry.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn whoever_asks_hears_of_a_stop() {
        let stop = Stop::default();
        let asked = || {
            let stop = stop.clone();
            Box::pin(async move { stop.asked().await })
        };
        let (mut moves, mut stays) = (asked(), asked());
        assert!(poll!(&mut moves).is_pending() && poll!(&mut stays).is_pending());
        // First asked by this task, now by another, which is the one to be woken.
        let elsewhere = tokio::spawn(moves);
        tokio::task::yield_now().await;
        assert!(!elsewhere.is_finished());
        stop.stop();
        timeout(Duration::from_secs(10), elsewhere)
            .await
            .unwrap()
            .unwrap();
        assert!(poll!(stays).is_ready() && poll!(asked()).is_ready());
    }

    #[tokio::test]
    async fn each_deadline_is_met_over_one_entry() {
        let timer = ConnectionTimer::default();
        let began = time::Instant::now();
        let after = |millis| timer.sleep_until((began + Duration::from_millis(millis)).into_std());
        let mut met = after(20);
        assert!(poll!(&mut met).is_pending());
        drop(met);
        after(60).await;
        assert!(began.elapsed() >= Duration::from_millis(60));
        let mut late = after(10_000);
        assert!(poll!(&mut late).is_pending());
        drop(late);
        after(90).await;
        assert!((90..5_000).contains(&began.elapsed().as_millis()));
        after(30).await;
    }
}
