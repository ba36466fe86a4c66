//! Tries mutants, which are small changes of the code, and reports those that no test notices.
//!
//! Both programs use it: `lua_mutants` for the scripts, `rust_mutants` for the Rust code.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SEED: u64 = 20_261_123;
/// No test ended for so long: the mutant never ends.
const LONGEST_TEST: Duration = Duration::from_secs(60);

/// The arguments of both programs, after those of their own.
#[derive(Debug)]
pub struct Options {
    /// `--only bucket`: files whose path contains the word.
    only: Option<String>,
    /// `--sample 300`: so many mutants, always the same ones.
    sample: Option<usize>,
    /// `--from 66`: begins at the 66th of them.
    from: NonZeroUsize,
    /// `--named FILE`: only those whose names are lines of the file, such as survivors of an earlier run.
    named: Option<String>,
    /// `--jobs 2`: so many at once.
    pub jobs: NonZeroUsize,
    /// `--list`: runs nothing.
    pub list: bool,
}

impl Options {
    /// Panics if a number is none, or 0.
    pub fn parse(args: &[String]) -> Self {
        let text = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        let number =
            |name| text(name).map(|text| text.parse::<NonZeroUsize>().expect("the option takes a number above 0"));
        Self {
            only: text("--only").cloned(),
            sample: number("--sample").map(NonZeroUsize::get),
            from: number("--from").unwrap_or(NonZeroUsize::MIN),
            named: text("--named").map(|file| fs::read_to_string(file).expect("a list of names")),
            jobs: number("--jobs").unwrap_or(NonZeroUsize::MIN),
            list: args.iter().any(|arg| arg == "--list"),
        }
    }

    /// The chosen mutants of all of them, which are in a fixed order.
    ///
    /// A sample takes the mutants with the lowest hashes of their names. So a change of the code replaces
    /// few of them.
    pub fn choose<M>(&self, mut mutants: Vec<M>, file: impl Fn(&M) -> &Path, name: impl Fn(&M) -> String) -> Vec<M> {
        if let Some(only) = &self.only {
            mutants.retain(|mutant| file(mutant).to_string_lossy().contains(only.as_str()));
        }
        if let Some(named) = &self.named {
            mutants.retain(|mutant| is_line(named, &name(mutant)));
        }
        if let Some(sample) = self.sample {
            mutants.sort_by_cached_key(|mutant| {
                let (name, mut hasher) = (name(mutant), DefaultHasher::new());
                let numbered = name.rsplit_once(" #").and_then(|(text, number)| Some((text, number.parse().ok()?)));
                let (text, number): (&str, i32) = numbered.unwrap_or((&name, 1));
                (SEED, text, number).hash(&mut hasher);
                hasher.finish()
            });
            mutants.truncate(sample);
        }
        mutants.drain(..mutants.len().min(self.from.get() - 1));
        mutants
    }
}

/// A compiled test program and the variable that tells it which mutant to run.
#[derive(Clone, Copy, Debug)]
pub struct TestProgram<'a> {
    /// The compiled program.
    pub path: &'a Path,
    /// Where `cargo test` would run it.
    pub folder: &'a Path,
    /// The name of the variable.
    pub variable: &'a str,
}

impl TestProgram<'_> {
    /// Runs the tests that `args` choose until one fails, and returns its name. A test that fails has to
    /// fail again: under load one may fail without a reason.
    pub fn killer(&self, args: &[&str], mutant: &OsStr) -> Option<String> {
        for _ in 0..3 {
            let (name, again) = match self.first_failure(args, mutant)? {
                Failure::Test(name) => (name.clone(), vec![name, "--exact".to_owned()]),
                Failure::Program => ("the test program".to_owned(), args.iter().map(ToString::to_string).collect()),
                Failure::NoEnd => return Some("no end".to_owned()),
            };
            if self.first_failure(&again, mutant).is_some() {
                return Some(name);
            }
            println!("{} fails once, and passes when run again: {name}", mutant.display());
        }
        None
    }

    fn first_failure<T: AsRef<OsStr>>(&self, args: &[T], mutant: &OsStr) -> Option<Failure> {
        let output = tempfile::tempfile().expect("a file");
        let mut tests = Command::new(self.path)
            .args(args)
            .args(["--test-threads", "4"])
            .current_dir(self.folder)
            .env(self.variable, mutant)
            .stdout(output.try_clone().expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the test program");
        let (mut end, mut size) = (Instant::now() + LONGEST_TEST, 0);
        loop {
            let is_success = tests.try_wait().expect("its state").map(|status| status.success());
            let failure = failed_test(&output).or_else(|| match is_success {
                Some(true) => None,
                Some(false) => Some(Failure::Program),
                None => (Instant::now() > end).then_some(Failure::NoEnd),
            });
            if failure.is_some() {
                let _ = (tests.kill(), tests.wait()); // its servers end with it
                return failure;
            }
            if is_success.is_some() {
                return None;
            }
            let new_size = output.metadata().expect("its size").len();
            if new_size != size {
                (end, size) = (Instant::now() + LONGEST_TEST, new_size);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

enum Failure {
    Test(String),
    /// It ended without a failed test: it crashed.
    Program,
    NoEnd,
}

/// The first failed test in the output of tests that may still be running.
fn failed_test(output: &File) -> Option<Failure> {
    let mut text = vec![0; usize::try_from(output.metadata().expect("its size").len()).expect("a small file")];
    output.read_exact_at(&mut text, 0).expect("the output of the tests");
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.starts_with("test ") && line.ends_with(" ... FAILED"))?;
    let name = line.trim_start_matches("test ").trim_end_matches(" ... FAILED").trim_end_matches(" - should panic");
    Some(Failure::Test(name.to_owned()))
}

/// True if a name is in a list, which has a line for each.
fn is_line(list: &str, name: &str) -> bool {
    list.lines().any(|line| line == name)
}

/// Tries all mutants but those that `known` lists as survivors. `killer` gets the number of its job,
/// below `jobs`, and returns what noticed the mutant. Fails if one survives.
pub fn try_all<M: Sync>(
    mutants: &[M],
    jobs: NonZeroUsize,
    known: &str,
    name: impl Fn(&M) -> String + Sync,
    killer: impl Fn(usize, &M) -> Option<String> + Sync,
) -> ExitCode {
    let (next, survivors, known_ones) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    thread::scope(|threads| {
        for job in 0..jobs.get() {
            let (next, survivors, known_ones, name, killer) = (&next, &survivors, &known_ones, &name, &killer);
            threads.spawn(move || {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (name, begun) = (name(mutant), Instant::now());
                    let result = if is_line(known, &name) {
                        known_ones.fetch_add(1, Ordering::Relaxed);
                        "known to survive, not tried".to_owned()
                    } else if let Some(failed) = killer(job, mutant) {
                        format!("caught by {failed}")
                    } else {
                        survivors.lock().expect("no panic").push(name.clone());
                        "SURVIVES".to_owned()
                    };
                    println!("{:.0} s {name}: {result}", begun.elapsed().as_secs_f64());
                }
            });
        }
    });
    let (known_ones, survivors) = (known_ones.into_inner(), survivors.into_inner().expect("no panic"));
    println!(
        "\n{} mutants: {} caught, {known_ones} known survivors, {} others",
        mutants.len(),
        mutants.len() - known_ones - survivors.len(),
        survivors.len()
    );
    for name in &survivors {
        println!("{name}");
    }
    if survivors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
