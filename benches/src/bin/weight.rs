//! The weight of a dependency: the crates and seconds that it adds to a clean build.
//!
//! `cargo run --release -p ratelimit-benches --bin weight [-- ROUNDS]`, 5 rounds by default. It builds an empty
//! program with one dependency at a time, by turns, each time into a new directory. It takes the
//! versions of this workspace's `Cargo.lock`, and fetches nothing.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const TOKIO: &str = "tokio = { version = '1', features = ['macros', 'rt', 'sync', 'time'] }";

fn main() {
    let rounds: usize = env::args().nth(1).map_or(5, |rounds| rounds.parse().expect("a number of rounds"));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace");
    let runtime = workspace.join("ratelimit-runtime").display().to_string();
    let packages = [
        ("ratelimit-runtime", format!("ratelimit-runtime = {{ path = '{runtime}' }}")),
        (
            "ratelimit-runtime, in memory",
            format!("ratelimit-runtime = {{ path = '{runtime}', default-features = false, features = ['macros'] }}"),
        ),
        (
            "redis client",
            "redis = { version = '1.8', default-features = false, features = ['aio', 'script', 'tokio-comp'] }"
                .to_owned(),
        ),
        ("governor", "governor = '*'".to_owned()),
        ("tokio", TOKIO.to_owned()),
    ];
    let packages = packages.map(|(name, dependency)| (name, package(&workspace, name, &dependency)));
    let mut seconds = [const { Vec::new() }; 5];
    for round in 0..rounds {
        for turn in 0..packages.len() {
            let at = (round + turn) % packages.len();
            seconds[at].push(build(&packages[at].1));
        }
    }
    println!("cargo build of an empty program with one dependency, median of {rounds}");
    println!("{:<32}{:>8}{:>10}", "", "crates", "seconds");
    for ((name, package), seconds) in packages.iter().zip(seconds) {
        println!("{name:<32}{:>8}{:>10.1}", crates(package), median(seconds).as_secs_f64());
    }
}

fn package(workspace: &Path, name: &str, dependency: &str) -> PathBuf {
    let folder = workspace.join("target/weight").join(name.replace(", ", "-").replace(' ', "-"));
    fs::create_dir_all(folder.join("src")).expect("cannot create the folder");
    let manifest = format!(
        "[package]\nname = \"weight\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\n{dependency}\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).expect("cannot write the manifest");
    fs::write(folder.join("src/main.rs"), "fn main() {}\n").expect("cannot write the source");
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).expect("cannot copy the lock file");
    folder
}

fn build(package: &Path) -> Duration {
    let target = package.join("target");
    let _ = fs::remove_dir_all(&target);
    let started = Instant::now();
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--offline"]).current_dir(package).env_remove("CARGO_TARGET_DIR");
    let build = build.status();
    assert!(build.expect("cannot run cargo").success(), "cargo build failed in {}", package.display());
    started.elapsed()
}

/// Number of crates that are compiled, without the program.
fn crates(package: &Path) -> usize {
    let tree = Command::new("cargo")
        .args(["tree", "--quiet", "--offline", "--edges", "normal,build", "--prefix", "none", "--no-dedupe"])
        .current_dir(package)
        .output()
        .expect("cannot run cargo");
    let tree = String::from_utf8(tree.stdout).expect("text");
    let mut names: Vec<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    for name in &mut names {
        *name = name.trim_end_matches(" (*)");
    }
    names.sort_unstable();
    names.dedup();
    names.len() - 1
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
