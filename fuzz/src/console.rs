//! The console: a guest that uses its registers, a host that types, saves in between.
//!
//! ```text
//!   input:  ( what u8 | offset u8 | value u8 )*      what, modulo 8: 0 to 2 write, 3 and 4 read, 5 type as many bytes as
//!                                                    the value, 6 type many, 7 save and restore
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;

use forkd_devices::serial::{CappedLog, MAX_INPUT, MIN_LIMIT, SerialPort};
use forkd_devices::virtio::transport::Interrupt;
use rustix::fs::MemfdFlags;

#[derive(Debug)]
struct Silence;

impl Interrupt for Silence {
    fn trigger(&self) {}
}

thread_local! {
    /// One file for all inputs.
    static LOG: RefCell<File> =
        RefCell::new(rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap().into());
}

fn log() -> CappedLog {
    let file = LOG.with_borrow(|file| file.try_clone().unwrap());
    CappedLog::new(file, MIN_LIMIT).unwrap()
}

/// Runs a script. Panics where the console breaks its promises.
pub fn drive(script: &[u8]) {
    LOG.with_borrow(|file| file.set_len(0).unwrap());
    let mut console = SerialPort::new(Arc::new(Silence), log());
    for [what, offset, value] in script.as_chunks::<3>().0 {
        match what % 8 {
            0..=2 => console.write(*offset, *value),
            3 | 4 => {
                console.read(*offset);
            }
            5 => {
                console.input(&[*offset; 255][..usize::from(*value)]);
            }
            6 => {
                assert!(console.input(&[*offset; 2 * MAX_INPUT]) <= MAX_INPUT);
            }
            _ => console = restored(&console),
        }
    }
    restored(&console);
    LOG.with_borrow(|file| assert!(file.metadata().unwrap().len() <= MIN_LIMIT));
}

fn restored(console: &SerialPort) -> SerialPort {
    let state = console.state();
    let restored = SerialPort::restore(&state, Arc::new(Silence), log()).unwrap();
    assert_eq!(restored.state(), state);
    assert_eq!(console.log().lost(), 0);
    restored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_prints_and_reads() {
        let mut script = vec![0, 3, 0x80, 0, 0, 12, 0, 3, 3, 0, 4, 8, 0, 1, 3];
        for byte in b"login:\n" {
            script.extend_from_slice(&[0, 0, *byte]);
        }
        script.extend_from_slice(&[5, b'a', 70, 3, 5, 0, 3, 0, 0, 7, 0, 0, 3, 0, 0, 6, b'b', 0, 3, 2, 0]);
        // Loopback.
        script.extend_from_slice(&[0, 4, 0x18, 0, 0, b'x', 3, 0, 0, 7, 0, 0]);
        crate::seed::keep("console", "login", &script);
        drive(&script);
        LOG.with_borrow(|file| assert_eq!(file.metadata().unwrap().len(), 7));
    }
}
