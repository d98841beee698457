//! Ends the connections that a fork has from its parent: sock_diag's SOCK_DESTROY.
//!
//! Every child has a copy of each connection, and the peer knows one. Whatever two children said on it would be taken for one
//! conversation. So TCP connections and connected UDP sockets whose peer is not the guest itself are destroyed: the program
//! that has one gets ECONNABORTED at its next call. Connections over the loopback stay, because both ends were copied.
//!
//! The RST that the kernel sends for a TCP connection does not end the parent's: it goes through the child's own network, which
//! does not know the connection, and a RST begins none, so its address is not translated. Sockets in network namespaces of the
//! guest's own (containers) are not seen from here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Where both this and `struct inet_diag_msg` have their `struct inet_diag_sockid`, and its length.
const REQUEST_SOCKET: usize = 8;
const ANSWER_SOCKET: usize = 4;
const SOCKET: usize = 48;
/// In a `struct inet_diag_sockid`.
const PEER_ADDRESS: usize = 20;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ESTABLISHED: u32 = 1 << 1;
/// All but TIME_WAIT and CLOSE, which no program speaks on, and LISTEN.
const CONNECTED: u32 = 0xfff & !(1 << 6 | 1 << 7 | 1 << 10) & !1;
/// More than a dump puts into one message.
const BUFFER: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ConnectionsError {
    #[error("the guest's kernel cannot destroy connections ({0}): it needs tcp_diag and INET_DIAG_DESTROY")]
    Unsupported(io::Error),
    #[error("cannot destroy connections: {0}")]
    Kernel(#[from] io::Error),
}

/// Destroys all of them. Returns how many there were.
pub fn destroy() -> Result<usize, ConnectionsError> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
    let mut socket = DiagSocket(socket.map_err(|errno| unsupported(errno.into()))?);
    let mut count = 0;
    for (protocol, states) in [(TCP, CONNECTED), (UDP, ESTABLISHED)] {
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let found = match socket.list(family, protocol, states) {
                Ok(found) => found,
                // A kernel without IPv6 or udp_diag: the rest is done all the same.
                Err(_) if (family, protocol) != (AddressFamily::INET, TCP) => continue,
                Err(error) => return Err(unsupported(error)),
            };
            for id in found.iter().filter(|id| !is_loopback(peer(family, id))) {
                match socket.destroy(family, protocol, id) {
                    Ok(()) => count += 1,
                    // It has ended meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(unsupported(error)),
                }
            }
        }
    }
    Ok(count)
}

fn unsupported(error: io::Error) -> ConnectionsError {
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT) => ConnectionsError::Unsupported(error),
        _ => ConnectionsError::Kernel(error),
    }
}

/// A `struct inet_diag_sockid`, with the cookie by which the kernel knows that it is still the same socket.
type SocketId = [u8; SOCKET];

#[derive(Debug)]
struct DiagSocket(OwnedFd);

impl DiagSocket {
    fn list(&mut self, family: AddressFamily, protocol: u8, states: u32) -> io::Result<Vec<SocketId>> {
        let any = [0; SOCKET];
        self.send(&request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, protocol, states, &any))?;
        let mut found = Vec::new();
        loop {
            let answer = self.receive()?;
            for message in messages(&answer) {
                let (kind, payload) = message?;
                match kind {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => return Err(error_in(payload).unwrap_or_else(garbled)),
                    _ => found.push(socket_in(payload).ok_or_else(garbled)?),
                }
            }
        }
    }

    fn destroy(&mut self, family: AddressFamily, protocol: u8, id: &SocketId) -> io::Result<()> {
        self.send(&request(SOCK_DESTROY, NLM_F_ACK, family, protocol, u32::MAX, id))?;
        let answer = self.receive()?;
        match messages(&answer).next() {
            Some(Ok((NLMSG_ERROR, payload))) => error_in(payload).map_or(Ok(()), Err),
            _ => Err(garbled()),
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, bytes, SendFlags::empty(), &kernel)?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; BUFFER];
        let (length, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(length);
        Ok(answer)
    }
}

fn request(
    kind: u16,
    flags: u16,
    family: AddressFamily,
    protocol: u8,
    states: u32,
    id: &SocketId,
) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    let length = u32::try_from(bytes.len()).unwrap_or_default();
    // Sequence and port stay 0: one request at a time, and the kernel answers the requester.
    let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(NLM_F_REQUEST | flags).to_ne_bytes()];
    let family = u8::try_from(family.as_raw()).unwrap_or_default();
    put(&mut bytes, 0, &header.concat());
    put(&mut bytes, HEADER, &[family, protocol, 0, 0]);
    put(&mut bytes, HEADER + 4, &states.to_ne_bytes());
    put(&mut bytes, HEADER + REQUEST_SOCKET, id);
    bytes
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes.iter_mut().skip(at).zip(what).for_each(|(to, from)| *to = *from);
}

/// The messages of an answer: their kinds and payloads.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = io::Result<(u16, &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let parsed = message(bytes);
        bytes = parsed.map_or(&[], |(_, _, rest)| rest);
        Some(parsed.map(|(kind, payload, _)| (kind, payload)).ok_or_else(garbled))
    })
}

fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, payload, rest))
}

/// The error of an NLMSG_ERROR, whose number 0 means success.
fn error_in(payload: &[u8]) -> Option<io::Error> {
    let code = payload.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => None,
        Some(code) => Some(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Some(garbled()),
    }
}

fn socket_in(payload: &[u8]) -> Option<SocketId> {
    payload.get(ANSWER_SOCKET..ANSWER_SOCKET + SOCKET)?.try_into().ok()
}

fn peer(family: AddressFamily, id: &SocketId) -> IpAddr {
    let mut address = [0; 16];
    address.iter_mut().zip(id.iter().skip(PEER_ADDRESS)).for_each(|(to, from)| *to = *from);
    match (family, address) {
        (AddressFamily::INET, [a, b, c, d, ..]) => Ipv4Addr::new(a, b, c, d).into(),
        (_, address) => Ipv6Addr::from(address).to_canonical(),
    }
}

/// A UDP socket that is not connected has no peer, and is no connection.
fn is_loopback(peer: IpAddr) -> bool {
    peer.is_loopback() || peer.is_unspecified()
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "cannot parse the kernel's answer")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_request_is_as_the_kernel_reads_it() {
        let mut id = [0; SOCKET];
        id[SOCKET - 1] = 7;
        let bytes = request(SOCK_DESTROY, NLM_F_ACK, AddressFamily::INET6, TCP, 0x0102_0304, &id);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..8], [72, 0, 0, 0, 21, 0, 5, 0]);
        assert_eq!(bytes[16..24], [10, 6, 0, 0, 4, 3, 2, 1]);
        assert_eq!(bytes[71], 7);
        // Without TIME_WAIT, CLOSE and LISTEN.
        assert_eq!(CONNECTED, 0b1011_0011_1110);
    }

    #[test]
    fn answers_are_read_to_their_end_and_no_further() {
        let error = |code: i32| {
            let header = [&20u32.to_ne_bytes()[..], &NLMSG_ERROR.to_ne_bytes(), &[0; 10]].concat();
            [header, code.to_ne_bytes().to_vec()].concat()
        };
        let two = [error(0), error(-2)].concat();
        let found: Vec<_> = messages(&two).map(|message| error_in(message.unwrap().1)).collect();
        assert!(found[0].is_none());
        assert_eq!(found[1].as_ref().map(io::Error::kind), Some(io::ErrorKind::NotFound));
        for length in 1..two.len() {
            let broken = messages(&two[..length]).last();
            assert!(broken.is_some_and(|last| last.is_err() || length == 20), "{length}");
        }
        let endless = [&0u32.to_ne_bytes()[..], &[0; 12]].concat();
        assert_eq!(messages(&endless).count(), 1);
        assert!(socket_in(&[0; 51]).is_none() && socket_in(&[0; 52]).is_some());
    }

    #[test]
    fn the_loopback_is_told_from_others() {
        let at = |family, address: &[u8]| {
            let mut id = [0; SOCKET];
            put(&mut id, PEER_ADDRESS, address);
            is_loopback(peer(family, &id))
        };
        assert!(at(AddressFamily::INET, &[127, 9, 0, 1]) && !at(AddressFamily::INET, &[10, 0, 0, 1]));
        let mapped = |address: Ipv4Addr| at(AddressFamily::INET6, &address.to_ipv6_mapped().octets());
        assert!(mapped(Ipv4Addr::LOCALHOST) && !mapped(Ipv4Addr::new(8, 8, 8, 8)));
        assert!(at(AddressFamily::INET6, &Ipv6Addr::LOCALHOST.octets()));
        assert!(at(AddressFamily::INET, &[0; 4]));
    }

    #[test]
    fn the_kernel_destroys_them() {
        crate::testing::run_in_network_namespace("network::connections::tests::in_a_namespace");
    }

    fn pair(address: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(address.parse::<SocketAddr>().unwrap()).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        (listener, client, server)
    }

    #[test]
    #[ignore = "destroys connections: started in a namespace by the test above"]
    fn in_a_namespace() {
        crate::network::loopback_up().unwrap();
        for address in ["10.99.0.1/32", "fd00::9/128"] {
            let added = Command::new("ip").args(["addr", "add", address, "dev", "lo"]).status().unwrap();
            assert!(added.success(), "{address}");
        }
        // An IPv6 address is tentative for a moment even on the loopback.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let kept = [pair("127.0.0.1:0"), pair("[::1]:0")];
        let ended = [pair("10.99.0.1:0"), pair("[fd00::9]:0"), pair("[::ffff:10.99.0.1]:0")];
        let udp = |peer: &str| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(peer).unwrap();
            socket
        };
        let (local, remote) = (udp("127.0.0.1:9"), udp("10.99.0.1:9"));
        // Three connections and a UDP socket: here the RST reaches the other end before it is destroyed itself.
        assert_eq!(destroy().unwrap(), 4);
        for (_listener, mut client, mut server) in kept {
            client.write_all(b"x").unwrap();
            assert_eq!(server.read(&mut [0]).unwrap(), 1);
        }
        for (listener, client, server) in ended {
            for mut end in [client, server] {
                let error = end.read(&mut [0]).unwrap_err().kind();
                assert!(matches!(error, io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset));
            }
            // Listeners stay.
            TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        }
        assert!(local.peer_addr().is_ok() && remote.peer_addr().is_err());
        assert_eq!(destroy().unwrap(), 0);
    }
}
