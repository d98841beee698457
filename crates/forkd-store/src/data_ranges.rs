//! Which pages of a chain can be anything but zero.

use std::fs::File;
use std::ops::Range;

use crate::chain::Chain;
use crate::files::{next_data, next_hole};
use crate::layout::PAGE_BYTES;
use crate::overlay::{Extent, Origin};

impl Chain {
    /// The pages that may not be zero, as ascending ranges that neither overlap nor touch. Holes of the files are left
    /// out; a file system that knows none gives more pages, never fewer.
    pub fn data_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let extents = self.extents().iter().filter_map(|extent| match extent.origin {
            Origin::Zero => None,
            Origin::Layer { layer, .. } => Some((*extent, self.snapshots()[layer].memory_file())),
        });
        merged(extents.flat_map(|(extent, file)| data_of(extent, file)))
    }
}

/// The pages of an extent that are not in holes of its file.
fn data_of(extent: Extent, file: &File) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut rest = extent;
    std::iter::from_fn(move || {
        let Origin::Layer { page, .. } = rest.origin else {
            return None;
        };
        if rest.count == 0 {
            return None;
        }
        let offset = next_data(file, page * PAGE_BYTES)?;
        let data = offset / PAGE_BYTES;
        let begin = rest.skip((data - page).min(rest.count));
        let hole = next_hole(file, offset).map_or(u64::MAX, |hole| hole.div_ceil(PAGE_BYTES));
        let count = begin.count.min(hole - data);
        rest = begin.skip(count);
        (count > 0).then_some(begin.first..begin.first + count)
    })
}

/// Joins ranges that touch.
fn merged(ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageSource;
    use crate::testing::{TestStore, memory, tag};
    use proptest::prelude::*;
    use std::fs;

    fn ranges(store: &TestStore, name: &str) -> Vec<Range<u64>> {
        Chain::load(store, &tag(name)).unwrap().data_ranges().collect()
    }

    /// Ranges are cut where the file system's blocks are: with pages as blocks they are exact.
    #[test]
    fn holes_are_left_out_and_neighbours_are_one_range() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[0, 1, 2, 0, 0, 3, 4, 0]));
        let middle = store.diff("middle", &base, &memory(&[0, 1, 9, 8, 0, 3, 0, 0]));
        store.diff("head", &middle, &memory(&[0; 8]));
        assert_eq!(ranges(&store, "base"), [1..3, 5..7]);
        assert_eq!(ranges(&store, "middle"), [1..4, 5..6]);
        assert_eq!(ranges(&store, "head"), []);
        // Without holes: everything that is not known to be zero.
        let file = store.path().join("base/memory.bin");
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
        assert!(ranges(&store, "base").into_iter().eq(std::iter::once(0..8)));
        assert_eq!(ranges(&store, "middle"), [0..6, 7..8]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_page_outside_is_zero(generations in proptest::collection::vec(proptest::collection::vec(0u8..3, 30), 1..4)) {
            let store = TestStore::new();
            let mut link = store.full("s0", &memory(&generations[0]));
            for (number, values) in generations.iter().enumerate().skip(1) {
                link = store.diff(&format!("s{number}"), &link, &memory(values));
            }
            let chain = Chain::load(&store, &link.tag).unwrap();
            let ranges: Vec<_> = chain.data_ranges().collect();
            prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= 30));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            for page in 0..30 {
                let mut bytes = [0; 4096];
                chain.read(page, &mut bytes).unwrap();
                prop_assert!(bytes == [0; 4096] || ranges.iter().any(|range| range.contains(&page)), "{page}");
            }
        }
    }
}
