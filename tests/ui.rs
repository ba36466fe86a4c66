//! What rustc says about each mistake.
fn main() {}
