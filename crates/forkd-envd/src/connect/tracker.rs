//! Where in a stream of envelopes a program is that only passes it on.

use super::envelope::{END, HEADER};

/// Follows a stream without keeping any of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracker {
    header: [u8; HEADER],
    /// Bytes of the current header that have come.
    seen: usize,
    /// Bytes of the current payload that have not.
    left: usize,
}

impl Tracker {
    /// These bytes were passed on.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.seen == HEADER && self.left == 0 {
                self.seen = 0;
            }
            if self.seen < HEADER {
                let taken = bytes.len().min(HEADER - self.seen);
                let (now, rest) = bytes.split_at(taken);
                self.header[self.seen..self.seen + taken].copy_from_slice(now);
                (self.seen, bytes) = (self.seen + taken, rest);
                if self.seen == HEADER {
                    let [_, length @ ..] = self.header;
                    self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                }
            } else {
                let taken = bytes.len().min(self.left);
                (self.left, bytes) = (self.left - taken, &bytes[taken..]);
            }
        }
    }

    /// Whether another envelope may follow here. After the end of the stream, none does.
    pub fn is_between(&self) -> bool {
        self.seen == 0 || (self.seen == HEADER && self.left == 0 && self.header[0] & END == 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::connect::{Decoder, end, message};

    #[test]
    fn an_envelope_may_follow_between_two_and_not_after_the_last() {
        let mut tracker = Tracker::default();
        assert!(tracker.is_between());
        let message = message(b"abc");
        tracker.pass(&message[..4]);
        assert!(!tracker.is_between(), "in a header");
        tracker.pass(&message[4..7]);
        assert!(!tracker.is_between(), "in a message");
        tracker.pass(&message[7..]);
        assert!(tracker.is_between());
        tracker.pass(&end(&Ok(())));
        assert!(!tracker.is_between(), "it has ended");
    }

    proptest! {
        /// The decoder, which keeps everything, agrees.
        #[test]
        fn it_is_between_where_a_decoder_is(messages in vec(vec(any::<u8>(), 0..9), 0..5), step in 1_usize..13) {
            let wire: Vec<u8> = messages.iter().flat_map(|payload| message(payload)).collect();
            let (mut tracker, mut decoder) = (Tracker::default(), Decoder::new(9));
            for piece in wire.chunks(step) {
                tracker.pass(piece);
                decoder.push(piece);
                while decoder.next_frame().unwrap().is_some() {}
                prop_assert_eq!(tracker.is_between(), decoder.finish().is_ok());
            }
        }
    }
}
