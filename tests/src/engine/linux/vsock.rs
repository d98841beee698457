//! The host's end of connections to a guest's vsock ports.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::engine::process::Failure;

/// No answer takes longer, on the slowest host.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than `OK` and any port.
const MAX_GREETING: usize = 32;

/// Connects to a port in the guest behind this socket.
pub fn connect(socket: &Path, port: u32) -> Result<UnixStream, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    // Byte by byte: what follows is the guest's.
    let mut greeting = Vec::new();
    while greeting.last() != Some(&b'\n') && greeting.len() < MAX_GREETING {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        greeting.extend(byte);
    }
    match greeting.starts_with(b"OK ") {
        true => Ok(stream),
        false => Err(format!("the guest is greeted with {:?}", String::from_utf8_lossy(&greeting)).into()),
    }
}
