//! A network that a sandbox has left, made as good as new for another one.
//!
//! ```text
//!   tap down ─▶ rules anew ─▶ tap opened anew, by us alone ─▶ connections forgotten ─▶ tap up ─▶ inspected
//! ```
//!
//! The namespace, its veth and its tap stay, so nothing is made or removed. Everything that a guest can leave in them
//! goes: packets on their way, connections here and on the host, neighbours, the resolver's sockets, counters, addresses that
//! names have opened. A network is refused, and then removed by the caller, if anybody else still has its tap, if a step fails, or
//! if the inspection finds anything. What no guest can see stays: the statistics of links (`ip -s link`) and of protocols
//! (`/proc/net/snmp`).

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::NetError;
use crate::lease::{Counters, Inside, Lease, Tenancy, connect_tap};
use crate::namespace::Namespace;
use crate::netlink::NetlinkSocket;
use crate::netlink::route::Links;
use crate::nft::{Counter, Family, counters, sets};
use crate::plan::{Slot, TAP, UPLINK};
use crate::policy::Policy;
use crate::resolver::Sockets;
use crate::rules::TABLE;
use crate::rules::lease::{self as rules, FRAGMENTS, FRAGMENTS_TABLE, SENT};
use crate::{conntrack, sysctl, tap};

/// How long to wait for what ends in a moment: sockets of tasks that were ended.
const BRIEF: Duration = Duration::from_millis(200);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Sockets of the thread's namespace. Other than `/proc/net`, which is of the process.
const SOCKETS: [(&str, &[&str]); 2] = [
    ("/proc/thread-self/net/sockstat", &["TCP", "UDP", "RAW", "FRAG"]),
    ("/proc/thread-self/net/sockstat6", &["TCP6", "UDP6", "RAW6", "FRAG6"]),
];

/// What became of a slot's network: the default policy's, with sockets for its resolver.
pub(crate) type Reset = (Slot, Result<(Lease, Sockets), NetError>);

/// Resets networks whose sandboxes and resolvers have ended. VMs that are about to end have so long. Blocks.
///
/// A refused one has to be cleared.
pub(crate) fn reset(leases: Vec<Lease>, patience: Duration) -> Vec<Reset> {
    let until = Instant::now() + patience;
    let emptied: Vec<_> = leases.into_iter().map(|lease| (lease.slot, empty(lease, until))).collect();
    let sent: Vec<Slot> = emptied
        .iter()
        .filter_map(|(slot, emptied)| emptied.as_ref().is_ok_and(|emptied| emptied.has_sent).then_some(*slot))
        .collect();
    // The host's connections are looked through once for all.
    let forgotten = match sent.is_empty() {
        true => Ok(()),
        false => NetlinkSocket::netfilter().and_then(|socket| conntrack::forget(&socket, &sent)),
    };
    let finished = |(slot, emptied): (Slot, Result<Emptied, NetError>)| {
        let finished = emptied.and_then(|emptied| match &forgotten {
            Err(error) if emptied.has_sent => Err(NetError::NotReusable(slot, error.to_string())),
            _ => finish(emptied),
        });
        (slot, finished)
    };
    emptied.into_iter().map(finished).collect()
}

/// A network with nothing of its sandbox in it, and a tap that is down.
struct Emptied {
    lease: Lease,
    namespace: Namespace,
    /// Whether the host can have connections of its sandbox.
    has_sent: bool,
}

fn empty(lease: Lease, until: Instant) -> Result<Emptied, NetError> {
    let Lease { host, slot, tap, inside, tenants_before, .. } = lease;
    // Access to the rules does not extend to those of the next sandbox.
    inside.release();
    let old = tap.ok_or_else(|| NetError::NotReusable(slot, "only its VM had its tap".into()))?;
    let failed = || NetError::when("reset a network");
    let namespace = host.namespaces.open(&slot.namespace()).map_err(failed())?;
    let generation = inside.other_generation().map_err(failed())?;
    let before = inside.policy();
    let emptied = namespace.run(|| {
        let (links, netfilter) = (Links::open()?, NetlinkSocket::netfilter()?);
        // What a VM that has not ended yet writes now goes nowhere.
        let index = links.expect(TAP)?;
        links.set_down(index)?;
        let sent = counters(&netfilter, Family::Inet, TABLE)?.get(SENT).copied();
        renew_rules(&netfilter, &before, generation)?;
        // It outlives its descriptor, so that it can be opened again, which the kernel refuses while anybody has it. When the last
        // one is closed, the kernel waits for all packets on their way, which the old rules may have let through, and they are gone
        // with the descriptor's queue.
        tap::set_persistent(old.as_fd(), true)?;
        drop(old);
        let tap = open_alone(until)?;
        if links.expect(TAP)? != index {
            return Err(io::Error::other("the tap is another one"));
        }
        tap::set_persistent(tap.as_fd(), false)?;
        let has_sent = sent != Some(Counter::default()) || connections()? != 0;
        conntrack::flush(&netfilter)?;
        Ok((tap, links, netfilter, has_sent))
    });
    let (tap, links, netfilter, has_sent) = emptied.map_err(failed())?;
    let inside = Arc::new(Inside::new(links, netfilter, Policy::default(), generation));
    let (tenancy, tenants_before) = (Tenancy::new(), tenants_before.saturating_add(1));
    let lease = Lease { host, slot, tap: Some(tap), inside, tenancy, tenants_before };
    Ok(Emptied { lease, namespace, has_sent })
}

fn renew_rules(netfilter: &NetlinkSocket, before: &Policy, generation: u32) -> io::Result<()> {
    let old = sets(netfilter, Family::Inet, TABLE)?;
    rules::renew_guard().commit(netfilter).map_err(io::Error::other)?;
    rules::renew(before, generation, &old).commit(netfilter).map_err(io::Error::other)
}

/// How many connections the calling thread's namespace has.
fn connections() -> io::Result<u32> {
    sysctl::read("netfilter/nf_conntrack_count")?.parse().map_err(io::Error::other)
}

/// The tap, when no other process has it any more.
fn open_alone(until: Instant) -> io::Result<OwnedFd> {
    loop {
        match tap::open(TAP) {
            Err(error) if is_busy(&error) && Instant::now() < until => thread::sleep(BETWEEN_LOOKS),
            result => return result,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

fn finish(Emptied { lease, namespace, .. }: Emptied) -> Result<(Lease, Sockets), NetError> {
    let (slot, ipv6) = (lease.slot, lease.host.ipv6);
    let failed = || NetError::when("reset a network");
    // One end of a veth is not there without the other.
    lease.inside.links.expect(UPLINK).map_err(failed())?;
    connect_tap(ipv6, &lease.inside.links).map_err(failed())?;
    let opened = namespace.run(|| {
        let found = wait_for_nothing(ipv6)?;
        if found.is_empty() { Sockets::open_here(ipv6).map(Ok) } else { Ok(Err(found)) }
    });
    let sockets = opened.map_err(failed())?.map_err(|found| NetError::NotReusable(slot, found.join(", ")))?;
    inspect_rules(&lease.inside).map_err(failed())?.map_err(|found| NetError::NotReusable(slot, found))?;
    Ok((lease, sockets))
}

/// Sockets, fragments and connections of the calling thread's namespace, if they do not end in a moment.
fn wait_for_nothing(ipv6: bool) -> io::Result<Vec<String>> {
    let until = Instant::now() + BRIEF;
    loop {
        let mut found = Vec::new();
        for (path, names) in SOCKETS.iter().take(if ipv6 { 2 } else { 1 }) {
            found.extend(in_use(&fs::read_to_string(path)?, names));
        }
        let connections = connections()?;
        if connections > 0 {
            found.push(format!("{connections} connections"));
        }
        if found.is_empty() || Instant::now() >= until {
            return Ok(found);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// What the kernel counts of these protocols, and says it of each: `TCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0`. The rest of the
/// numbers is of all namespaces.
fn in_use(sockets: &str, protocols: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for protocol in protocols {
        let line = sockets.lines().find_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
        let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        let of =
            |name: &str| words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1).copied());
        if of("inuse") != Some("0") {
            found.push(format!("{protocol} in use: {}", of("inuse").unwrap_or("unknown")));
        }
        // Connections that have ended, whose last packets may still come. Only TCP has them.
        if let Some(count) = of("tw").filter(|count| *count != "0") {
            found.push(format!("{protocol} in TIME_WAIT: {count}"));
        }
    }
    found
}

/// Whether nothing was counted or opened since the rules were made, and there has never been a fragment.
fn inspect_rules(inside: &Inside) -> io::Result<Result<(), String>> {
    let counted = inside.counters()?;
    if counted != Counters::default() {
        return Ok(Err(format!("packets were counted: {counted:?}")));
    }
    let sets = sets(&inside.netfilter, Family::Inet, TABLE)?;
    if !sets.is_empty() {
        return Ok(Err(format!("it has sets of addresses: {sets:?}")));
    }
    let fragments = counters(&inside.netfilter, Family::Inet, FRAGMENTS_TABLE)?;
    if fragments.get(FRAGMENTS) != Some(&Counter::default()) {
        return Ok(Err("there were fragments, which the kernel may still have".into()));
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_found() {
        let (path, names) = SOCKETS[0];
        let clean = "sockets: used 9\nTCP: inuse 0 orphan 7 tw 0 alloc 9 mem 3\nUDP: inuse 0 mem 2\nUDPLITE: inuse 0\n\
                     RAW: inuse 0\nFRAG: inuse 0 memory 0\n";
        assert_eq!(in_use(clean, names), [""; 0], "{path}");
        let used = clean.replace("TCP: inuse 0", "TCP: inuse 2").replace("tw 0", "tw 1");
        assert_eq!(in_use(&used, names), ["TCP in use: 2", "TCP in TIME_WAIT: 1"]);
        assert_eq!(in_use(&clean.replace("FRAG: inuse 0", "FRAG: inuse 1"), names), ["FRAG in use: 1"]);
        // What the kernel does not say is not taken for nothing.
        assert_eq!(in_use("TCP: inuse\n", &["TCP"]), ["TCP in use: unknown"]);
        assert_eq!(in_use("", names).len(), names.len());
    }

    #[test]
    fn the_kernel_says_what_is_asked_for() {
        for (path, names) in SOCKETS {
            let Ok(text) = fs::read_to_string(path) else { continue };
            let unknown = |found: &String| found.ends_with("unknown");
            assert_eq!(in_use(&text, names).iter().find(|found| unknown(found)), None, "{path}: {text}");
        }
    }
}
