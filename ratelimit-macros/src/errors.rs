//! Collects errors, so that one expansion reports all of them.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use syn::{Error, Result};

/// An error at the span `at`. The message says what is invalid and how to fix it.
pub(crate) fn fail<T>(at: Span, message: impl Display) -> Result<T> {
    Err(Error::new(at, message))
}

#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    pub(crate) fn add(&mut self, at: Span, message: impl Display) {
        self.push(Error::new(at, message));
    }

    /// The value of a result. Collects its error.
    pub(crate) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }

    pub(crate) fn into_compile_errors(self) -> TokenStream {
        self.0.map(Error::into_compile_error).unwrap_or_default()
    }
}
