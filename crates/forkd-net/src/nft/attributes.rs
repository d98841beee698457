//! Netlink attributes: length, kind, value, padded to four bytes.

const HEADER: usize = 4;
/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// Attributes as they are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn put(mut self, kind: u16, value: &[u8]) -> Attributes {
        // Values are addresses, names and nests of a few rules; the longest nest is a rule's expressions.
        let length = u16::try_from(value.len() + HEADER).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn number(self, kind: u16, value: u32) -> Attributes {
        self.put(kind, &value.to_be_bytes())
    }

    pub fn long(self, kind: u16, value: u64) -> Attributes {
        self.put(kind, &value.to_be_bytes())
    }

    pub fn text(self, kind: u16, value: &str) -> Attributes {
        let bytes: Vec<u8> = value.bytes().chain([0]).collect();
        self.put(kind, &bytes)
    }

    pub fn nest(self, kind: u16, inner: &Attributes) -> Attributes {
        self.put(kind | NESTED, &inner.0)
    }
}

/// Reads attributes: kind and value. What is broken ends the list.
pub fn parse(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    parse(bytes).find_map(|(other, value)| (other == kind).then_some(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_can_be_read(values in proptest::collection::vec((1..50u16, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let written = values.iter().fold(Attributes::default(), |all, (kind, value)| all.put(*kind, value));
            let read: Vec<_> = parse(written.bytes()).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn nothing_read_is_beyond_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let total: usize = parse(&bytes).map(|(_, value)| value.len() + HEADER).sum();
            prop_assert!(total <= bytes.len());
        }
    }

    #[test]
    fn nests_are_marked() {
        let inner = Attributes::default().number(1, 7);
        let outer = Attributes::default().nest(2, &inner).text(3, "ab");
        assert_eq!(outer.bytes()[2..4], (2 | NESTED).to_ne_bytes());
        assert_eq!(find(find(outer.bytes(), 2).unwrap(), 1), Some(&[0, 0, 0, 7][..]));
        assert_eq!(find(outer.bytes(), 3), Some(&b"ab\0"[..]));
    }
}
