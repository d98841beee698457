//! `Range: bytes=…`: one part of a file.

/// What of a file is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRange {
    Whole,
    /// From the first byte, so many.
    Part {
        start: u64,
        length: u64,
    },
    /// Nothing of the file is in the range.
    Outside,
}

/// Reads the header. Several ranges, and what is not understood, are answered with the whole file, which a server may.
pub fn parse(header: Option<&str>, size: u64) -> FileRange {
    let Some((first, last)) = header
        .and_then(|header| header.trim().strip_prefix("bytes="))
        .filter(|ranges| !ranges.contains(','))
        .and_then(|range| range.split_once('-'))
    else {
        return FileRange::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => FileRange::Outside,
            // The last so many bytes.
            Some(count) => part(size.saturating_sub(count), size, size),
            None => FileRange::Whole,
        },
        (first, "") => number(first).map_or(FileRange::Whole, |start| part(start, size, size)),
        (first, last) => match (number(first), number(last)) {
            (Some(start), Some(last)) if start <= last => part(start, last.saturating_add(1), size),
            _ => FileRange::Whole,
        },
    }
}

fn part(start: u64, end: u64, size: u64) -> FileRange {
    let end = end.min(size);
    if start >= end { FileRange::Outside } else { FileRange::Part { start, length: end - start } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_of_a_range() {
        let at_ten = |header| parse(Some(header), 10);
        assert_eq!(parse(None, 10), FileRange::Whole);
        assert_eq!(at_ten("bytes=0-3"), FileRange::Part { start: 0, length: 4 });
        assert_eq!(at_ten("bytes=7-"), FileRange::Part { start: 7, length: 3 });
        assert_eq!(at_ten("bytes=-4"), FileRange::Part { start: 6, length: 4 });
        assert_eq!(at_ten("bytes=-40"), FileRange::Part { start: 0, length: 10 });
        assert_eq!(at_ten("bytes=8-99"), FileRange::Part { start: 8, length: 2 });
        assert_eq!(at_ten("bytes=10-"), FileRange::Outside);
        assert_eq!(at_ten("bytes=-0"), FileRange::Outside);
        for whole in ["bytes=0-1,3-4", "bytes=5-2", "bytes=", "bytes=-", "bytes=a-b", "lines=1-2", ""] {
            assert_eq!(at_ten(whole), FileRange::Whole, "{whole}");
        }
        assert_eq!(parse(Some("bytes=0-18446744073709551615"), 10), FileRange::Part { start: 0, length: 10 });
    }

    proptest! {
        #[test]
        fn a_part_is_inside_the_file(header in "bytes=[0-9]{0,20}-[0-9]{0,20}", size in any::<u64>()) {
            if let FileRange::Part { start, length } = parse(Some(&header), size) {
                prop_assert!(length > 0);
                prop_assert!(start.checked_add(length).is_some_and(|end| end <= size));
            }
        }
    }
}
