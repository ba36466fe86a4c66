//! Handles to an engine. A limiter has several, and each call takes a reference from one of them.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use super::core::{Engine, EngineRef};
use crate::sync::{CachePadded, thread_index};

const HANDLES: usize = 16;

/// The handles of one limiter. Different threads count references at different handles.
#[derive(Clone)]
pub(crate) struct Handles(Arc<[EngineRef; HANDLES]>);

/// The handles of the installed limiter.
static INSTALLED: OnceCell<Handles> = OnceCell::new();

impl Handles {
    pub(crate) fn new(engine: Engine) -> Self {
        let engine = Arc::new(engine);
        Self(Arc::new([(); HANDLES].map(|()| EngineRef::Counted(Arc::new(CachePadded(Arc::clone(&engine)))))))
    }

    /// Makes these the handles of the process. An error if it has some already.
    pub(crate) fn install(self) -> Result<(), Self> {
        INSTALLED.set(self)
    }

    #[inline]
    pub(crate) fn installed() -> Option<&'static Self> {
        INSTALLED.get()
    }

    /// A reference for one call.
    #[inline]
    pub(crate) fn engine_ref(&self) -> EngineRef {
        if let Some(installed) = Self::installed()
            && Arc::ptr_eq(&self.0, &installed.0)
        {
            return installed.static_ref();
        }
        self.0[thread_index() % HANDLES].clone()
    }

    #[inline]
    pub(crate) fn static_ref(&'static self) -> EngineRef {
        EngineRef::Static(self.engine())
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        &self.0[0]
    }
}
