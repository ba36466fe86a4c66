//! A wall clock of a server that the test controls: the file with the time, and the library that
//! makes the server read it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// 15 January 2027, 08:00 UTC: where every controlled clock starts, so that each run sees the same times.
const START_MICROS: u64 = 1_800_000_000_000_000;

/// The wall clock of one server. It stands still until it is moved; a restart of the server does not touch it.
///
/// The server's monotonic clock stays real: its cron, and the timeout of a client, go on. What it decides by the wall
/// clock stands still with it: `TIME`, also from a script, and expiry, also active expiry. A `BLPOP` with a timeout
/// waits until the clock is moved.
///
/// Redis 7.0 after `SET k v PX 1000`: 999 ms later `PTTL` is 1, at 1,000 ms it is 0 and the key
/// still reads `v`, at 1,001 ms the key is gone. A key outlives its last millisecond.
#[derive(Debug)]
pub struct ServerClock {
    now: Mutex<u64>,
    file: File,
    file_path: PathBuf,
    library: PathBuf,
}

impl ServerClock {
    /// A clock whose files are in a folder, which has to outlive it.
    pub fn create(folder: &Path) -> Self {
        let library = folder.join("clock.so");
        fs::write(&library, library_bytes()).expect("the clock's library is written");
        let file_path = folder.join("clock");
        let file = File::create(&file_path).expect("the clock's file is created");
        let clock = ServerClock { now: Mutex::new(START_MICROS), file, file_path, library };
        clock.show(START_MICROS);
        clock
    }

    /// Makes a server, or another process, that is about to start read this clock.
    pub fn attach(&self, server: &mut Command) {
        server.env("LD_PRELOAD", &self.library).env("RATELIMIT_TEST_CLOCK", &self.file_path);
    }

    /// Microseconds since 1970.
    pub fn now_micros(&self) -> u64 {
        *self.lock()
    }

    /// Moves the clock, backwards too.
    pub fn set_micros(&self, micros: u64) {
        let mut now = self.lock();
        *now = micros;
        self.show(micros);
    }

    /// Moves the clock forward. A fraction of a microsecond is dropped.
    pub fn advance(&self, by: Duration) {
        let mut now = self.lock();
        *now += u64::try_from(by.as_micros()).expect("a duration of less than 500,000 years");
        self.show(*now);
    }

    /// Moves the clock by this much whenever the server reads it, as if the server were slow. With
    /// zero it stands still again, at its current time. [`ServerClock::now_micros`] does not see
    /// these moves, and setting the clock undoes them.
    ///
    /// Redis before 7.2 reads the clock for each `TIME` and `PTTL` of a script, and once for all
    /// expiry in it. Later servers read it once a script.
    pub fn tick(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).expect("a duration of less than 500,000 years");
        self.file.write_all_at(&micros.to_ne_bytes(), 16).expect("the clock's file is written");
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Two slots, in this order: `clock.c` takes what both agree on.
    fn show(&self, micros: u64) {
        for offset in [0, 8] {
            self.file.write_all_at(&micros.to_ne_bytes(), offset).expect("the clock's file is written");
        }
    }
}

/// `clock.c`, compiled once per process. Kept as bytes, since a folder of the process would outlive it.
fn library_bytes() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        fs::write(&source, include_str!("clock.c")).expect("clock.c is written");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "cannot run `cc`: {error}. A controlled clock needs a C compiler: install one \
                     (`apt-get install gcc libc6-dev` or `dnf install gcc`)."
                )
            });
        assert!(output.status.success(), "`cc` does not compile clock.c:\n{}", String::from_utf8_lossy(&output.stderr));
        fs::read(&library).expect("cc wrote clock.so")
    })
}
