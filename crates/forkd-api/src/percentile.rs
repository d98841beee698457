//! What p50 and p99 mean here.

/// Of values in ascending order: so many percent of them are no greater.
pub fn percentile<T: Copy + Default>(values: &[T], percent: usize) -> T {
    let index = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(index).copied().unwrap_or_default()
}
