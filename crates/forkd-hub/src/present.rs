//! Which frames of a stream a file has already: after a transfer that broke off, it has some, and after a crash it may have anything.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::byte_io::ByteSource;
use crate::frame;
use crate::table::FrameTable;

/// Reads and hashes every frame, on all CPUs; true for those whose digest is that of the table. Frames that cannot be read are not
/// there, and neither are those that were not looked at when `is_cancelled` became true.
pub fn present_frames(
    table: &FrameTable,
    source: &dyn ByteSource,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Vec<bool> {
    let expected: Vec<blake3::Hash> = table.frame_digests().collect();
    let next = AtomicU64::new(0);
    let check = || {
        let mut present = Vec::new();
        let mut buffer = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let expected = usize::try_from(number).ok().and_then(|index| expected.get(index));
            let Some(expected) = expected.filter(|_| !is_cancelled()) else { return present };
            let range = frame::frame_range(table.size(), number);
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or_default(), 0);
            if source.read_at(&mut buffer, range.start).is_ok() && blake3::hash(&buffer) == *expected {
                present.push(number);
            }
        }
    };
    let mut present = vec![false; expected.len()];
    thread::scope(|scope| {
        let count = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(expected.len());
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(check)).collect();
        // A thread that panicked has found nothing.
        for number in threads.into_iter().filter_map(|thread| thread.join().ok()).flatten() {
            if let Some(frame) = usize::try_from(number).ok().and_then(|index| present.get_mut(index)) {
                *frame = true;
            }
        }
    });
    present
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;
    use crate::testing::{Unreadable, noise, stream_of};

    #[test]
    fn only_frames_with_the_right_contents_are_there() {
        let bytes = noise((9 << 20) + 7);
        let table = stream_of(Role::Memory, "base", &bytes).table;
        let present = |source: &dyn ByteSource| present_frames(&table, source, &|| false);
        assert_eq!(present(&bytes), [true; 5]);
        let mut damaged = bytes.clone();
        damaged[3 << 20] ^= 1;
        // A hole, as a crash leaves it.
        damaged[6 << 20..8 << 20].fill(0);
        assert_eq!(present(&damaged), [true, false, true, false, true]);
        // One that ends early has the frames before its end.
        assert_eq!(present(&bytes[..(5 << 20)].to_vec()), [true, true, false, false, false]);
        assert_eq!(present(&Unreadable(9 << 20)), [false; 5]);
        assert_eq!(present_frames(&table, &bytes, &|| true), [false; 5]);
        let empty = stream_of(Role::State, "base", &Vec::new()).table;
        assert_eq!(present_frames(&empty, &Vec::new(), &|| false), [false; 0]);
    }
}
