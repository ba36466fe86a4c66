//! The cost of the attribute at compile time: `cargo check` of 500 annotated functions against the
//! same 500 without it, from scratch and, as an editor does after a change elsewhere,
//! incrementally.
//!
//! `cargo run -p ratelimit-benches --bin compile_cost`

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const FUNCTIONS: usize = 500;
const ROUNDS: usize = 9;

fn main() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("target/compile_cost");
    let [plain, annotated] = [("plain", false), ("annotated", true)].map(|(name, annotate)| {
        let package = package(&folder.join(name), name, &workspace, annotate);
        check(&package, false); // the dependencies
        check(&package, true);
        package
    });

    println!("cargo check of {FUNCTIONS} functions, median of {ROUNDS}");
    println!("              plain    annotated  ratio");
    for (kind, incremental) in [("from scratch", false), ("incremental", true)] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (package, times) in [&plain, &annotated].into_iter().zip(&mut times) {
                times.push(check(package, incremental));
            }
        }
        let [plain, annotated] = times.map(|times| median(times).as_secs_f64());
        println!("{kind:<12}  {plain:.3} s  {annotated:.3} s    {:.2}", annotated / plain);
    }
}

/// Writes a package of many functions. Both kinds have the same dependencies and the same bodies.
fn package(folder: &Path, name: &str, workspace: &Path, annotate: bool) -> PathBuf {
    let runtime = workspace.join("ratelimit-runtime");
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nratelimit-runtime = {{ path = '{}' }}\n\n[workspace]\n",
        runtime.display()
    );
    let mut source = String::from(
        "use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};\n\n\
         pub struct Item { pub seller: u64, pub title: String }\n\n\
         #[limit_request_per_time(\"items\", 1, Seconds, 1)]\n\
         pub async fn write(title: String) -> Result<usize, RequestPerMinute> { Ok(title.len()) }\n",
    );
    for number in 0..FUNCTIONS {
        if annotate {
            let _ = write!(
                source,
                "\n#[limit_request_per_time(prefix = \"item-{number}\", ttl = 1, unit = Minutes, count = 100, key = item.seller)]"
            );
        }
        let _ = write!(
            source,
            "\npub async fn save_{number}(item: Item) -> Result<usize, RequestPerMinute> {{\n    \
                 let title = item.title.trim().to_owned();\n    \
                 let length = write(title).await?;\n    \
                 Ok(length + {number})\n}}\n"
        );
    }
    fs::create_dir_all(folder.join("src")).expect("cannot create the folder");
    fs::write(folder.join("Cargo.toml"), manifest).expect("cannot write the manifest");
    fs::write(folder.join("src/lib.rs"), source).expect("cannot write the source");
    fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")).expect("cannot copy the lock file");
    folder.to_owned()
}

/// Checks a package anew, and says how long that took.
fn check(package: &Path, incremental: bool) -> Duration {
    let source = package.join("src/lib.rs");
    let text = fs::read(&source).expect("cannot read the source");
    fs::write(&source, text).expect("cannot write the source");

    let started = Instant::now();
    let status = Command::new("cargo")
        .args(["check", "--quiet", "--target-dir"])
        .arg(package.with_file_name(if incremental { "incremental" } else { "scratch" }))
        .env("CARGO_INCREMENTAL", if incremental { "1" } else { "0" })
        .current_dir(package)
        .stdout(Stdio::null())
        .status()
        .expect("cannot run cargo");
    assert!(status.success(), "cargo check failed in {}", package.display());
    started.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
