//! nftables, over netlink: tables, chains, rules, sets and counters, changed in transactions.
//!
//! Written by hand: of the crates that do this one binds a C library, one has a licence that this project cannot use, and the
//! others start `nft`. What is here is what the rules of this crate need. The numbers are those of
//! `linux/netfilter/nf_tables.h`.
//!
//! ```text
//!   transaction: begin │ message │ message │ … │ end      all of it happens, or nothing
//!   message:     netlink header │ family │ attributes     integers in attributes are big-endian
//!   rule:        expressions, left to right: load into the register, compare, …, verdict
//! ```

mod attributes;
mod expression;
mod read;
mod transaction;

pub use attributes::{Attributes, find};
pub use expression::{Comparison, ESTABLISHED, Expression, ICMP, ICMP6, INVALID, RELATED, Rule, TCP, UDP};
pub use read::{Counter, chain_exists, counters, sets};
pub use transaction::{Base, Hook, Priority, SetKey, Transaction, TransactionError};

/// The families that tables are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet = 1,
    /// Everything that comes in at a device.
    Netdev = 5,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Netdev => 5,
        }
    }
}

/// NFNL_SUBSYS_NFTABLES.
const SUBSYSTEM: u16 = 10;

fn message_type(message: u8) -> u16 {
    SUBSYSTEM << 8 | u16::from(message)
}
