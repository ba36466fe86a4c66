//! The messages of rustc about each mistake.
//!
//! `TRYBUILD=overwrite cargo test -p ratelimit-tests --test ui` writes it down anew; read what changed.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    // With one that runs, the others are compiled to the end too, which is where constants are evaluated.
    cases.pass("ui/pass/*.rs");
    cases.compile_fail("ui/args/*.rs");
    cases.compile_fail("ui/place/*.rs");
    cases.compile_fail("ui/types/*.rs");
}
