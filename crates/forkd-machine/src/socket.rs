//! Connections to the Unix sockets in a machine's directory.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects to `directory/name`. An address may have 107 bytes and a directory more, so the directory is opened and
/// named by its descriptor.
pub(crate) fn connect(directory: &Path, name: &str, limit: Duration) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// The process that listens on `directory/name`: the kernel knows it, whether or not it still answers.
pub(crate) fn listener(directory: &Path, name: &str) -> Option<i32> {
    let stream = connect(directory, name, Duration::from_secs(1)).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(credentials.pid.as_raw_nonzero().get())
}

/// Reads one line of at most `limit` bytes.
pub(crate) fn read_line(reader: &mut impl BufRead, limit: u64) -> io::Result<String> {
    let mut line = Vec::new();
    let read = reader.take(limit).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Err(io::ErrorKind::UnexpectedEof.into()),
        Some(b'\n') => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
        Some(_) if read as u64 == limit => Err(io::ErrorKind::FileTooLarge.into()),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_deep_directory_is_reached() {
        let parent = tempfile::tempdir().unwrap();
        let deep = parent.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        // Binding has the same limit, so the socket is made nearby and moved.
        let near = parent.path().join("s");
        let _listener = UnixListener::bind(&near).unwrap();
        std::fs::rename(near, deep.join("s")).unwrap();
        connect(&deep, "s", Duration::from_secs(1)).unwrap();
        assert_eq!(listener(&deep, "s"), i32::try_from(std::process::id()).ok());
        assert_eq!(listener(&deep, "none"), None);
    }

    #[test]
    fn lines_are_bounded() {
        let mut input = &b"one\r\ntwo\nthree"[..];
        assert_eq!(read_line(&mut input, 100).unwrap(), "one");
        assert_eq!(read_line(&mut input, 4).unwrap(), "two");
        assert_eq!(read_line(&mut input, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_line(&mut input, 100).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_line(&mut input, 100).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
