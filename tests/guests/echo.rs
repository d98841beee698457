//! `guest-echo vsock|tcp PORT`, in a Linux guest: sends back what it gets, and says on the console how each connection ends.

#![expect(unsafe_code, reason = "rustix has no address of vsock, and takes others on trust")]

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketType};

/// `struct sockaddr_vm`.
#[repr(C)]
struct VsockAddress {
    family: u16,
    reserved: u16,
    port: u32,
    cid: u32,
    zero: [u8; 4],
}

const ANY_CID: u32 = u32::MAX;
const _: () = assert!(size_of::<VsockAddress>() == 16);

// SAFETY: the pointer is that of an address in the kernel's layout, with its size.
unsafe impl SocketAddrArg for VsockAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f(std::ptr::from_ref(self).cast(), 16)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["vsock", port] => serve(&vsock_listener(port.parse()?)?),
        ["tcp", port] => serve(&TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.parse()?))?.into()),
        _ => Err("usage: guest-echo vsock|tcp PORT".into()),
    }
}

fn vsock_listener(port: u32) -> io::Result<OwnedFd> {
    let family = AddressFamily::VSOCK;
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    let address = VsockAddress { family: family.as_raw(), reserved: 0, port, cid: ANY_CID, zero: [0; 4] };
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

fn serve(listener: &OwnedFd) -> Result<(), Box<dyn Error>> {
    say("listening")?;
    for number in 1.. {
        let connection = rustix::net::accept(listener)?;
        std::thread::spawn(move || {
            // Any stream socket reads and writes like this one.
            let (bytes, end) = echo(UnixStream::from(connection));
            say(&format!("connection {number} ends after {bytes} bytes: {end}"))
        });
    }
    Ok(())
}

/// How many bytes were sent back, and how it ended.
fn echo(mut stream: UnixStream) -> (u64, String) {
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = 0;
    loop {
        let done = stream.read(&mut buffer).and_then(|length| {
            stream.write_all(&buffer[..length])?;
            Ok(length)
        });
        match done {
            Ok(0) => return (bytes, "closed".into()),
            Ok(length) => bytes += length as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (bytes, format!("{:?}", error.kind())),
        }
    }
}

fn say(words: &str) -> io::Result<()> {
    writeln!(io::stdout(), "echo: {words}")
}
