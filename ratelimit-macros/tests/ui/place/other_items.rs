//! Items that are not functions. The item stays, so that no error is about its absence.

use ratelimit_runtime::limit_request_per_time;

#[limit_request_per_time("item", 1, Days, 1)]
struct Struct;

#[limit_request_per_time("item", 1, Days, 1)]
pub enum Enum {
    One,
}

#[limit_request_per_time("item", 1, Days, 1)]
pub(crate) trait Trait {
    fn call(&self) {}
}

#[limit_request_per_time("item", 1, Days, 1)]
mod module {
    pub fn call() {}
}

#[limit_request_per_time("item", 1, Days, 1)]
const CONSTANT: u64 = 1;

#[limit_request_per_time("item", 1, Days, 1)]
static STATIC: u64 = 1;

#[limit_request_per_time("item", 1, Days, 1)]
type Alias = u64;

#[limit_request_per_time("item", 1, Days, 1)]
use std::collections::HashMap;

impl Trait for Struct {}

fn main() {
    Struct.call();
    module::call();
    let _: (Enum, Alias, HashMap<u64, u64>) = (Enum::One, CONSTANT + STATIC, HashMap::new());
}
