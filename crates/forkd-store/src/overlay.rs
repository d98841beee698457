//! Where each page of a chain comes from: the layers laid over each other, once.
//!
//! ```text
//!   base    │ a a a a a a a a │
//!   diff 1  │   b b     z     │      z: has become zero
//!   diff 2  │     c c         │
//!   ────────┼─────────────────┼
//!   extents │ a b c c a z a a │      the newest layer that says something about a page wins
//! ```

use std::fs::File;

use crate::files::{next_data, next_hole};
use crate::layout::PAGE_BYTES;
use crate::page_map::{Run, RunKind};

/// Consecutive pages that come from one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub first: u64,
    pub count: u64,
    pub origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Zero,
    /// From page number `page` on in the `memory.bin` of a layer.
    Layer {
        layer: usize,
        page: u64,
    },
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// The same pages without the first `count`.
    pub fn skip(&self, count: u64) -> Extent {
        Extent {
            first: self.first + count,
            count: self.count - count,
            origin: match self.origin {
                Origin::Zero => Origin::Zero,
                Origin::Layer { layer, page } => Origin::Layer { layer, page: page + count },
            },
        }
    }
}

/// Memory that is zero: what the runs of a full snapshot are laid over.
pub(crate) fn zero(pages: u64) -> Vec<Extent> {
    vec![Extent { first: 0, count: pages, origin: Origin::Zero }]
}

/// The extents of a full snapshot of version 1, whose pages are at their places. Pages in holes are zero; a file system that knows no
/// holes gives fewer of these.
pub(crate) fn sparse(file: &File, pages: u64) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut first = 0;
    while first < pages {
        let offset = next_data(file, first * PAGE_BYTES);
        let data = offset.map_or(pages, |offset| (offset / PAGE_BYTES).clamp(first, pages));
        let hole = offset.and_then(|offset| next_hole(file, offset));
        let end = hole.map_or(pages, |hole| hole.div_ceil(PAGE_BYTES).clamp(data, pages));
        if data > first {
            extents.push(Extent { first, count: data - first, origin: Origin::Zero });
        }
        if end > data {
            let origin = Origin::Layer { layer: 0, page: data };
            extents.push(Extent { first: data, count: end - data, origin });
        }
        first = end;
    }
    extents
}

/// Lays the runs of a diff over extents that cover all pages. The result does so again.
pub(crate) fn over(lower: &[Extent], layer: usize, runs: &[Run]) -> Vec<Extent> {
    let mut result = Vec::with_capacity(lower.len() + runs.len());
    let mut lower = lower.iter().copied();
    let mut current = lower.next();
    // Takes the lower extents up to a page, and gives them to `keep`.
    let mut take_until = |page: u64, keep: &mut dyn FnMut(Extent)| {
        while let Some(extent) = current.filter(|extent| extent.first < page) {
            let count = extent.count.min(page - extent.first);
            keep(Extent { count, ..extent });
            current = match extent.count - count {
                0 => lower.next(),
                _ => Some(extent.skip(count)),
            };
        }
    };
    let mut data = 0;
    for run in runs {
        take_until(run.first, &mut |extent| result.push(extent));
        take_until(run.end(), &mut |_hidden| {});
        let count = u64::from(run.count);
        let origin = match run.kind {
            RunKind::Zero => Origin::Zero,
            RunKind::Data => Origin::Layer { layer, page: data },
        };
        if run.kind == RunKind::Data {
            data += count;
        }
        result.push(Extent { first: run.first, count, origin });
    }
    take_until(u64::MAX, &mut |extent| result.push(extent));
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_map::PageMap;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    const PAGES: u64 = 40;

    /// Any diff: for each page unchanged, data or zero.
    fn any_diff() -> impl Strategy<Value = PageMap> {
        proptest::collection::vec(0..3, usize::try_from(PAGES).unwrap()).prop_map(|kinds| {
            let mut map = PageMap::new(PAGES);
            for (page, kind) in (0..).zip(kinds) {
                match kind {
                    1 => map.push(page, RunKind::Data).unwrap(),
                    2 => map.push(page, RunKind::Zero).unwrap(),
                    _ => {}
                }
            }
            map
        })
    }

    #[test]
    fn holes_of_a_sparse_file_are_zero() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * PAGE_BYTES).unwrap();
        let extent = |first, count, origin| Extent { first, count, origin };
        let data = |page| Origin::Layer { layer: 0, page };
        assert_eq!(sparse(&file, 8), [extent(0, 8, Origin::Zero)]);
        for page in [1, 2, 7] {
            file.write_all_at(&[1], page * PAGE_BYTES).unwrap();
        }
        let expected = [
            extent(0, 1, Origin::Zero),
            extent(1, 2, data(1)),
            extent(3, 4, Origin::Zero),
            extent(7, 1, data(7)),
        ];
        assert_eq!(sparse(&file, 8), expected);
        // What the manifest says of its length is what counts.
        assert_eq!(sparse(&file, 2), [extent(0, 1, Origin::Zero), extent(1, 1, data(1))]);
    }

    proptest! {
        #[test]
        fn the_newest_layer_wins_on_every_page(diffs in proptest::collection::vec(any_diff(), 0..8)) {
            let mut oracle: Vec<_> = (0..PAGES).map(|page| Origin::Layer { layer: 0, page }).collect();
            let mut extents = vec![Extent { first: 0, count: PAGES, origin: Origin::Layer { layer: 0, page: 0 } }];
            for (layer, diff) in (1..).zip(&diffs) {
                extents = over(&extents, layer, diff.runs());
                let mut data = 0;
                for run in diff.runs() {
                    for page in run.first..run.end() {
                        oracle[usize::try_from(page).unwrap()] = match run.kind {
                            RunKind::Zero => Origin::Zero,
                            RunKind::Data => { data += 1; Origin::Layer { layer, page: data - 1 } }
                        };
                    }
                }
            }
            let mut found = Vec::new();
            for extent in extents {
                prop_assert_eq!(extent.first, found.len() as u64);
                prop_assert!(extent.count > 0);
                found.extend((0..extent.count).map(|skip| extent.skip(skip).origin));
            }
            prop_assert_eq!(found, oracle);
        }
    }
}
