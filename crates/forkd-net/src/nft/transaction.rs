//! A transaction: what is to be changed, all at once.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::{Attributes, Family, Rule, SUBSYSTEM, message_type};
use crate::netlink::NetlinkSocket;

const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const NEW_RULE: u8 = 6;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
const DELETE_SET: u8 = 11;
const NEW_ELEMENTS: u8 = 12;
const NEW_OBJECT: u8 = 18;
const DELETE_OBJECT: u8 = 20;

const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

const SET_HAS_TIMEOUTS: u32 = 0x10;
const COUNTER: u32 = 1;

/// Where packets meet a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Postrouting,
    /// Of a device.
    Ingress,
}

impl Hook {
    fn number(self) -> u32 {
        match self {
            Hook::Prerouting | Hook::Ingress => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Postrouting => 4,
        }
    }
}

/// When a chain's turn is, among others at the same hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Before fragments are put together.
    Fragments,
    /// Before connections are tracked and destinations translated.
    Raw,
    Filter,
    SourceNat,
}

impl Priority {
    fn number(self) -> i32 {
        match self {
            Priority::Fragments => -450,
            Priority::Raw => -300,
            Priority::Filter => 0,
            Priority::SourceNat => 100,
        }
    }
}

/// A base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base<'a> {
    pub hook: Hook,
    pub priority: Priority,
    /// Whether what no rule decides is dropped.
    pub drops: bool,
    /// Of an ingress hook.
    pub device: Option<&'a str>,
}

/// What a set is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKey {
    Ipv4,
    Ipv6,
}

/// A transaction that the kernel has refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refused to {what}")]
pub struct TransactionError {
    what: String,
    pub source: io::Error,
}

/// Messages for one table.
#[derive(Debug)]
pub struct Transaction {
    family: Family,
    table: String,
    bytes: Vec<u8>,
    /// What each message does, for errors; the first one is number 1.
    meanings: Vec<String>,
}

impl Transaction {
    pub fn new(family: Family, table: &str) -> Transaction {
        let mut transaction =
            Transaction { family, table: table.into(), bytes: Vec::new(), meanings: Vec::new() };
        transaction.limit(BEGIN);
        transaction
    }

    /// What follows is for another table of the same family.
    pub fn in_table(mut self, table: &str) -> Self {
        self.table = table.into();
        self
    }

    /// Makes the table, if it is not there.
    pub fn add_table(self) -> Self {
        let attributes = Attributes::default().text(1, &self.table);
        self.message(NEW_TABLE, CREATE, &attributes, "make the table")
    }

    pub fn delete_table(self) -> Self {
        let attributes = Attributes::default().text(1, &self.table);
        self.message(DELETE_TABLE, 0, &attributes, "delete the table")
    }

    /// A chain that others jump to.
    pub fn add_chain(self, name: &str) -> Self {
        let attributes = Attributes::default().text(1, &self.table).text(3, name);
        self.message(NEW_CHAIN, CREATE, &attributes, &format!("make chain {name}"))
    }

    pub fn add_base_chain(self, name: &str, base: &Base<'_>) -> Self {
        let hook =
            Attributes::default().number(1, base.hook.number()).put(2, &base.priority.number().to_be_bytes());
        let hook = match base.device {
            Some(device) => hook.text(3, device),
            None => hook,
        };
        let kind = if base.priority == Priority::SourceNat { "nat" } else { "filter" };
        let attributes = Attributes::default()
            .text(1, &self.table)
            .text(3, name)
            .nest(4, &hook)
            .number(5, u32::from(!base.drops))
            .text(7, kind);
        self.message(NEW_CHAIN, CREATE, &attributes, &format!("make chain {name}"))
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(self, name: &str) -> Self {
        let attributes = Attributes::default().text(1, &self.table).text(2, name);
        self.message(DELETE_RULE, 0, &attributes, &format!("empty chain {name}"))
    }

    /// Adds a rule at a chain's end.
    pub fn add_rule(self, chain: &str, rule: &Rule) -> Self {
        let attributes = Attributes::default().text(1, &self.table).text(2, chain).nest(4, &rule.encode());
        self.message(NEW_RULE, CREATE | APPEND, &attributes, &format!("take a rule of chain {chain}"))
    }

    pub fn add_rules<'a>(self, chain: &str, rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        rules.into_iter().fold(self, |transaction, rule| transaction.add_rule(chain, rule))
    }

    /// A counter, unless it is there.
    pub fn add_counter(self, name: &str) -> Self {
        let zero = Attributes::default().long(1, 0).long(2, 0);
        let attributes =
            Attributes::default().text(1, &self.table).text(2, name).number(3, COUNTER).nest(4, &zero);
        self.message(NEW_OBJECT, CREATE, &attributes, &format!("make counter {name}"))
    }

    /// Makes a counter anew, which no rule uses at this point.
    pub fn renew_counter(self, name: &str) -> Self {
        let attributes = Attributes::default().text(1, &self.table).text(2, name).number(3, COUNTER);
        self.message(DELETE_OBJECT, 0, &attributes, &format!("delete counter {name}")).add_counter(name)
    }

    /// A set whose elements expire.
    pub fn add_set(self, name: &str, key: SetKey) -> Self {
        // The numbers of the types are nft's own: the kernel keeps them for it.
        let (kind, length) = match key {
            SetKey::Ipv4 => (7, 4),
            SetKey::Ipv6 => (8, 16),
        };
        let id = u32::try_from(self.meanings.len()).unwrap_or_default();
        let attributes = Attributes::default()
            .text(1, &self.table)
            .text(2, name)
            .number(3, SET_HAS_TIMEOUTS)
            .number(4, kind)
            .number(5, length)
            .number(10, id);
        self.message(NEW_SET, CREATE, &attributes, &format!("make set {name}"))
    }

    pub fn delete_set(self, name: &str) -> Self {
        let attributes = Attributes::default().text(1, &self.table).text(2, name);
        self.message(DELETE_SET, 0, &attributes, &format!("delete set {name}"))
    }

    /// Adds an address to a set of its family, for some time.
    pub fn add_element(self, set: &str, address: IpAddr, lifetime: Duration) -> Self {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let milliseconds = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        let key = Attributes::default().put(1, &bytes);
        let element = Attributes::default().nest(1, &key).long(4, milliseconds);
        let elements = Attributes::default().nest(1, &element);
        let attributes = Attributes::default().text(1, &self.table).text(2, set).nest(3, &elements);
        self.message(NEW_ELEMENTS, CREATE, &attributes, &format!("add to set {set}"))
    }

    /// Does it, or nothing.
    pub fn commit(mut self, socket: &NetlinkSocket) -> Result<(), TransactionError> {
        self.limit(END);
        match socket.ask(&self.bytes, self.meanings.len()) {
            Ok(_) => Ok(()),
            Err(refusal) => {
                let index = usize::try_from(refusal.sequence).unwrap_or_default();
                let what = index.checked_sub(1).and_then(|index| self.meanings.get(index));
                let what = what.map_or("take the transaction", String::as_str);
                let what = format!("{what} (table {})", self.table);
                Err(TransactionError { what, source: refusal.source })
            }
        }
    }

    fn limit(&mut self, kind: u16) {
        // The subsystem that the transaction is for, big-endian as everything of netfilter's.
        let [high, low] = SUBSYSTEM.to_be_bytes();
        self.write(kind, REQUEST, 0, [0, 0, high, low], &[]);
    }

    fn message(mut self, message: u8, flags: u16, attributes: &Attributes, meaning: &str) -> Self {
        self.meanings.push(meaning.into());
        let sequence = u32::try_from(self.meanings.len()).unwrap_or(u32::MAX);
        let family = [self.family.number(), 0, 0, 0];
        let flags = REQUEST | ACKNOWLEDGE | flags;
        self.write(message_type(message), flags, sequence, family, attributes.bytes());
        self
    }

    fn write(&mut self, kind: u16, flags: u16, sequence: u32, family: [u8; 4], payload: &[u8]) {
        crate::netlink::write_message(&mut self.bytes, kind, flags, sequence, &[&family, payload]);
    }
}
