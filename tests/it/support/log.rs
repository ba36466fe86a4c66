//! A subscriber that keeps the log lines of a test.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, span};

/// A second subscriber, which no thread uses. While a process has only one, `tracing` asks the thread
/// that is the first to pass a call site, and disables the call site for all threads if that thread
/// has no subscriber.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Log::default()));

type Act = Arc<dyn Fn() + Send + Sync>;

/// The log lines of this thread, as long as the subscriber is installed.
#[derive(Clone, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    /// A call after each line that has these words.
    acts_at: Option<(&'static str, Act)>,
}

impl Log {
    /// The log of this thread, until the guard is dropped.
    pub(crate) fn install() -> (Self, DefaultGuard) {
        Self::default().install_here()
    }

    /// The log of this thread, as [`Log::install`]. After it has kept a line that holds these words, it panics.
    pub(crate) fn panicking_at(words: &'static str) -> (Self, DefaultGuard) {
        Self::acting_at(words, || panic!("a log subscriber that does not work"))
    }

    /// The log of this thread, as [`Log::install`]. After it has kept a line that holds these words, it does this.
    pub(crate) fn acting_at(words: &'static str, act: impl Fn() + Send + Sync + 'static) -> (Self, DefaultGuard) {
        Self { acts_at: Some((words, Arc::new(act))), ..Self::default() }.install_here()
    }

    fn install_here(self) -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND);
        let guard = tracing::subscriber::set_default(self.clone());
        (self, guard)
    }

    pub(crate) fn lines(&self) -> Vec<(Level, String)> {
        self.lines.lock().unwrap().clone()
    }

    /// The lines that hold these words.
    pub(crate) fn with(&self, words: &str) -> Vec<(Level, String)> {
        self.lines.lock().unwrap().iter().filter(|(_, line)| line.contains(words)).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let metadata = attributes.metadata();
        self.lines.lock().unwrap().push((*metadata.level(), format!("span {}", metadata.name())));
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let act = self.acts_at.as_ref().filter(|(words, _)| line.0.contains(words));
        self.lines.lock().unwrap().push((*event.metadata().level(), line.0));
        if let Some((_, act)) = act {
            act();
        }
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
