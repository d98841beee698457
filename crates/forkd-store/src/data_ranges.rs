//! Which pages of a chain can be anything but zero.

use std::ops::Range;

use crate::chain::Chain;
use crate::overlay::Origin;

impl Chain {
    /// The pages that may not be zero, as ascending ranges that neither overlap nor touch.
    pub fn data_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let data = self.extents().iter().filter(|extent| extent.origin != Origin::Zero);
        merged(data.map(|extent| extent.first..extent.end()))
    }
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

    fn ranges(store: &TestStore, name: &str) -> Vec<Range<u64>> {
        Chain::load(store, &tag(name)).unwrap().data_ranges().collect()
    }

    #[test]
    fn zero_pages_are_left_out_and_neighbours_are_one_range() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[0, 1, 2, 0, 0, 3, 4, 0]));
        let middle = store.diff("middle", &base, &memory(&[0, 1, 9, 8, 0, 3, 0, 0]));
        store.diff("head", &middle, &memory(&[0; 8]));
        assert_eq!(ranges(&store, "base"), [1..3, 5..7]);
        assert_eq!(ranges(&store, "middle"), [1..4, 5..6]);
        assert_eq!(ranges(&store, "head"), []);
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
