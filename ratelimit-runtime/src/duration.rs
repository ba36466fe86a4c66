//! Durations as people read them, and random ones.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    process,
    time::Duration,
};

/// Prints `300 ms`, `12.5 s`, `5 min 20 s`, `23 h 59 min` or `2 d 5 h`.
///
/// Seconds are rounded up to a tenth. The second unit of a longer time is rounded down.
pub(crate) struct ReadableDuration(pub(crate) Duration);

impl fmt::Display for ReadableDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str, u128, &str); 3] =
            [(86_400_000, "d", 3_600_000, "h"), (3_600_000, "h", 60_000, "min"), (60_000, "min", 1_000, "s")];
        let ms = self.0.as_nanos().div_ceil(1_000_000);
        if let Some((unit, name, part, part_name)) = UNITS.into_iter().find(|(unit, ..)| ms >= *unit) {
            write!(f, "{} {name}", ms / unit)?;
            return match ms % unit / part {
                0 => Ok(()),
                parts => write!(f, " {parts} {part_name}"),
            };
        }
        match ms.div_ceil(100) {
            _ if ms < 1_000 => write!(f, "{ms} ms"),
            tenths if tenths.is_multiple_of(10) => write!(f, "{} s", tenths / 10),
            tenths => write!(f, "{}.{} s", tenths / 10, tenths % 10),
        }
    }
}

/// A random pause between half of `pause` and all of it: those who wait for the same thing do not
/// all come back at once.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    pause / 2 + part_of(pause / 2)
}

/// A random number. The standard library draws a seed for each thread, and counts on from it. A forked process
/// has the same seed, and another id.
pub(crate) fn random() -> u64 {
    random_in(&RandomState::new(), process::id())
}

/// A random number that a forked process may draw too. It needs no system call.
pub(crate) fn random_in_process() -> u64 {
    RandomState::new().hash_one(())
}

fn random_in(state: &RandomState, process: u32) -> u64 {
    state.hash_one(process)
}

/// A random part of a time.
pub(crate) fn part_of(time: Duration) -> Duration {
    let part = random() % 1024;
    time / 1024 * u32::try_from(part).unwrap_or_default()
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn forked_processes_draw_different_numbers() {
        let state = RandomState::new();
        assert_ne!(random_in(&state, 4711), random_in(&state, 4712));
    }

    #[test]
    fn durations_have_at_most_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (300, "300 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_001, "1.1 s"),
            (12_340, "12.4 s"),
            (59_999, "60 s"),
            (60_000, "1 min"),
            (89_000, "1 min 29 s"),
            (3_600_000, "1 h"),
            (86_397_997, "23 h 59 min"),
            (86_400_000, "1 d"),
            (189_000_000, "2 d 4 h"),
        ] {
            assert_eq!(ReadableDuration(Duration::from_millis(ms)).to_string(), text, "{ms} ms");
        }
        assert_eq!(ReadableDuration(Duration::from_micros(1)).to_string(), "1 ms");
    }
}
