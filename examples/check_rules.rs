//! Checks a file of rules before a program reads it: `check_rules limits.toml item order`.
//!
//! Prefixes after the file are those of the program's rules; any other in the file is an error. Ends with 1, and the
//! line and the reason, if the file is invalid.

use std::{env, process::ExitCode, time::Duration};

use ratelimit_runtime::{Rule, SetupError, config::Rules};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("which file? check_rules limits.toml");
        return ExitCode::FAILURE;
    };
    match checked(&path, arguments) {
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
                    None => println!("{prefix}: changes the rule of the code with this prefix, if there is one"),
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

/// The rules of a file. Only these prefixes are allowed, if there are any.
fn checked(path: &str, prefixes: impl Iterator<Item = String>) -> Result<Rules, SetupError> {
    let rules = Rules::watch(path)?;
    let program: Vec<_> = prefixes.map(|prefix| Rule::new(prefix.leak(), 1, Duration::from_secs(1))).collect();
    if program.is_empty() { Ok(rules) } else { rules.expect(&program.iter().collect::<Vec<_>>()) }
}
