//! Says whether a file of rules can be read, before a program reads it: `check_rules limits.toml`.
//!
//! Ends with 1, and the line and the reason, if it can't.

use std::{env, process::ExitCode};

use ratelimit_runtime::config::Rules;

fn main() -> ExitCode {
    let Some(path) = env::args().nth(1) else {
        eprintln!("which file? check_rules limits.toml");
        return ExitCode::FAILURE;
    };
    match Rules::watch(path) {
        Ok(rules) => {
            for prefix in rules.prefixes() {
                match rules.rule(&prefix) {
                    Some(rule) => {
                        let shadow = if rule.is_shadow() { ", only tried out" } else { "" };
                        println!(
                            "{prefix}: {} per {:?} by {:?}{shadow}",
                            rule.count(),
                            rule.period(),
                            rule.algorithm()
                        );
                    }
                    None => println!("{prefix}: changes what the code says"),
                }
            }
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
