//! A refusal as the status of a gRPC call.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE, request::Parts};

use super::{
    HeaderStyle,
    headers::Told,
    problem::{detail, is_about_the_limit},
};
use crate::{Cause, RequestPerMinute};

pub(super) fn is_asked_for(request: &Parts) -> bool {
    let content = request.headers.get(CONTENT_TYPE);
    content.is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"))
}

/// The head of a response that is nothing but a status.
pub(super) fn trailers_only(refused: &RequestPerMinute, style: HeaderStyle) -> HeaderMap {
    let (code, message) = (code(refused.cause()), detail(refused));
    let mut headers = HeaderMap::new();
    let mut insert = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    insert("content-type", "application/grpc");
    insert("grpc-status", &code.to_string());
    insert("grpc-message", &percent_encoded(&message));
    if let Some(wait) = refused.retry_after() {
        let details = status_with_retry(code, &message, wait.as_secs(), wait.subsec_nanos());
        insert("grpc-status-details-bin", &STANDARD_NO_PAD.encode(details));
    }
    if is_about_the_limit(refused.cause()) {
        style.write(&Told::by_refusal(refused), &mut headers);
    }
    headers
}

fn code(cause: Cause) -> u64 {
    match cause {
        Cause::Exceeded | Cause::NeverFits => 8, // RESOURCE_EXHAUSTED
        Cause::MissingKey => 7,                  // PERMISSION_DENIED
        Cause::Unavailable => 14,                // UNAVAILABLE
        Cause::Misconfigured => 13,              // INTERNAL
    }
}

/// As the gRPC protocol has messages written: what is not printable ASCII, and `%`, in hexadecimal.
fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'%' => "%25".to_owned(),
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

// Four messages of Protocol Buffers, written by hand, as a code generator would be the larger part of this layer:
//     google.rpc.Status { code = 1, message = 2, details = 3 of google.protobuf.Any { type_url = 1, value = 2 } }
//     google.rpc.RetryInfo { retry_delay = 1 of google.protobuf.Duration { seconds = 1, nanos = 2 } }
fn status_with_retry(code: u64, message: &str, seconds: u64, nanos: u32) -> Vec<u8> {
    let delay = [number(1, seconds), number(2, nanos.into())].concat();
    let retry_info = bytes(1, &delay);
    let any = [bytes(1, b"type.googleapis.com/google.rpc.RetryInfo"), bytes(2, &retry_info)].concat();
    [number(1, code), bytes(2, message.as_bytes()), bytes(3, &any)].concat()
}

/// A field that holds an integer.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    write_varint(value, &mut out);
    out
}

/// A field that holds bytes, a text or a message.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    write_varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

/// Seven bits a byte, the lowest first; the eighth says that more follow.
#[allow(clippy::cast_possible_truncation)] // seven bits are left
fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}
