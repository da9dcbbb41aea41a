//! Log lines of a test. An unexpected internal error fails the test.

use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer,
    filter::LevelFilter,
    fmt as print,
    layer::{Context, SubscriberExt},
};

/// Collects the log lines of this thread until it is dropped.
pub(crate) struct Log {
    errors: Errors,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Starts to collect. Warnings are also written to the output of the test.
    pub(crate) fn collect() -> Self {
        let errors = Errors::default();
        let lines = print::layer()
            .with_test_writer()
            .with_ansi(false)
            .with_filter(LevelFilter::WARN);
        let subscriber = tracing_subscriber::registry()
            .with(errors.clone())
            .with(lines);
        Self {
            errors,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Returns and removes the errors so far.
    pub(crate) fn take_errors(&self) -> Vec<String> {
        std::mem::take(&mut *self.errors.0.lock().unwrap())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let errors = self.take_errors();
        assert!(
            errors.is_empty() || std::thread::panicking(),
            "logged and not expected: {errors:#?}"
        );
    }
}

impl<S: Subscriber> Layer<S> for Errors {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == Level::ERROR {
            let mut text = Text::default();
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}
