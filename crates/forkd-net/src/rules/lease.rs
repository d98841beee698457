//! The tables in a sandbox's namespace: who may send, what may go out, what comes back, and how much of it.
//!
//! ```text
//!   guest ─▶ netdev guard: its own MAC and addresses? ─▶ forward ─▶ marked? accept
//!                                     │                    └▶ egress: the policy ─▶ pass: mark, accept
//!                                     │                                        └──▶ refuse: count, tell the guest
//!                                     └▶ input: the resolver, echo ─▶ drop
//!   outside ─▶ forward: an answer on a marked connection? accept, else drop
//! ```
//!
//! A connection that the policy lets out is marked with the policy's generation. Another policy has another one, so what is
//! already connected is checked again by the new rules, at the moment that they appear: connections that they forbid end, and
//! others are not affected.

use std::net::IpAddr;

use super::TABLE;
use super::ranges::not_the_internet;
use crate::drops::{GROUP, LOGGED_BYTES, Reason};
use crate::nft::{Base, Comparison, Expression, Family, Hook, Priority, Rule, SetKey, Transaction};
use crate::nft::{ESTABLISHED, ICMP, ICMP6, INVALID, RELATED, TCP, UDP};
use crate::plan::{GATEWAY4, GATEWAY6, GUEST_LINK_LOCAL, GUEST_MAC, GUEST4, GUEST6, TAP, UPLINK};
use crate::policy::{Egress, EgressEntry, Exceptions, Policy, Target};

/// Counters, by table.
pub const SENT: &str = "sent";
pub const RECEIVED: &str = "received";
pub const REFUSED: &str = "refused";
pub const OVER_LIMIT: &str = "over_limit";
pub const SPOOFED: &str = "spoofed";
/// Those of the table.
const COUNTERS: [&str; 4] = [SENT, RECEIVED, REFUSED, OVER_LIMIT];

/// A table of its own, whose counter is never made anew. It says whether a fragment has ever come in at any link of the namespace: the kernel keeps those of incomplete packets for a minute, and offers no way to forget them.
pub const FRAGMENTS_TABLE: &str = "forkd_fragments";
pub const FRAGMENTS: &str = "fragments";

const FORWARD: &str = "forward";
const INPUT: &str = "input";
const EGRESS: &str = "egress";
const PASS: &str = "pass";
const REFUSE: &str = "refuse";
const GUARD: &str = "guard";
const OVER: &str = "over";
const SPOOF: &str = "spoof";
/// What is told of each kind of drop: a second, and at once.
const TOLD: Expression = Expression::Few { per_second: 2, burst: 10 };

/// Connections of one sandbox at a time. The host's table of connections is everybody's.
const MAX_CONNECTIONS: u32 = 8192;
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;
/// The least that a limit lets through at once: a packet of the largest size that the tap takes, and one more.
const MIN_BUCKET: u64 = 128 << 10;

/// The table that looks at everything the guest sends, before anything else does.
pub fn guard() -> Transaction {
    let base = Base { hook: Hook::Ingress, priority: Priority::Filter, drops: true, device: Some(TAP) };
    let rules = [
        Rule::new().sender(Comparison::NotEqual, GUEST_MAC).jump(SPOOF),
        Rule::new().frame4(GUEST4).accept(),
        Rule::new().frame6(GUEST6, 128).accept(),
        // Neighbours are looked for from the link-local address, or from none. Neither is forwarded. One address only: the
        // kernel's table of neighbours is one for all namespaces, and no sandbox may fill it.
        Rule::new().frame6(GUEST_LINK_LOCAL, 128).accept(),
        Rule::new().frame6([0; 8].into(), 128).accept(),
        Rule::new().arp(GUEST_MAC, GUEST4).accept(),
        // Asking whether anybody has an address, before taking it.
        Rule::new().arp(GUEST_MAC, [0; 4].into()).accept(),
        Rule::new().jump(SPOOF),
    ];
    Transaction::new(Family::Netdev, TABLE)
        .add_table()
        .add_counter(SPOOFED)
        .add_base_chain(GUARD, &base)
        .add_chain(SPOOF)
        .add_rules(SPOOF, &spoof())
        .add_rules(GUARD, &rules)
}

/// The guard of a lease that had another sandbox: all that it remembers is made anew.
pub fn renew_guard() -> Transaction {
    Transaction::new(Family::Netdev, TABLE)
        .flush_chain(SPOOF)
        .renew_counter(SPOOFED)
        .add_rules(SPOOF, &spoof())
}

fn spoof() -> [Rule; 2] {
    [told(Reason::Spoofed), Rule::new().count(SPOOFED).drop()]
}

/// A few of the packets that come here are told.
fn told(reason: Reason) -> Rule {
    let log = Expression::Log { group: GROUP, prefix: reason.prefix(), bytes: LOGGED_BYTES };
    Rule::new().then(TOLD).then(log)
}

/// Counts fragments, in a new namespace.
pub fn fragments() -> Transaction {
    let base = Base { hook: Hook::Prerouting, priority: Priority::Fragments, drops: false, device: None };
    let rules = [Rule::new().fragment4().count(FRAGMENTS), Rule::new().fragment6().count(FRAGMENTS)];
    Transaction::new(Family::Inet, FRAGMENTS_TABLE)
        .add_table()
        .add_counter(FRAGMENTS)
        .add_base_chain(FRAGMENTS, &base)
        .add_rules(FRAGMENTS, &rules)
}

/// Adds the table of a new lease.
pub fn table(transaction: Transaction, policy: &Policy, generation: u32) -> Transaction {
    let base = |hook, priority, drops| Base { hook, priority, drops, device: None };
    let transaction = transaction.in_table(TABLE).add_table();
    let transaction =
        COUNTERS.into_iter().fold(transaction, |transaction, counter| transaction.add_counter(counter));
    let transaction = transaction
        .add_base_chain(INPUT, &base(Hook::Input, Priority::Filter, true))
        .add_base_chain(FORWARD, &base(Hook::Forward, Priority::Filter, true))
        .add_base_chain("postrouting", &base(Hook::Postrouting, Priority::SourceNat, false))
        .add_chain(EGRESS)
        .add_chain(PASS)
        .add_chain(REFUSE)
        .add_chain(OVER)
        .add_rule("postrouting", &Rule::new().to_link(UPLINK).then(Expression::Masquerade))
        .add_rules(INPUT, &input());
    let transaction = with_ends(transaction);
    with_egress(with_connections(transaction, policy, generation), policy, generation)
}

/// The table of a lease that had another sandbox, with the policy that a new lease has. All that it remembers is made anew:
/// counters, limits, the number of connections, addresses that names have opened. `sets` are those that it has, and `before` is its
/// policy so far. The rules of what may be reached hold nothing, and stay if they are the same: they are most of all.
pub fn renew(before: &Policy, generation: u32, sets: &[String]) -> Transaction {
    let policy = Policy::default();
    let has_other_egress = before.egress != policy.egress;
    let chains = [FORWARD, PASS, REFUSE, OVER].into_iter().chain(has_other_egress.then_some(EGRESS));
    let transaction = Transaction::new(Family::Inet, TABLE);
    let transaction = chains.fold(transaction, |transaction, chain| transaction.flush_chain(chain));
    let transaction = sets.iter().fold(transaction, |transaction, set| transaction.delete_set(set));
    let transaction =
        COUNTERS.into_iter().fold(transaction, |transaction, counter| transaction.renew_counter(counter));
    let transaction = with_connections(with_ends(transaction), &policy, generation);
    if has_other_egress { with_egress(transaction, &policy, generation) } else { transaction }
}

/// Other rules for a lease that has some. `sets` are those that it has.
pub fn change(policy: &Policy, generation: u32, sets: &[String]) -> Transaction {
    let transaction = Transaction::new(Family::Inet, TABLE);
    let transaction = [FORWARD, EGRESS, PASS]
        .into_iter()
        .fold(transaction, |transaction, chain| transaction.flush_chain(chain));
    let transaction = sets.iter().fold(transaction, |transaction, set| transaction.delete_set(set));
    with_egress(with_connections(transaction, policy, generation), policy, generation)
}

/// Another bandwidth for a lease of this generation. What it may reach stays, and so do its connections.
pub fn change_bandwidth(policy: &Policy, generation: u32) -> Transaction {
    Transaction::new(Family::Inet, TABLE)
        .flush_chain(FORWARD)
        .add_rules(FORWARD, &forward(policy.bandwidth, generation))
}

/// The set with the addresses of an entry's names. Sets of another generation are others.
pub fn set_name(generation: u32, entry: usize, ipv4: bool) -> String {
    format!("names{}_{generation:08x}_{entry}", if ipv4 { 4 } else { 6 })
}

/// What the namespace itself answers.
fn input() -> Vec<Rule> {
    let guest = || Rule::new().from_link(TAP);
    let mut rules = Vec::new();
    for (gateway, bits) in [(GATEWAY4.into(), 32), (GATEWAY6.into(), 128)] {
        for protocol in [UDP, TCP] {
            rules.push(guest().to_network(gateway, bits).protocol(protocol).to_ports(DNS, DNS).accept());
        }
    }
    // Echo requests, and for IPv6 also the search for neighbours.
    rules.push(guest().to_network(GATEWAY4.into(), 32).protocol(ICMP).icmp_types(8, 8).accept());
    rules.push(guest().to_network(GATEWAY6.into(), 128).protocol(ICMP6).icmp_types(128, 128).accept());
    rules.push(guest().protocol(ICMP6).icmp_types(135, 136).accept());
    // The guest hears at once that there is nothing here.
    rules.push(guest().jump(REFUSE));
    rules
}

/// What happens to a packet before anybody asks where it goes.
fn forward(bandwidth: Option<u64>, generation: u32) -> Vec<Rule> {
    let out = || Rule::new().from_link(TAP).to_link(UPLINK);
    let back = || Rule::new().from_link(UPLINK).to_link(TAP);
    let answers = ESTABLISHED | RELATED;
    let mut forward = vec![out().in_state(INVALID).count(REFUSED).drop()];
    if let Some(bytes_per_second) = bandwidth {
        // The kernel's bucket holds a second of it, and the burst on top: a quiet sender may send that much at once.
        let burst = u32::try_from(MIN_BUCKET.saturating_sub(bytes_per_second)).unwrap_or(u32::MAX);
        for direction in [out(), back()] {
            let beyond = Expression::Beyond { bytes_per_second: bytes_per_second.max(1), burst };
            forward.push(direction.then(beyond).jump(OVER));
        }
    }
    forward.push(back().in_state(answers).marked(generation).count(RECEIVED).accept());
    forward.push(out().in_state(answers).marked(generation).count(SENT).accept());
    forward.push(out().jump(EGRESS));
    forward
}

/// Where packets end that are not let through.
fn with_ends(transaction: Transaction) -> Transaction {
    transaction
        .add_rules(REFUSE, &[told(Reason::Refused), Rule::new().count(REFUSED).reject()])
        .add_rules(OVER, &[told(Reason::OverLimit), Rule::new().count(OVER_LIMIT).drop()])
}

/// What becomes of connections that were let out, and of those that are.
fn with_connections(transaction: Transaction, policy: &Policy, generation: u32) -> Transaction {
    transaction
        .add_rules(FORWARD, &forward(policy.bandwidth, generation))
        .add_rule(PASS, &Rule::new().then(Expression::MoreConnections(MAX_CONNECTIONS)).jump(OVER))
        .add_rule(PASS, &Rule::new().mark(generation).count(SENT).accept())
}

/// What may be let out.
fn with_egress(mut transaction: Transaction, policy: &Policy, generation: u32) -> Transaction {
    // Only our resolver is reachable: another one would return addresses that no rule knows of.
    for (protocol, port) in [(UDP, DNS), (TCP, DNS), (UDP, DNS_OVER_TLS), (TCP, DNS_OVER_TLS)] {
        let rule = Rule::new().protocol(protocol).to_ports(port, port).jump(REFUSE);
        transaction = transaction.add_rule(EGRESS, &rule);
    }
    match &policy.egress {
        Egress::Deny => {}
        Egress::Allow => {
            transaction = without_networks(transaction, not_the_internet());
            transaction = transaction.add_rule(EGRESS, &Rule::new().jump(PASS));
        }
        // The order is the policy: nothing opens private networks, and what is allowed wins over what is denied.
        Egress::Except(Exceptions { deny, allow }) => {
            transaction = without_networks(transaction, not_the_internet());
            for (index, entry) in allow.iter().enumerate() {
                transaction = with_entry(transaction, index, entry, generation);
            }
            let denied = deny.iter().map(|network| (network.network(), network.prefix()));
            transaction = without_networks(transaction, denied);
            transaction = transaction.add_rule(EGRESS, &Rule::new().jump(PASS));
        }
        Egress::List(entries) => {
            for (index, entry) in entries.iter().enumerate() {
                transaction = with_entry(transaction, index, entry, generation);
            }
        }
    }
    transaction.add_rule(EGRESS, &Rule::new().jump(REFUSE))
}

fn without_networks(
    transaction: Transaction,
    networks: impl IntoIterator<Item = (IpAddr, u8)>,
) -> Transaction {
    networks.into_iter().fold(transaction, |transaction, (network, prefix)| {
        transaction.add_rule(EGRESS, &Rule::new().to_network(network, prefix).jump(REFUSE))
    })
}

fn with_entry(
    mut transaction: Transaction,
    index: usize,
    entry: &EgressEntry,
    generation: u32,
) -> Transaction {
    let targets = match &entry.to {
        Target::Network(network) => vec![Rule::new().to_network(network.network(), network.prefix())],
        Target::Name(_) => {
            let (four, six) = (set_name(generation, index, true), set_name(generation, index, false));
            transaction = transaction.add_set(&four, SetKey::Ipv4).add_set(&six, SetKey::Ipv6);
            vec![Rule::new().to_set(true, &four), Rule::new().to_set(false, &six)]
        }
    };
    for target in targets {
        if entry.ports.is_empty() {
            transaction = transaction.add_rule(EGRESS, &target.jump(PASS));
            continue;
        }
        for ports in &entry.ports {
            for protocol in [TCP, UDP] {
                let rule = target.clone().protocol(protocol).to_ports(ports.first, ports.last).jump(PASS);
                transaction = transaction.add_rule(EGRESS, &rule);
            }
        }
    }
    transaction
}
