//! Notices of what a sandbox was not allowed to do: packets that the kernel logs in the sandbox's namespace, and names that
//! its resolver does not answer.
//!
//! ```text
//!   rule: log group 1, a few a second ──▶ netlink socket of the namespace ─┐
//!   resolver: a name that is not allowed ──────────────────────────────────┴─▶ bucket ─▶ notices, or lost without reader
//! ```
//!
//! A guest can cause any number of them. Those beyond a few a second are not told; the counters have all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::lease::Tenancy;
use crate::log_socket::LogSocket;
use crate::netlink::split;
use crate::nft::find;
use crate::plan::Slot;

/// The group that rules log to.
pub(crate) const GROUP: u16 = 1;
/// As much of a packet as its headers take: IPv6 and ports, or IPv4 with options.
pub(crate) const LOGGED_BYTES: u32 = 128;
/// How many of one sandbox are told: at once, and a second.
const BURST: f64 = 10.0;
const PER_SECOND: f64 = 1.0;

/// A message of NFNL_SUBSYS_ULOG, and its attributes.
const PACKET: u16 = 4 << 8;
const FAMILY_HEADER: usize = 4;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;
/// Packets that wait to be read, with what the kernel says of each.
const PIECE: usize = 64 << 10;

/// Why something was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Forbidden by the policy.
    Refused,
    /// With addresses that are not the guest's.
    Spoofed,
    /// Beyond the bandwidth, or with more connections than a sandbox may have.
    OverLimit,
}

impl Reason {
    /// What rules put before what they log.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Reason::Refused => "refused",
            Reason::Spoofed => "spoofed",
            Reason::OverLimit => "over_limit",
        }
    }

    fn of_prefix(prefix: &[u8]) -> Option<Reason> {
        let all = [Reason::Refused, Reason::Spoofed, Reason::OverLimit];
        all.into_iter().find(|reason| reason.prefix().as_bytes() == prefix)
    }
}

/// Something that was dropped. What is not known is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    pub reason: Reason,
    /// The protocol's number in IP.
    pub protocol: Option<u8>,
    pub destination: Option<IpAddr>,
    pub port: Option<u16>,
    /// The name that was asked for.
    pub name: Option<String>,
}

/// Told of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub slot: Slot,
    pub tenancy: Tenancy,
    pub dropped: Dropped,
}

/// Where a sandbox's notices go.
#[derive(Debug)]
pub(crate) struct Notices {
    slot: Slot,
    tenancy: Tenancy,
    to: Option<mpsc::Sender<Notice>>,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * PER_SECOND).min(BURST);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

impl Notices {
    pub fn new(slot: Slot, tenancy: Tenancy, to: Option<mpsc::Sender<Notice>>) -> Arc<Notices> {
        let bucket = Mutex::new(Bucket { left: BURST, at: Instant::now() });
        Arc::new(Notices { slot, tenancy, to, bucket })
    }

    pub fn tell(&self, dropped: Dropped) {
        let Some(to) = &self.to else { return };
        if self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
            // Who does not read misses it.
            let _ = to.try_send(Notice { slot: self.slot, tenancy: self.tenancy, dropped });
        }
    }

    pub fn refused_name(&self, name: String) {
        let reason = Reason::Refused;
        self.tell(Dropped { reason, protocol: None, destination: None, port: None, name: Some(name) });
    }
}

/// Tells what is logged, for as long as this is polled.
pub(crate) async fn watch(socket: LogSocket, notices: Arc<Notices>) {
    let mut piece = vec![0; PIECE];
    loop {
        let length = match socket.read(&mut piece).await {
            Ok(length) => length,
            // More was logged than fits: some of it is lost.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => continue,
            Err(_) => return,
        };
        let messages = split(piece.get(..length).unwrap_or_default()).unwrap_or_default();
        let packets = messages.iter().filter(|message| message.kind == PACKET);
        packets.filter_map(|packet| read_packet(&packet.payload)).for_each(|dropped| notices.tell(dropped));
    }
}

fn read_packet(payload: &[u8]) -> Option<Dropped> {
    let attributes = payload.get(FAMILY_HEADER..)?;
    let reason = Reason::of_prefix(find(attributes, PREFIX)?.strip_suffix(&[0])?)?;
    let unknown = Dropped { reason, protocol: None, destination: None, port: None, name: None };
    let packet = find(attributes, PAYLOAD).unwrap_or_default();
    Some(of_ip(packet, reason).unwrap_or(unknown))
}

/// What the headers of a packet say, which are the guest's.
fn of_ip(packet: &[u8], reason: Reason) -> Option<Dropped> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let version = packet.first()? >> 4;
    let (protocol, destination, transport, first): (u8, IpAddr, &[u8], bool) = match version {
        4 => {
            let header = packet.first_chunk::<20>()?;
            let length = usize::from(header[0] & 15) * 4;
            let to: [u8; 4] = *header[16..].first_chunk()?;
            let first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
            (header[9], Ipv4Addr::from(to).into(), packet.get(length..).unwrap_or_default(), first)
        }
        6 => {
            let header = packet.first_chunk::<40>()?;
            let to: [u8; 16] = *header[24..].first_chunk()?;
            (header[6], Ipv6Addr::from(to).into(), packet.get(40..).unwrap_or_default(), true)
        }
        _ => return None,
    };
    let has_ports = first && matches!(protocol, TCP | UDP);
    let port = transport.get(2..4).filter(|_| has_ports).and_then(|port| port.first_chunk());
    let port = port.map(|port| u16::from_be_bytes(*port));
    Some(Dropped { reason, protocol: Some(protocol), destination: Some(destination), port, name: None })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_are_read() {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 9, 9, 9, 9];
        packet.extend([0x12, 0x34, 0x01, 0xbb]);
        let dropped = of_ip(&packet, Reason::Refused).unwrap();
        assert_eq!((dropped.protocol, dropped.port), (Some(6), Some(443)));
        assert_eq!(dropped.destination, Some("9.9.9.9".parse().unwrap()));
        packet[7] = 1;
        assert_eq!(of_ip(&packet, Reason::Refused).unwrap().port, None, "a later fragment has no ports");
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        packet.extend(Ipv6Addr::LOCALHOST.octets());
        packet.extend("2a00:9::9".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend([0, 1, 0, 53]);
        let dropped = of_ip(&packet, Reason::Spoofed).unwrap();
        assert_eq!((dropped.protocol, dropped.port), (Some(17), Some(53)));
        assert_eq!(dropped.destination, Some("2a00:9::9".parse().unwrap()));
    }

    #[test]
    fn a_flood_is_told_as_a_trickle() {
        let begun = Instant::now();
        let mut bucket = Bucket { left: BURST, at: begun };
        let told = (0..1000).filter(|_| bucket.take(begun)).count();
        assert_eq!(told, 10);
        let later = begun + Duration::from_secs(3);
        assert_eq!((0..1000).filter(|_| bucket.take(later)).count(), 3);
    }

    proptest! {
        #[test]
        fn no_packet_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_packet(&bytes);
            let _ = of_ip(&bytes, Reason::Refused);
        }
    }
}
