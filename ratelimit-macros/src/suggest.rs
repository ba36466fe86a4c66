//! Suggests the name that a misspelt one resembles.

/// The end of an error about `word`: the nearest of `names`, or all of them.
pub(crate) fn suggest(word: &str, names: &[&'static str]) -> String {
    match nearest(word, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("expected {}", list(names, "or")),
    }
}

/// The names of arguments in other libraries.
const OTHER_NAMES: [(&str, &str); 3] = [("limit", "count"), ("name", "prefix"), ("window", "period")];

pub(crate) fn nearest(word: &str, names: &[&'static str]) -> Option<&'static str> {
    let word = word.to_lowercase();
    if let Some((_, name)) = OTHER_NAMES.iter().find(|(other, name)| *other == word && names.contains(name)) {
        return Some(name);
    }
    names
        .iter()
        .map(|name| (distance(&word, &name.to_lowercase()), *name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .map(|(_, name)| name)
}

/// Lists names with `word` before the last one: `` `a`, `b` or `c` ``.
pub(crate) fn list(names: &[&str], word: &str) -> String {
    match names {
        [] => String::new(),
        [name] => format!("`{name}`"),
        [rest @ .., last] => format!("`{}` {word} `{last}`", rest.join("`, `")),
    }
}

/// Edit distance: letters to insert, delete, replace, or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                let swapped: usize = before[j - 1];
                least = least.min(swapped + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}
