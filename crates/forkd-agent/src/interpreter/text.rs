//! Output as text: bytes come in chunks that may end in the middle of a character.

/// Decodes one stream. What is not UTF-8 becomes U+FFFD, in the same places as in `String::from_utf8_lossy` of the whole.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of a character: at most three bytes.
    rest: Vec<u8>,
}

impl Decoder {
    pub fn decode(&mut self, chunk: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(chunk);
        let keep = unfinished(&bytes);
        self.rest = bytes.split_off(bytes.len() - keep);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The rest at the end of the stream.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned()
    }
}

/// How many bytes at the end are a character that the next chunk may complete.
fn unfinished(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return 0,
            Err(error) => match error.error_len() {
                None => return rest.len() - error.valid_up_to(),
                Some(length) => rest = rest.get(error.valid_up_to() + length..).unwrap_or_default(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_decode_to_the_same_text_as_the_whole(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "[aäé€😀]{0,20}".prop_map(String::into_bytes),
                proptest::collection::vec(prop_oneof![Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f), Just(b'a')], 0..40),
            ],
            cuts in proptest::collection::vec(0usize..61, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut decoder = Decoder::default();
            let mut text = String::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                text += &decoder.decode(&bytes[from..cut]);
                prop_assert!(decoder.rest.len() <= 3);
                from = cut;
            }
            text += &decoder.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
