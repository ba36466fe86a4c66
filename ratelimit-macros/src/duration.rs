//! Parses durations such as `"30s"`.

/// Milliseconds of `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"` or a sum such as `"1m30s"`.
pub(crate) fn parse(text: &str) -> Result<u64, &'static str> {
    let mut total: u64 = 0;
    let mut rest = text;
    loop {
        let (number, tail) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, tail) = split_where(tail, |c| c.is_ascii_digit());
        let unit = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(EXPECTED),
        };
        if number.is_empty() {
            return Err(EXPECTED);
        }
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .and_then(|part| total.checked_add(part))
            .ok_or("this duration is too long, use a shorter one such as \"1d\"")?;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    if total == 0 {
        return Err("a duration must be greater than 0, for example \"30s\"");
    }
    Ok(total)
}

pub(crate) const EXPECTED: &str = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}
