//! A VM process that does not keep to what its disk may hold.

use super::call::call;

/// Descriptors that a VM process may have.
const DESCRIPTORS: i32 = 256;
/// Each write.
const LENGTH: i64 = 1 << 16;
static PIECE: [u8; 1 << 16] = [0x5a; 1 << 16];

/// Writes to the file with the most length that can be written to, which is the top layer, from its middle on. Says how much it could write,
/// and the number of the error that ended it.
pub fn fill() -> (u64, i64) {
    let length = |descriptor: i32| {
        let flags = call(libc::SYS_fcntl, [descriptor.into(), libc::F_GETFL.into()]);
        let is_writable = flags >= 0 && flags & i64::from(libc::O_ACCMODE) == i64::from(libc::O_RDWR);
        let end = call(libc::SYS_lseek, [descriptor.into(), 0.into(), libc::SEEK_END.into()]);
        (is_writable && end > 0).then_some((end, descriptor))
    };
    let Some((end, top)) = (0..DESCRIPTORS).filter_map(length).max() else { return (0, 0) };
    let (mut written, mut at) = (0, end / 2);
    while at + LENGTH < end {
        let result =
            call(libc::SYS_pwrite64, [top.into(), PIECE.as_slice().into(), LENGTH.into(), at.into()]);
        if result <= 0 {
            return (written, -result);
        }
        at += result;
        written += result.unsigned_abs();
    }
    (written, 0)
}
