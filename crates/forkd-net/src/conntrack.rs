//! Connections that the kernel remembers, and is to forget: over ctnetlink.
//!
//! A namespace has a table of its own, and the host has another, in which a sandbox's connections stand with the addresses of its
//! slot.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{NetlinkSocket, write_message};
use crate::nft::{Attributes, find};
use crate::plan::Slot;

/// NFNL_SUBSYS_CTNETLINK.
const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
/// Family, version and id before the attributes.
const FAMILY_HEADER: usize = 4;

const ORIGINAL: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// In a tuple.
const ADDRESSES: u16 = 1;
/// In addresses: source and destination, of IPv4 and of IPv6.
const SOURCE4: u16 = 1;
const DESTINATION4: u16 = 2;
const SOURCE6: u16 = 3;
const DESTINATION6: u16 = 4;

/// How often the table is looked at until nothing is found in it.
const LOOKS: usize = 4;

/// Forgets all connections of the socket's namespace.
pub fn flush(socket: &NetlinkSocket) -> io::Result<()> {
    let mut message = Vec::new();
    write_message(&mut message, DELETE, REQUEST | ACKNOWLEDGE, 1, &[&[0; FAMILY_HEADER]]);
    socket.ask(&message, 1)?;
    Ok(())
}

/// Forgets the connections that these slots have in the socket's namespace, which is the host's.
pub fn forget(socket: &NetlinkSocket, slots: &[Slot]) -> io::Result<()> {
    for _ in 0..LOOKS {
        let found = find_all(socket, slots)?;
        if found.is_empty() {
            return Ok(());
        }
        for message in found {
            match socket.ask(&message, 1).map_err(io::Error::from) {
                // It has ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => drop(result?),
            }
        }
    }
    Err(io::Error::other("connections come back"))
}

/// For each connection that these slots have on the host, the message that deletes it.
pub fn find_all(socket: &NetlinkSocket, slots: &[Slot]) -> io::Result<Vec<Vec<u8>>> {
    let addresses = slots.iter().flat_map(|slot| [slot.uplink4().into(), slot.uplink6().into()]).collect();
    let mut message = Vec::new();
    write_message(&mut message, GET, REQUEST | DUMP, 1, &[&[0; FAMILY_HEADER]]);
    let answers = socket.ask(&message, 1)?;
    let connections = answers.iter().filter(|answer| answer.kind == NEW);
    Ok(connections.filter_map(|answer| deletion(&answer.payload, &addresses)).collect())
}

fn deletion(payload: &[u8], addresses: &BTreeSet<IpAddr>) -> Option<Vec<u8>> {
    let (header, attributes) = payload.split_first_chunk::<FAMILY_HEADER>()?;
    let tuple = find(attributes, ORIGINAL)?;
    if !ends(find(tuple, ADDRESSES)?).any(|end| addresses.contains(&end)) {
        return None;
    }
    let mut named = Attributes::default().put(ORIGINAL, tuple);
    // With its id, since the same tuple can be another connection's by then.
    for kind in [ID, ZONE] {
        if let Some(value) = find(attributes, kind) {
            named = named.put(kind, value);
        }
    }
    let mut message = Vec::new();
    let family = [header[0], 0, 0, 0];
    write_message(&mut message, DELETE, REQUEST | ACKNOWLEDGE, 1, &[&family, named.bytes()]);
    Some(message)
}

fn ends(addresses: &[u8]) -> impl Iterator<Item = IpAddr> {
    let four = |kind| Some(Ipv4Addr::from(*find(addresses, kind)?.first_chunk::<4>()?).into());
    let six = |kind| Some(Ipv6Addr::from(*find(addresses, kind)?.first_chunk::<16>()?).into());
    let all = [four(SOURCE4), four(DESTINATION4), six(SOURCE6), six(DESTINATION6)];
    all.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connection(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let addresses = Attributes::default().put(SOURCE4, &from).put(DESTINATION4, &to);
        let tuple = Attributes::default().nest(ADDRESSES, &addresses);
        let attributes = Attributes::default().nest(ORIGINAL, &tuple).number(ID, 7);
        [&[2, 0, 0, 0], attributes.bytes()].concat()
    }

    #[test]
    fn only_the_slot_s_connections_are_deleted() {
        let slot = Slot::try_from(42).unwrap();
        let (own, other) = (slot.uplink4().octets(), Slot::try_from(43).unwrap().uplink4().octets());
        let addresses = BTreeSet::from([slot.uplink4().into(), slot.uplink6().into()]);
        let message = deletion(&connection(own, [9, 9, 9, 9]), &addresses).unwrap();
        assert_eq!(message[16], 2, "of its family");
        assert_eq!(find(&message[20..], ID), Some(&[0, 0, 0, 7][..]));
        assert!(deletion(&connection([9, 9, 9, 9], own), &addresses).is_some());
        assert_eq!(deletion(&connection(other, [9, 9, 9, 9]), &addresses), None);
    }

    proptest! {
        #[test]
        fn no_connection_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = deletion(&bytes, &BTreeSet::new());
        }
    }
}
