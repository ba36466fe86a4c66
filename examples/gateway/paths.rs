//! The path of a request, as the server behind the gateway may read it.

use percent_encoding::percent_decode_str;

/// The path that decides which route and limits a request has: decoded, and without parameters.
///
/// `None` if servers disagree about the path, for example `/api/../search`, `/api/%2e%2e/search`
/// and `/api//items`. Such a request would be limited as one path, and answered as another.
pub(crate) fn decoded(path: &str) -> Option<String> {
    let segments: Vec<_> = path.strip_prefix('/')?.split('/').collect();
    let mut decoded = String::with_capacity(path.len());
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        if segment.is_empty() && !is_last {
            return None;
        }
        // `;jsessionid=1` is a parameter for some servers.
        let name = segment.split(';').next().filter(|name| !name.is_empty() || is_last)?;
        decoded.push('/');
        decoded.push_str(&decoded_segment(name)?);
    }
    Some(decoded)
}

/// Number of times that a text may be decoded before it stays the same. Each takes as long as the text.
const MAX_DECODED: usize = 4;

fn decoded_segment(segment: &str) -> Option<String> {
    let decoded = percent_decode_str(segment).decode_utf8().ok()?.into_owned();
    let mut seen = decoded.clone();
    // Some servers decode twice. A text that is encoded more often serves an attack only.
    for _ in 0..MAX_DECODED {
        let name = seen.split(';').next();
        if matches!(name, Some("." | ".."))
            || seen.contains(|letter: char| matches!(letter, '/' | '\\') || letter.is_control())
        {
            return None;
        }
        let again = percent_decode_str(&seen).decode_utf8_lossy().into_owned();
        if again == seen {
            return Some(decoded);
        }
        seen = again;
    }
    None
}
