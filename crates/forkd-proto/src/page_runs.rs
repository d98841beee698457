//! A bounded list of guest pages, as runs.
//!
//! Pages are numbered one after another, across the holes between regions of guest memory. On the wire and on disk a list is a
//! flat array of numbers, two for each run: how many pages lie between the run before it and this one, and how many pages it has.
//!
//! ```text
//!   pages 3, 4, 5, 9, 1000         [3, 3, 3, 1, 990, 1]
//! ```
//!
//! Gaps instead of page numbers keep the largest list short: [`MAX_RUNS`] runs in 512 GiB of memory have gaps of five digits.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The most pages in a list: 16 MiB of memory.
pub const MAX_PAGES: u64 = 4096;
/// The most runs in a list. Two lists of this size fit one message.
pub const MAX_RUNS: usize = 2048;

/// Pages in ascending order, at most [`MAX_PAGES`] in at most [`MAX_RUNS`] runs. No two runs touch, and none is empty, so a set of
/// pages has one encoding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u32>", try_from = "Vec<u32>")]
pub struct PageRuns(Vec<Range<u64>>);

/// The numbers are not a list of pages that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageRunsError {
    #[error("{found} numbers, expected two for each run")]
    Odd { found: usize },
    #[error("{found} runs of pages, expected at most {MAX_RUNS}")]
    TooManyRuns { found: usize },
    #[error("run {index} is empty or continues the one before it")]
    Run { index: usize },
    #[error("more than {MAX_PAGES} pages")]
    TooManyPages,
}

impl PageRuns {
    /// The first pages of ascending runs, as many as a list may have. Runs that touch become one.
    pub fn first_of(runs: impl IntoIterator<Item = Range<u64>>) -> PageRuns {
        let mut list: Vec<Range<u64>> = Vec::new();
        let mut room = MAX_PAGES;
        for run in runs {
            let before = list.last().map_or(0, |last| last.end);
            let begin = run.start.max(before);
            let end = run.end.min(begin.saturating_add(room));
            // A gap that a number cannot say is in no memory that there is.
            if begin >= end || begin - before > u64::from(u32::MAX) {
                continue;
            }
            let is_full = list.len() == MAX_RUNS;
            match list.last_mut() {
                Some(last) if last.end == begin => last.end = end,
                _ if is_full => break,
                _ => list.push(begin..end),
            }
            room -= end - begin;
        }
        PageRuns(list)
    }

    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// The page behind the last.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |run| run.end)
    }
}

impl TryFrom<Vec<u32>> for PageRuns {
    type Error = PageRunsError;

    fn try_from(numbers: Vec<u32>) -> Result<PageRuns, PageRunsError> {
        let (pairs, rest) = numbers.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PageRunsError::Odd { found: numbers.len() });
        }
        if pairs.len() > MAX_RUNS {
            return Err(PageRunsError::TooManyRuns { found: pairs.len() });
        }
        let (mut runs, mut end, mut pages) = (Vec::with_capacity(pairs.len()), 0, 0);
        for (index, &[gap, count]) in pairs.iter().enumerate() {
            if count == 0 || (gap == 0 && index > 0) {
                return Err(PageRunsError::Run { index });
            }
            pages += u64::from(count);
            if pages > MAX_PAGES {
                return Err(PageRunsError::TooManyPages);
            }
            let begin = end + u64::from(gap);
            end = begin + u64::from(count);
            runs.push(begin..end);
        }
        Ok(PageRuns(runs))
    }
}

impl From<PageRuns> for Vec<u32> {
    fn from(runs: PageRuns) -> Vec<u32> {
        let mut before = 0;
        // Both fit: checked when the list was made.
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let pair = |run: Range<u64>| {
            let gap = run.start - std::mem::replace(&mut before, run.end);
            [number(gap), number(run.end - run.start)]
        };
        runs.0.into_iter().flat_map(pair).collect()
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list may have one run")]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::channel::MAX_MESSAGE;

    #[test]
    fn a_list_is_written_as_gaps_and_counts() {
        let list = PageRuns::first_of([3..5, 5..6, 4..6, 9..10, 1000..1001]);
        assert_eq!(serde_json::to_string(&list).unwrap(), "[3,3,3,1,990,1]");
        assert_eq!(serde_json::from_str::<PageRuns>("[3,3,3,1,990,1]").unwrap(), list);
        assert_eq!((list.pages(), list.end(), list.is_empty()), (5, 1001, false));
        assert_eq!(serde_json::from_str::<PageRuns>("[]").unwrap(), PageRuns::default());
        let from_the_first = PageRuns::first_of([0..2]);
        assert_eq!(serde_json::to_string(&from_the_first).unwrap(), "[0,2]");
        assert_eq!(serde_json::from_str::<PageRuns>("[0,2]").unwrap(), from_the_first);
    }

    #[test]
    fn what_is_beyond_the_limits_is_left_out() {
        assert_eq!(PageRuns::first_of([10..10_000]).runs().collect::<Vec<_>>(), [10..10 + MAX_PAGES]);
        let scattered = PageRuns::first_of((0..).map(|index| 2 * index..2 * index + 1).take(5000));
        assert_eq!(scattered.runs().count(), MAX_RUNS);
        let far = PageRuns::first_of([0..1, 1 << 40..(1 << 40) + 1]);
        assert_eq!(far.runs().collect::<Vec<_>>(), [0..1]);
        let backwards = PageRuns::first_of([9..12, 3..4]);
        assert_eq!(backwards.runs().collect::<Vec<_>>(), [9..12]);
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |numbers: Vec<u32>| PageRuns::try_from(numbers).unwrap_err();
        assert_eq!(refused(vec![1]), PageRunsError::Odd { found: 1 });
        assert_eq!(refused(vec![1, 0]), PageRunsError::Run { index: 0 });
        assert_eq!(refused(vec![1, 1, 0, 1]), PageRunsError::Run { index: 1 });
        assert_eq!(refused(vec![0, 4097]), PageRunsError::TooManyPages);
        assert_eq!(refused(vec![1; 4098]), PageRunsError::TooManyRuns { found: 2049 });
        assert_eq!(refused(vec![u32::MAX; 4]), PageRunsError::TooManyPages);
        assert!(serde_json::from_str::<PageRuns>("[-1,1]").is_err());
        let numbers = [u32::MAX, 1].repeat(MAX_RUNS);
        assert_eq!(PageRuns::try_from(numbers).unwrap().runs().count(), MAX_RUNS);
    }

    /// Two lists of the largest memory there is, with the longest numbers they can have.
    #[test]
    fn two_of_the_largest_fit_a_message() {
        let gap = (512 << 30) / 4096 / MAX_RUNS as u64;
        let runs = (0..MAX_RUNS as u64).map(|index| index * gap + 10_000..index * gap + 10_002);
        let list = PageRuns::first_of(runs);
        assert_eq!(list.pages(), MAX_PAGES);
        assert!(2 * serde_json::to_string(&list).unwrap().len() < MAX_MESSAGE / 4 * 3);
    }

    proptest! {
        #[test]
        fn any_numbers_are_a_list_or_are_refused(
            numbers in prop::collection::vec(prop_oneof![0_u32..4, 0_u32..300, any::<u32>()], 0..40),
        ) {
            let Ok(list) = PageRuns::try_from(numbers.clone()) else { return Ok(()) };
            let mut before: Option<u64> = None;
            for run in list.runs() {
                prop_assert!(run.start < run.end && before.is_none_or(|end| end < run.start), "{:?}", run);
                before = Some(run.end);
            }
            prop_assert_eq!(before.unwrap_or(0), list.end());
            prop_assert!(list.pages() <= MAX_PAGES && list.runs().count() <= MAX_RUNS);
            prop_assert_eq!(Vec::<u32>::from(list), numbers);
        }

        #[test]
        fn the_first_pages_are_listed(mut runs in prop::collection::vec((0_u64..6000, 0_u64..300), 0..60)) {
            runs.sort_unstable();
            let runs = runs.into_iter().map(|(begin, count)| begin..begin + count);
            let list = PageRuns::first_of(runs.clone());
            let pages: BTreeSet<u64> = runs.flatten().collect();
            let first: Vec<u64> = pages.into_iter().zip(0..MAX_PAGES).map(|(page, _)| page).collect();
            prop_assert_eq!(list.runs().flatten().collect::<Vec<_>>(), first);
            let numbers = Vec::<u32>::from(list.clone());
            prop_assert_eq!(PageRuns::try_from(numbers), Ok(list));
        }
    }
}
