//! A refusal as the status of a gRPC call.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header::CONTENT_TYPE, request::Parts};

use super::{
    HeaderStyle,
    headers::QuotaPolicy,
    problem::{detail, forbid_caching, wait_of, write_limit},
};
use crate::{Cause, RequestPerMinute};

/// The media type of the response to a gRPC or gRPC-Web call. `None` for other requests, for which
/// a gRPC status would be a cacheable `200 OK`.
pub(super) fn media_type(request: &Parts) -> Option<String> {
    let mut types = request.headers.get_all(CONTENT_TYPE).iter();
    let (&Method::POST, Some(content), None) = (&request.method, types.next(), types.next()) else { return None };
    let media_type = content.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
    let (kind, format) = media_type.split_once('+').unwrap_or((&media_type, "proto"));
    let is_kind = matches!(kind, "application/grpc" | "application/grpc-web" | "application/grpc-web-text");
    let is_format = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (is_kind && !format.is_empty() && format.bytes().all(is_format)).then_some(media_type)
}

/// The header fields of a response without a body (*Trailers-Only*).
pub(super) fn trailers_only(
    refused: &RequestPerMinute,
    style: HeaderStyle,
    policies: &[QuotaPolicy<'_>],
    media_type: &str,
) -> HeaderMap {
    let (code, message) = (code(refused.cause()), detail(refused));
    let mut headers = HeaderMap::new();
    let mut insert = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    insert("content-type", media_type);
    insert("grpc-status", &code.to_string());
    insert("grpc-message", &percent_encoded(&message));
    if let Some(wait) = wait_of(refused) {
        let details = status_with_retry(code, &message, wait.as_secs().min(LONGEST_SECONDS), wait.subsec_nanos());
        insert("grpc-status-details-bin", &STANDARD_NO_PAD.encode(details));
    }
    forbid_caching(&mut headers);
    write_limit(refused, style, policies, &mut headers);
    headers
}

fn code(cause: Cause) -> u64 {
    match cause {
        Cause::Exceeded | Cause::NeverFits | Cause::Banned => 8, // RESOURCE_EXHAUSTED
        Cause::MissingKey => 7,                                  // PERMISSION_DENIED
        Cause::Unavailable => 14,                                // UNAVAILABLE
        Cause::Misconfigured => 13,                              // INTERNAL
    }
}

/// Percent-encodes `%` and all but printable ASCII, as the gRPC protocol requires for messages.
fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'%' => "%25".to_owned(),
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The longest `google.protobuf.Duration`.
const LONGEST_SECONDS: u64 = 315_576_000_000;

// Four Protocol Buffers messages, encoded by hand, as a code generator would outweigh this layer:
//     google.rpc.Status { code = 1, message = 2, details = 3 of google.protobuf.Any { type_url = 1, value = 2 } }
//     google.rpc.RetryInfo { retry_delay = 1 of google.protobuf.Duration { seconds = 1, nanos = 2 } }
fn status_with_retry(code: u64, message: &str, seconds: u64, nanos: u32) -> Vec<u8> {
    let delay = [number(1, seconds), number(2, nanos.into())].concat();
    let retry_info = bytes(1, &delay);
    let any = [bytes(1, b"type.googleapis.com/google.rpc.RetryInfo"), bytes(2, &retry_info)].concat();
    [number(1, code), bytes(2, message.as_bytes()), bytes(3, &any)].concat()
}

/// Encodes a field with an integer.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    write_varint(value, &mut out);
    out
}

/// Encodes a field with bytes, a text or a message.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    write_varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

/// Appends seven bits per byte, the lowest first. The eighth bit means that more follow.
#[allow(clippy::cast_possible_truncation)] // seven bits are left
fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}
