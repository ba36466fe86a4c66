//! The end compared with the start.

use crate::measure::Sample;

const MIB: u64 = 1024;

/// Memory may be more than at the start by a tenth, or by this many KiB if that is more.
fn bound(start: u64, least: u64) -> u64 {
    start + (start / 10).max(least)
}

/// Prints a row for each, and returns what does not hold. `resident` are the sizes of the process
/// under load, in KiB, at equal intervals.
pub(crate) fn print(start: &Sample, end: &Sample, resident: &[u64]) -> Vec<String> {
    let mut broken = Vec::new();
    println!("\nQuiet, without calls: after the warm-up and at the end.");
    println!("{:<26}{:>10}{:>10}{:>10}", "", "start", "end", "change");
    let mut row = |name: &str, start: u64, end: u64, holds: bool, rule: &str| {
        let verdict = if holds { "ok" } else { "DOES NOT HOLD" };
        println!("{name:<26}{start:>10}{end:>10}{:>+10}  {verdict}: {rule}", end.cast_signed() - start.cast_signed());
        if !holds {
            broken.push(format!("{name}: {start} at the start, {end} at the end: {rule}"));
        }
    };
    for ((name, start), (_, end)) in start.counts().iter().zip(end.counts()) {
        row(name, *start, end, *start == end, "equal");
    }
    let at_most = bound(start.memory, 8 * MIB);
    row("memory, KiB", start.memory, end.memory, end.memory <= at_most, &format!("at most {at_most}"));
    let at_most = bound(start.allocated, MIB);
    row("allocated, KiB", start.allocated, end.allocated, end.allocated <= at_most, &format!("at most {at_most}"));
    for (start, end) in start.servers.iter().zip(&end.servers) {
        let at_most = bound(start.memory, MIB);
        let name = format!("memory, {}, KiB", start.name);
        row(&name, start.memory, end.memory, end.memory <= at_most, &format!("at most {at_most}"));
    }
    let last_half = &resident[resident.len() / 2..];
    if let [first, .., last] = fitted(last_half)[..] {
        let at_most = bound(first, 8 * MIB);
        let rule = format!("at most {at_most}; the ends of the line that fits best");
        row("memory, last half, KiB", first, last, last <= at_most, &rule);
    }
    broken
}

/// The line that fits best, at each sample.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // some hundred MiB
fn fitted(samples: &[u64]) -> Vec<u64> {
    let count = samples.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, samples.iter().sum::<u64>() as f64 / count);
    let (mut products, mut squares) = (0.0, 0.0);
    for (at, sample) in samples.iter().enumerate() {
        products += (at as f64 - middle) * (*sample as f64 - mean);
        squares += (at as f64 - middle).powi(2);
    }
    let slope = if squares > 0.0 { products / squares } else { 0.0 };
    (0..samples.len()).map(|at| (mean + slope * (at as f64 - middle)).max(0.0) as u64).collect()
}
