//! Envelopes, encoded.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::ConnectError;

pub(super) const HEADER: usize = 5;
pub(super) const COMPRESSED: u8 = 1;
pub(super) const END: u8 = 2;

/// A message envelope around JSON.
pub fn message(json: &[u8]) -> Bytes {
    envelope(0, json)
}

/// The envelope that ends a stream.
pub fn end(result: &Result<(), ConnectError>) -> Bytes {
    #[derive(Serialize)]
    struct End<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a ConnectError>,
    }
    let json = serde_json::to_vec(&End { error: result.as_ref().err() });
    envelope(END, &json.unwrap_or_else(|_| b"{}".to_vec()))
}

/// What the payload of an end-of-stream envelope says.
pub fn outcome(payload: &[u8]) -> Result<Result<(), ConnectError>, serde_json::Error> {
    #[derive(Deserialize)]
    struct End {
        #[serde(default)]
        error: Option<ConnectError>,
    }
    let end: End = serde_json::from_slice(payload)?;
    Ok(end.error.map_or(Ok(()), Err))
}

fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + payload.len());
    bytes.put_u8(flags);
    // What is sent is far below 4 GiB: a chunk of output, an entry, an error.
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Code;

    #[test]
    fn an_envelope_is_flags_length_payload() {
        assert_eq!(message(b"{}").as_ref(), b"\0\0\0\0\x02{}");
        assert_eq!(end(&Ok(())).as_ref(), b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn an_end_says_how_a_stream_ended() {
        let error = ConnectError::not_found("no such thing");
        let sent = end(&Err(error.clone()));
        let text = r#"{"error":{"code":"not_found","message":"no such thing"}}"#;
        assert_eq!(&sent[HEADER..], text.as_bytes());
        assert_eq!(outcome(&sent[HEADER..]).unwrap(), Err(error));
        assert_eq!(outcome(b"{}").unwrap(), Ok(()));
        assert_eq!(outcome(br#"{"error":null,"metadata":{}}"#).unwrap(), Ok(()));
        let odd = outcome(br#"{"error":{"code":"new_code"}}"#).unwrap().unwrap_err();
        assert_eq!((odd.code, odd.message.as_str()), (Code::Unknown, ""));
        assert!(outcome(b"").is_err() && outcome(b"[1]").is_err());
    }
}
