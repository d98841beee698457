//! What the kernel says of tables.

use std::collections::BTreeMap;
use std::io;

use super::attributes::find;
use super::{Attributes, Family, message_type};
use crate::netlink::{NetlinkSocket, write_message};

const GET_CHAIN: u8 = 4;
const NEW_SET: u8 = 9;
const GET_SET: u8 = 10;
const NEW_OBJECT: u8 = 18;
const GET_OBJECT: u8 = 19;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
/// Family, version and id before the attributes.
const FAMILY_HEADER: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// All named counters of a table.
pub fn counters(
    socket: &NetlinkSocket,
    family: Family,
    table: &str,
) -> io::Result<BTreeMap<String, Counter>> {
    let attributes = Attributes::default().text(1, table).number(3, 1);
    let answers = ask(socket, GET_OBJECT, DUMP, family, &attributes)?;
    let objects = answers.iter().filter(|answer| answer.kind == message_type(NEW_OBJECT));
    Ok(objects.filter_map(|answer| counter(answer.payload.get(FAMILY_HEADER..)?)).collect())
}

fn counter(attributes: &[u8]) -> Option<(String, Counter)> {
    let name = find(attributes, 2)?.strip_suffix(&[0])?;
    let data = find(attributes, 4)?;
    let long = |kind| Some(u64::from_be_bytes(*find(data, kind)?.first_chunk()?));
    let counter = Counter { bytes: long(1)?, packets: long(2)? };
    Some((String::from_utf8_lossy(name).into_owned(), counter))
}

/// The names of all sets of a table.
pub fn sets(socket: &NetlinkSocket, family: Family, table: &str) -> io::Result<Vec<String>> {
    let attributes = Attributes::default().text(1, table);
    let answers = ask(socket, GET_SET, DUMP, family, &attributes)?;
    let sets = answers.iter().filter(|answer| answer.kind == message_type(NEW_SET));
    let name = |payload: &[u8]| {
        let name = find(payload.get(FAMILY_HEADER..)?, 2)?.strip_suffix(&[0])?;
        Some(String::from_utf8_lossy(name).into_owned())
    };
    Ok(sets.filter_map(|answer| name(&answer.payload)).collect())
}

pub fn chain_exists(socket: &NetlinkSocket, family: Family, table: &str, chain: &str) -> io::Result<bool> {
    let attributes = Attributes::default().text(1, table).text(3, chain);
    match ask(socket, GET_CHAIN, ACKNOWLEDGE, family, &attributes) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn ask(
    socket: &NetlinkSocket,
    message: u8,
    flags: u16,
    family: Family,
    attributes: &Attributes,
) -> io::Result<Vec<crate::netlink::Answer>> {
    let mut bytes = Vec::new();
    let header = [family.number(), 0, 0, 0];
    write_message(&mut bytes, message_type(message), REQUEST | flags, 1, &[&header, attributes.bytes()]);
    Ok(socket.ask(&bytes, 1)?)
}
