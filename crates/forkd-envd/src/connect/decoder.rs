//! Envelopes, decoded: bytes as they come, cut into messages.

use bytes::{Bytes, BytesMut};

use super::envelope::{COMPRESSED, END, HEADER};
use super::{Code, ConnectError};

/// What an envelope holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Message(Bytes),
    /// The last one of a stream.
    End(Bytes),
}

/// Holds at most one message and what was pushed at once. After the end of the stream, bytes are ignored.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    /// Bytes of the largest message.
    limit: usize,
    ended: bool,
}

impl Decoder {
    pub fn new(limit: usize) -> Decoder {
        Decoder { buffer: BytesMut::new(), limit, ended: false }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole envelope, or nothing until more has been pushed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ConnectError> {
        let Some((flags, length)) = self.header() else { return Ok(None) };
        if length > self.limit {
            let text = format!("a message of {length} bytes; the largest is {}", self.limit);
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
        if flags & COMPRESSED != 0 {
            return Err(ConnectError::new(Code::Unimplemented, "compressed messages were not negotiated"));
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        let payload = self.buffer.split_to(HEADER + length).freeze().slice(HEADER..);
        if flags & END != 0 {
            self.ended = true;
            self.buffer.clear();
            return Ok(Some(Frame::End(payload)));
        }
        Ok(Some(Frame::Message(payload)))
    }

    /// Whether the bytes may end here: not inside an envelope.
    pub fn finish(&self) -> Result<(), ConnectError> {
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
    use crate::connect::{end, message};

    const LIMIT: usize = 1000;

    fn decoder() -> Decoder {
        Decoder::new(LIMIT)
    }

    #[test]
    fn what_is_too_long_or_compressed_is_refused_by_its_header() {
        let mut long = decoder();
        long.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(long.next_frame().unwrap_err().code, Code::ResourceExhausted);
        let mut compressed = decoder();
        compressed.push(&[1, 0, 0, 0, 9]);
        assert_eq!(compressed.next_frame().unwrap_err().code, Code::Unimplemented);
        let mut longest = decoder();
        longest.push(&message(&[b'x'; LIMIT]));
        assert!(matches!(longest.next_frame(), Ok(Some(Frame::Message(payload))) if payload.len() == LIMIT));
    }

    #[test]
    fn an_end_of_stream_ends_it() {
        let mut decoder = decoder();
        decoder.push(&end(&Ok(())));
        decoder.push(&message(b"late"));
        assert_eq!(decoder.next_frame(), Ok(Some(Frame::End("{}".into()))));
        decoder.push(&message(b"later"));
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn a_request_cut_short_is_an_error() {
        let mut decoder = decoder();
        decoder.push(&message(b"whole")[..7]);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!(decoder.finish().unwrap_err().code, Code::InvalidArgument);
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(messages in vec(vec(any::<u8>(), 0..40), 0..8), step in 1_usize..13) {
            let wire: Vec<u8> = messages.iter().flat_map(|payload| message(payload)).collect();
            let mut decoder = decoder();
            let mut decoded = Vec::new();
            for piece in wire.chunks(step) {
                decoder.push(piece);
                while let Some(Frame::Message(payload)) = decoder.next_frame().unwrap() {
                    decoded.push(payload.to_vec());
                }
            }
            prop_assert_eq!(decoded, messages);
            prop_assert!(decoder.finish().is_ok());
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            let mut decoder = decoder();
            decoder.push(&bytes);
            while let Ok(Some(Frame::Message(payload) | Frame::End(payload))) = decoder.next_frame() {
                prop_assert!(payload.len() <= bytes.len());
            }
        }
    }
}
