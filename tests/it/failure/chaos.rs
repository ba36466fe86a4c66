//! A short form of the chaos program: real servers, broken under load.

use std::process::Command;

#[test]
fn what_must_hold_holds() {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos")).arg("--short").output().unwrap();
    let (said, panicked) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{said}\n{panicked}");
}
