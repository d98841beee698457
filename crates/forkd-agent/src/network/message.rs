//! The four requests to rtnetlink that a guest needs.

use std::net::IpAddr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

pub type Request = NetlinkMessage<RouteNetlinkMessage>;

/// Brings a link up.
pub fn link(index: u32, mtu: Option<u32>, mac: Option<[u8; 6]>) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes.extend(mtu.map(LinkAttribute::Mtu));
    message.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    request(RouteNetlinkMessage::SetLink(message), 0)
}

pub fn address(index: u32, address: IpAddr, prefix: u8) -> Request {
    let message = address_message(index, address, prefix);
    request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

pub fn remove_address(index: u32, address: IpAddr, prefix: u8) -> Request {
    request(RouteNetlinkMessage::DelAddress(address_message(index, address, prefix)), 0)
}

pub fn default_route(index: u32, gateway: IpAddr) -> Request {
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
    request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

fn address_message(index: u32, address: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address);
    message.header.prefix_len = prefix;
    message.header.index = index;
    // For IPv4 the kernel wants both: the address, and the peer's, which is the same but for point-to-point links.
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    if address.is_ipv6() {
        // The host gives an address to no other guest, and asking whether it has takes a second.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn request(message: RouteNetlinkMessage, flags: u16) -> Request {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    request
}
