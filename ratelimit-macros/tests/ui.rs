//! The messages of rustc about each mistake.
//!
//! `TRYBUILD=overwrite cargo test -p ratelimit-macros --test ui` writes it down anew; read what changed.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    // With one that runs, the others are compiled to the end too, which is where constants are evaluated.
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/args/*.rs");
    cases.compile_fail("tests/ui/place/*.rs");
    cases.compile_fail("tests/ui/types/*.rs");
}
