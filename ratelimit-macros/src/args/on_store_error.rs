//! The argument `on_store_error`: the decision while the store does not answer.

use proc_macro2::Ident;
use syn::Result;
use syn::parse::ParseStream;

use crate::errors::fail;
use crate::value::{self, Choice, Milliseconds, set};

#[derive(Clone)]
pub(crate) enum OnStoreErrorArgument {
    /// A variant of `OnStoreError`.
    Policy(Ident),
    WaitAtMost(Milliseconds),
}

pub(super) fn read(input: ParseStream, name: &str) -> Result<OnStoreErrorArgument> {
    let word = value::variant(input, name, &["Local", "Allow", "Deny", "Wait"])?;
    let mut max = None;
    let max_choice = Choice::new("max", "\"1m\"", |max, input, _| set(max, value::milliseconds(input)));
    let choices = if word == "Wait" { &[max_choice][..] } else { &[] };
    value::options(&word, input, choices, &mut max)?;
    match max {
        Some(milliseconds) => Ok(OnStoreErrorArgument::WaitAtMost(milliseconds)),
        None if word == "Wait" => fail(word.span(), "`Wait` needs its longest time: Wait(max = \"1m\")"),
        None => Ok(OnStoreErrorArgument::Policy(word)),
    }
}
