//! A short run of the chaos program, which breaks real servers under load.

use std::process::Command;

#[test]
fn a_short_chaos_run_breaks_no_promise() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos")).arg("--short").output().unwrap();
    let (said, panicked) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{said}\n{panicked}");
}
