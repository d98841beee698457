//! A socket to rtnetlink that asks and waits for the answer.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::message::Request;

const ANSWER: usize = 8192;

#[derive(Debug)]
pub struct RouteSocket(OwnedFd);

impl RouteSocket {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        // NETLINK_ROUTE is number 0, which is no protocol to rustix.
        Ok(Self(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?))
    }

    /// Sends a request and waits for the kernel's yes or no.
    pub fn request(&mut self, request: &Request) -> io::Result<()> {
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &bytes, SendFlags::empty(), &kernel)?;
        let mut answer = vec![0; ANSWER];
        let (length, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let answer = answer.get(..length).unwrap_or_default();
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match message.payload {
            // An error without a code is the acknowledgement.
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "invalid acknowledgement from the kernel")),
        }
    }
}
