//! Handles to an engine. A limiter has several, and each call takes a reference from one of them.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::core::{Engine, EngineRef};
use crate::sync::{CachePadded, thread_index};

const HANDLES: usize = 16;

/// The handles of one limiter. Different threads count references at different handles.
#[derive(Clone)]
pub(crate) struct Handles(Arc<[EngineRef; HANDLES]>);

/// The installed limiter.
static INSTALLED: OnceCell<Installed> = OnceCell::new();

struct Installed {
    handles: Handles,
    engine: &'static Engine,
}

impl Handles {
    pub(crate) fn new(engine: Engine) -> Self {
        let engine = Arc::new(engine);
        Self(Arc::new([(); HANDLES].map(|()| EngineRef::Counted(Arc::new(CachePadded(Arc::clone(&engine)))))))
    }

    /// Makes these the handles of the process. `false` if it has some already.
    pub(crate) fn install(self) -> bool {
        let mut is_new = false;
        INSTALLED.get_or_init(|| {
            is_new = true;
            let handles: &'static Self = Box::leak(Box::new(self.clone())); // never dropped anyway
            Installed { handles: self, engine: handles.engine() }
        });
        is_new
    }

    /// The handles of the process, if it has some.
    pub(crate) fn of_process() -> Option<Self> {
        INSTALLED.get().map(|installed| installed.handles.clone())
    }

    /// The engine of the installed limiter.
    #[inline]
    pub(crate) fn installed() -> Option<&'static Engine> {
        INSTALLED.get().map(|installed| installed.engine)
    }

    /// A reference for one call.
    #[inline]
    pub(crate) fn engine_ref(&self) -> EngineRef {
        if let Some(installed) = INSTALLED.get()
            && Arc::ptr_eq(&self.0, &installed.handles.0)
        {
            return EngineRef::Static(installed.engine);
        }
        self.0[thread_index() % HANDLES].clone()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        &self.0[0]
    }
}
