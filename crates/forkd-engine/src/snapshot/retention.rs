//! Which zygotes are kept: a function of what they hold, when they were used and who needs them, and of nothing else.
//!
//! ```text
//!   used long ago                                 used just now
//!   ─────────────────────────────────────────────────────────▶
//!   [ evicted ] [ evicted ] [ needed: stays ] [ fits: stays ]
//! ```

/// A process that is kept to be forked from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept<N> {
    pub name: N,
    /// What the host would get back.
    pub bytes: u64,
    /// The number of its last use; later uses have higher ones.
    pub used: u64,
    /// Whether it is in use, or exists only in memory.
    pub needed: bool,
}

/// Those to evict so that the rest is within the budget, the least recently used first. If what is needed is above the budget
/// alone, everything else is evicted.
pub fn beyond<N>(kept: Vec<Kept<N>>, budget: u64) -> Vec<Kept<N>> {
    let all = kept.iter().fold(0u64, |all, one| all.saturating_add(one.bytes));
    least_used(kept, all.saturating_sub(budget)).0
}

/// Those to evict so that so much memory is free. None if all of them were not enough.
pub fn making_room<N>(kept: Vec<Kept<N>>, bytes: u64) -> Vec<Kept<N>> {
    match least_used(kept, bytes) {
        (evicted, true) => evicted,
        (_, false) => Vec::new(),
    }
}

/// The least recently used ones that hold so much together, and whether there are any.
fn least_used<N>(mut kept: Vec<Kept<N>>, bytes: u64) -> (Vec<Kept<N>>, bool) {
    kept.retain(|one| !one.needed && one.bytes > 0);
    kept.sort_by_key(|one| one.used);
    let mut freed = 0u64;
    let mut count = 0;
    while freed < bytes {
        let Some(one) = kept.get(count) else { return (kept, false) };
        freed = freed.saturating_add(one.bytes);
        count += 1;
    }
    kept.truncate(count);
    (kept, true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn kept() -> impl Strategy<Value = Vec<Kept<usize>>> {
        let one = (0u64..100, any::<bool>());
        // Every use has a number of its own.
        (prop::collection::vec(one, 0..12), any::<u64>()).prop_map(|(all, shift)| {
            let count = all.len() as u64;
            let number =
                |name: usize| (name as u64).wrapping_mul(7).wrapping_add(shift % 13) % (count * 7 + 1);
            let kept = |(name, (bytes, needed))| Kept { name, bytes, used: number(name), needed };
            all.into_iter().enumerate().map(kept).collect()
        })
    }

    fn held(kept: &[Kept<usize>]) -> u64 {
        kept.iter().map(|one| one.bytes).sum()
    }

    fn names(kept: &[Kept<usize>]) -> BTreeSet<usize> {
        kept.iter().map(|one| one.name).collect()
    }

    fn without(kept: &[Kept<usize>], evicted: &[Kept<usize>]) -> Vec<Kept<usize>> {
        let gone = names(evicted);
        kept.iter().filter(|one| !gone.contains(&one.name)).cloned().collect()
    }

    /// No snapshot that stays, and could have been evicted, was used before an evicted one.
    fn is_least_used(kept: &[Kept<usize>], evicted: &[Kept<usize>]) -> bool {
        let last = evicted.iter().map(|one| one.used).max();
        let stay = without(kept, evicted);
        let mut could = stay.iter().filter(|one| !one.needed && one.bytes > 0);
        could.all(|one| last.is_none_or(|last| one.used >= last))
    }

    proptest! {
        #[test]
        fn what_is_beyond_the_budget_goes_and_no_more(kept in kept(), budget in 0u64..600) {
            let evicted = beyond(kept.clone(), budget);
            let left = without(&kept, &evicted);
            prop_assert_eq!(names(&evicted).len(), evicted.len());
            prop_assert!(evicted.iter().all(|one| !one.needed));
            prop_assert!(is_least_used(&kept, &evicted));
            let helpless = left.iter().all(|one| one.needed || one.bytes == 0);
            prop_assert!(held(&left) <= budget || helpless);
            // Without the last of them it would still have been too much.
            if let Some(last) = evicted.last() {
                prop_assert!(held(&left) + last.bytes > budget);
            }
        }

        #[test]
        fn room_is_made_or_nobody_goes(kept in kept(), bytes in 0u64..600) {
            let evicted = making_room(kept.clone(), bytes);
            prop_assert!(evicted.iter().all(|one| !one.needed));
            prop_assert!(is_least_used(&kept, &evicted));
            let could: u64 = kept.iter().filter(|one| !one.needed).map(|one| one.bytes).sum();
            prop_assert_eq!(held(&evicted) >= bytes, could >= bytes);
            if let Some(last) = evicted.last() {
                prop_assert!(held(&evicted) - last.bytes < bytes);
            }
        }
    }

    #[test]
    fn the_one_used_last_stays() {
        let one = |name, bytes, used, needed| Kept { name, bytes, used, needed };
        let kept =
            vec![one(1, 40, 9, false), one(2, 40, 1, true), one(3, 40, 2, false), one(4, 40, 5, false)];
        let goes = |budget| beyond(kept.clone(), budget).iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(goes(160), [0usize; 0]);
        assert_eq!(goes(159), [3]);
        assert_eq!(goes(119), [3, 4]);
        assert_eq!(goes(0), [3, 4, 1]);
        assert_eq!(beyond(vec![one(1, u64::MAX, 1, false), one(2, u64::MAX, 2, true)], 0).len(), 1);
    }
}
