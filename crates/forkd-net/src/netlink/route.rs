//! Links, addresses, routes and neighbours of one namespace, over rtnetlink.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use super::{Answer, NetlinkSocket};

/// RTM_NEWLINK.
const NEW_LINK: u16 = 16;
/// IFLA_ADDRESS and IFLA_IFNAME.
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
/// Bytes of a `struct ifinfomsg`.
const HEADER: usize = 16;

/// The links of the namespace that this was opened in.
#[derive(Debug)]
pub struct Links(NetlinkSocket);

/// One end of a veth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub name: String,
    pub mac: [u8; 6],
}

impl Links {
    pub fn open() -> io::Result<Links> {
        Ok(Links(NetlinkSocket::route()?))
    }

    /// Index and name of every link.
    pub fn list(&self) -> io::Result<Vec<(u32, String)>> {
        let mut links = Vec::new();
        for answer in self.dump()? {
            let link = Found::parse(&answer)?;
            links.extend(link.name().map(|name| (link.index, name)));
        }
        Ok(links)
    }

    pub fn index(&self, name: &str) -> io::Result<Option<u32>> {
        let mut link = without_counters();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let bytes = encode(RouteNetlinkMessage::GetLink(link), NLM_F_ACK);
        match self.0.ask(&bytes, 1).map_err(io::Error::from) {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
            Ok(answers) => {
                let answer = answers.iter().find(|answer| answer.kind == NEW_LINK);
                Ok(Some(Found::parse(answer.ok_or(io::ErrorKind::InvalidData)?)?.index))
            }
        }
    }

    /// The MAC of a link, if it is there.
    pub fn mac(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        for answer in self.dump()? {
            let link = Found::parse(&answer)?;
            if link.name().as_deref() == Some(name) {
                return Ok(link.attribute(ADDRESS));
            }
        }
        Ok(None)
    }

    fn dump(&self) -> io::Result<impl Iterator<Item = Answer>> {
        let bytes = encode(RouteNetlinkMessage::GetLink(without_counters()), NLM_F_DUMP);
        Ok(self.0.ask(&bytes, 1)?.into_iter().filter(|answer| answer.kind == NEW_LINK))
    }

    /// The index of a link that must be there.
    pub fn expect(&self, name: &str) -> io::Result<u32> {
        self.index(name)?.ok_or_else(|| Errno::NODEV.into())
    }

    /// A veth with one end here and the other in a namespace.
    pub fn add_veth(&self, here: &End, there: &End, namespace: BorrowedFd<'_>) -> io::Result<()> {
        let end = |end: &End| {
            let mut link = LinkMessage::default();
            link.attributes =
                vec![LinkAttribute::IfName(end.name.clone()), LinkAttribute::Address(end.mac.to_vec())];
            link
        };
        let mut peer = end(there);
        peer.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        let mut link = end(here);
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))];
        link.attributes.push(LinkAttribute::LinkInfo(info));
        self.change(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub fn set_up(&self, index: u32, mac: Option<[u8; 6]>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        link.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Takes a link down: what waits in its queue is gone, and so are its neighbours, routes and IPv6 addresses. When this
    /// returns, no packet is on its way through it any more.
    pub fn set_down(&self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Removes a link by its name. `false` if it does not exist.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.change(RouteNetlinkMessage::DelLink(link), 0) {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(false),
            result => result.map(|()| true),
        }
    }

    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix;
        message.header.index = index;
        // For IPv4 the kernel wants both: the address, and the peer's, which is the same but for point-to-point links.
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if address.is_ipv6() {
            // No other host can have it, and asking takes a second.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub fn add_default_route(&self, index: u32, gateway: IpAddr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.kind = RouteType::Unicast;
        let gateway = match gateway {
            IpAddr::V4(gateway) => RouteAddress::Inet(gateway),
            IpAddr::V6(gateway) => RouteAddress::Inet6(gateway),
        };
        message.attributes = vec![RouteAttribute::Gateway(gateway), RouteAttribute::Oif(index)];
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Sets the neighbour of an address, so that no request for it is sent.
    pub fn add_neighbour(&self, index: u32, address: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        let address = match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(address),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.ask(&encode(message, flags | NLM_F_ACK), 1)?;
        Ok(())
    }
}

/// A question for links, which the kernel answers without adding up their counters.
fn without_counters() -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    link
}

/// A link as the kernel describes it, of which only what is asked for is decoded. `LinkMessage` decodes all of its attributes, which
/// takes longer than everything else that is done with a list of a thousand links.
struct Found<'a> {
    index: u32,
    attributes: &'a [u8],
}

impl Found<'_> {
    fn parse(answer: &Answer) -> io::Result<Found<'_>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let LinkHeader { index, .. } = LinkHeader::parse(&answer.payload).map_err(invalid)?;
        let attributes = answer.payload.get(HEADER..).unwrap_or_default();
        Ok(Found { index, attributes })
    }

    fn attribute(&self, kind: u16) -> Option<Vec<u8>> {
        let mut attributes = NlasIterator::new(self.attributes).map_while(Result::ok);
        Some(attributes.find(|attribute| attribute.kind() == kind)?.value().to_vec())
    }

    fn name(&self) -> Option<String> {
        let name = self.attribute(NAME)?;
        let name = name.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(name).into_owned())
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn encode(message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
