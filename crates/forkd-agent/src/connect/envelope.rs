//! Envelopes, encoded and decoded.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Code, ConnectError, MAX_MESSAGE};

const HEADER: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;

/// A message envelope around JSON.
pub fn message(json: &[u8]) -> Bytes {
    envelope(0, json)
}

/// The envelope that ends a stream.
pub(super) fn end(result: &Result<(), ConnectError>) -> Bytes {
    envelope(END, &ConnectError::end(result))
}

fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + payload.len());
    bytes.put_u8(flags);
    // What this program sends is far below 4 GiB: a chunk of output, an entry, an error.
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

/// Cuts a request's bytes, as they come, into messages.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: BytesMut,
    ended: bool,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole message, or nothing until more has been pushed.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, ConnectError> {
        let Some((flags, length)) = self.header() else { return Ok(None) };
        if length > MAX_MESSAGE {
            let text = format!("a message of {length} bytes; the largest is {MAX_MESSAGE}");
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
        if flags & COMPRESSED != 0 {
            return Err(ConnectError::new(Code::Unimplemented, "compressed messages were not negotiated"));
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        let envelope = self.buffer.split_to(HEADER + length).freeze();
        if flags & END != 0 {
            self.ended = true;
            self.buffer.clear();
            return Ok(None);
        }
        Ok(Some(envelope.slice(HEADER..)))
    }

    /// Whether the request may end here: not inside an envelope.
    pub(super) fn finish(&self) -> Result<(), ConnectError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(ConnectError::invalid("the request ends inside a message"))
        }
    }

    fn header(&self) -> Option<(u8, usize)> {
        let (flags, rest) = self.buffer.split_first()?;
        let length = u32::from_be_bytes(*rest.first_chunk::<4>()?);
        Some((*flags, usize::try_from(length).unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_envelope_is_flags_length_payload() {
        assert_eq!(message(b"{}").as_ref(), b"\0\0\0\0\x02{}");
        assert_eq!(end(&Ok(())).as_ref(), b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn what_is_too_long_or_compressed_is_refused_by_its_header() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next().unwrap_err().code, Code::ResourceExhausted);
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 9]);
        assert_eq!(decoder.next().unwrap_err().code, Code::Unimplemented);
    }

    #[test]
    fn an_end_of_stream_ends_the_request() {
        let mut decoder = Decoder::default();
        decoder.push(&end(&Ok(())));
        decoder.push(&message(b"late"));
        assert_eq!(decoder.next(), Ok(None));
        decoder.push(&message(b"later"));
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn a_request_cut_short_is_an_error() {
        let mut decoder = Decoder::default();
        decoder.push(&message(b"whole")[..7]);
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish().unwrap_err().code, Code::InvalidArgument);
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(messages in vec(vec(any::<u8>(), 0..40), 0..8), step in 1_usize..13) {
            let wire: Vec<u8> = messages.iter().flat_map(|payload| message(payload)).collect();
            let mut decoder = Decoder::default();
            let mut decoded = Vec::new();
            for piece in wire.chunks(step) {
                decoder.push(piece);
                while let Some(payload) = decoder.next().unwrap() {
                    decoded.push(payload.to_vec());
                }
            }
            prop_assert_eq!(decoded, messages);
            prop_assert!(decoder.finish().is_ok());
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(payload)) = decoder.next() {
                prop_assert!(payload.len() <= bytes.len());
            }
        }
    }
}
