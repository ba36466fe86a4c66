//! The public API of `ratelimit-runtime` with all features is the one in `public_api.txt`, so each change of it is
//! seen in a review. Hidden items are not listed, nor names of arguments.

use std::{env, fs, path::Path, process::Command};

#[test]
fn public_api() {
    let (tests, temporary) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let target = temporary.parent().expect("the target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["rustdoc", "--quiet", "-p", "ratelimit-runtime", "--all-features", "--target-dir"]).arg(target);
    // Here and not in the script: cargo would take pages written without them for up to date.
    cargo.args(["--", "-Z", "unstable-options", "--output-format", "json"]);
    cargo.env("RUSTDOC", tests.join("rustdoc_unstable"));
    // Variables of this package: with them cargo would build some dependencies again.
    for (name, _) in
        env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    {
        cargo.env_remove(name);
    }
    assert!(cargo.status().unwrap().success(), "rustdoc failed");

    let found = public_api::Builder::from_rustdoc_json(target.join("doc/ratelimit_runtime.json"))
        .omit_blanket_impls(true)
        .build()
        .expect("the JSON of rustdoc is in the format that public-api reads")
        .to_string();
    let expected = tests.join("public_api.txt");
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&expected, &found).unwrap();
    }
    let written = temporary.join("public_api.txt");
    fs::write(&written, &found).unwrap();
    let diff = Command::new("diff").arg("-U0").arg(&expected).arg(&written).output().unwrap();
    assert!(
        diff.status.success(),
        "the public API differs from tests/public_api.txt:\n{}\nIf that is intended, run \
         UPDATE_SNAPSHOTS=1 tests/run -p ratelimit-tests --test public_api",
        String::from_utf8_lossy(&diff.stdout)
    );
}
