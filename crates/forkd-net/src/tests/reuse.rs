//! A network that one sandbox had and another gets is as good as new: nothing of the first is left in it or reaches it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use hickory_proto::rr::RecordType;

use super::in_namespaces;
use super::life::links;
use super::names::{ask, framed, policy, question, upstream};
use super::world::{Guest, OTHER_PORT, PORT, Reached, World, line};
use crate::conntrack::find_all;
use crate::netlink::NetlinkSocket;
use crate::plan::{GATEWAY4, Slot};
use crate::{
    Counters, Lease, NetError, Network, Others, Policy, Pool, PoolSettings, PoolStats, Upstream, tap,
};

const NOTICES: usize = 64;

async fn pool(world: &World) -> (Pool, tokio::sync::mpsc::Receiver<crate::Notice>) {
    let (notices, told) = tokio::sync::mpsc::channel(NOTICES);
    let upstream = Upstream::Servers(vec![upstream()]);
    let settings = PoolSettings { ready: 1, upstream, notices: Some(notices) };
    let started = Pool::start(world.host.clone(), settings, BTreeMap::new(), Others::Remove).await;
    (started.unwrap().0, told)
}

fn run(script: &str, namespace: Option<&std::path::Path>) -> String {
    let mut command = Command::new(if namespace.is_some() { "nsenter" } else { "sh" });
    if let Some(path) = namespace {
        command.arg(format!("--net={}", path.display())).arg("sh");
    }
    let output = command.args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// All that the kernel says of a network, inside and on the host, but for statistics.
fn described(world: &World, slot: Slot) -> String {
    // Tables are listed in the order in which they were made, which means nothing.
    let inside = "nft list tables | sort; nft list table inet forkd; nft list table netdev forkd; \
                  nft list table inet forkd_fragments; ip -d addr; ip route show table all | sort; \
                  ip neigh | sort; ip tcp_metrics; ss -Hant; ss -Hanu; \
                  cat /proc/sys/net/netfilter/nf_conntrack_count; \
                  grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf | sort";
    let outside = "nft list ruleset; ip -d addr show dev LINK; ip route show table all dev LINK | sort; \
                   ip neigh show dev LINK | sort";
    let path = world.host.namespaces.path(&slot.namespace());
    let connections = find_all(&NetlinkSocket::netfilter().unwrap(), &[slot]).unwrap().len();
    let text = [
        run(inside, Some(&path)),
        run(&outside.replace("LINK", &slot.link()), None),
        format!("{connections} connections on the host\n"),
    ];
    text.concat().lines().map(|line| without_generation(line) + "\n").collect()
}

/// The mark of a policy's generation is another one each time. The state of a tap is unknown until its carrier has changed once.
fn without_generation(line: &str) -> String {
    let line = &line.replace("state UNKNOWN", "state UP");
    let Some((before, after)) = line.split_once("ct mark ") else { return line.trim().to_owned() };
    let words = after.split(' ').map(|word| if word.starts_with("0x") { "…" } else { word });
    format!("{}ct mark {}", before.trim_start(), words.collect::<Vec<_>>().join(" "))
}

/// Lines that only one of them has.
fn difference(one: &str, other: &str) -> Vec<String> {
    let missing = |sign: char, from: &str, in_: &str| {
        let has = |line: &&str| !in_.lines().any(|other| other == *line);
        from.lines().filter(has).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [missing('-', one, other), missing('+', other, one)].concat()
}

fn assert_same(new: &str, reused: &str) {
    assert!(new == reused, "new and reused differ: {:#?}", difference(new, reused));
}

/// When link-local addresses are there, which takes the kernel a second or two.
async fn described_at_rest(world: &World, slot: Slot) -> String {
    let begun = Instant::now();
    loop {
        let text = described(world, slot);
        if !text.contains("tentative") && text.contains("fe80::66:6bff:feff:ff01") {
            return text;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The network of this slot, of all that are ready.
async fn take_again(pool: &Pool, slot: Slot) -> Network {
    let mut others = Vec::new();
    for _ in 0..4 {
        let network = pool.take(Policy::default()).await.unwrap();
        if network.slot() == slot {
            others.into_iter().for_each(|other| pool.give_back(other));
            return network;
        }
        others.push(network);
    }
    panic!("slot {slot} is not used again: {:?}", pool.stats());
}

/// What a busy tenant does. Returns a connection that is in the middle of something.
async fn use_it(guest: &Guest, network: &Network) -> std::net::TcpStream {
    let mut stream = guest.connect(([9, 9, 9, 9], PORT).into()).unwrap();
    line(&mut stream).unwrap();
    assert!(matches!(guest.reach("2a00:9::9", PORT), Reached::Yes(_)));
    // Names, over both protocols; the connection to the resolver stays open.
    network.change(policy(&[("*.example.com", &[]), ("9.9.9.9", &[])])).await.unwrap();
    ask(guest, "good.example.com.", RecordType::A).await;
    ask(guest, "good.example.com.", RecordType::AAAA).await;
    ask(guest, "other.org.", RecordType::A).await;
    let mut resolver = guest.connect((GATEWAY4, 53).into()).unwrap();
    let asked = framed(&question("good.example.com.", RecordType::A));
    resolver.write_all(&asked).unwrap();
    resolver.read_exact(&mut [0; 2]).unwrap();
    // Half a question: the resolver waits for the rest of it.
    resolver.write_all(&asked[..4]).unwrap();
    std::mem::forget(resolver);
    // What is refused, spoofed, and beyond the bandwidth.
    assert_eq!(guest.reach("8.8.8.8", OTHER_PORT), Reached::Forbidden);
    let index = guest.links.expect("eth0").unwrap();
    let strange: std::net::Ipv4Addr = "192.168.1.5".parse().unwrap();
    guest.links.add_address(index, strange.into(), 32).unwrap();
    let socket = guest.namespace.run(|| std::net::UdpSocket::bind((strange, 0))).unwrap();
    socket.send_to(b"hello", ("9.9.9.9", PORT)).unwrap();
    network.change(Policy { bandwidth: Some(1 << 30), ..network.policy() }).await.unwrap();
    // The other side is to have much to say when nobody listens any more.
    stream.set_nonblocking(true).unwrap();
    for _ in 0..64 {
        let _ = stream.write(&[7; 4096]);
    }
    stream
}

/// TCP and UDP packets that come out of a tap within a second and a half.
fn heard(tap: &OwnedFd) -> usize {
    let begun = Instant::now();
    let mut packets = 0;
    let mut frame = vec![0; 70_000];
    while begun.elapsed() < Duration::from_millis(1500) {
        match rustix::io::read(tap, &mut frame[..]) {
            // Behind the headers of virtio and Ethernet: the protocol of IPv4, or of IPv6.
            Ok(length) if length > 46 => {
                let (kind, four, six) = ([frame[24], frame[25]], frame[35], frame[32]);
                let protocol = if kind == [8, 0] { four } else { six };
                packets += usize::from(matches!(protocol, 6 | 17));
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    packets
}

#[test]
fn a_used_network_is_as_good_as_new() {
    in_namespaces("reuse::equality");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn equality() {
    let world = World::new().await;
    let (pool, mut told) = pool(&world).await;
    let first = pool.take(Policy::default()).await.unwrap();
    let (slot, tenancy) = (first.slot(), first.tenancy());
    assert!(!first.is_reused());
    let new = described_at_rest(&world, slot).await;
    let guest = world.guest("first", &first);
    let stream = use_it(&guest, &first).await;
    let begun = Instant::now();
    loop {
        let Counters { sent, received, refused, spoofed, .. } = first.counters().await.unwrap();
        if [sent, received, refused, spoofed].iter().all(|counter| counter.packets > 0) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", first.counters().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let used = described(&world, slot);
    assert_ne!(used, new, "the tenant has left traces");
    assert!(
        new.contains("\n0 connections on the host") && !used.contains("\n0 connections on the host"),
        "{used}"
    );
    let access = first.access();

    // It ends in the middle of everything, and its network goes to another.
    drop(guest);
    pool.give_back(first);
    pool.settled().await;
    // What was told of the first while it lived is of the first.
    while let Ok(notice) = told.try_recv() {
        assert_eq!(notice.tenancy, tenancy);
    }
    let second = take_again(&pool, slot).await;
    assert!(second.is_reused() && second.tenancy() != tenancy);
    assert_eq!(
        heard(&second.tap().unwrap().try_clone_to_owned().unwrap()),
        0,
        "of the first tenant's connections"
    );
    assert_same(&new, &described_at_rest(&world, slot).await);
    assert_eq!(second.counters().await.unwrap(), Counters::default());
    assert_eq!(pool.stats().not_reused, 0);

    // Whoever had a way to the rules has none to these.
    assert!(matches!(access.change(Policy::default()).await, Err(NetError::Released)));
    assert!(matches!(access.counters().await, Err(NetError::Released)));
    let open = [("9.9.9.9".parse().unwrap(), Duration::from_secs(60))];
    assert!(!access.inside().open(&access.policy(), &[0], &open).unwrap());

    // The second has what it is given, and no name of the first's is open to it.
    let guest = world.guest("second", &second);
    assert!(matches!(guest.reach("8.8.8.8", PORT), Reached::Yes(_)));
    assert!(matches!(guest.reach("2a00:9::9", PORT), Reached::Yes(_)));
    second.change(policy(&[("*.example.com", &["8080"])])).await.unwrap();
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    ask(&guest, "good.example.com.", RecordType::A).await;
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    let counted = second.counters().await.unwrap();
    assert!(counted.refused.packets > 0 && counted.spoofed.packets == 0, "{counted:?}");
    drop((stream, guest));

    // And again: also one that was used twice.
    pool.give_back(second);
    pool.settled().await;
    let third = take_again(&pool, slot).await;
    assert_same(&new, &described_at_rest(&world, slot).await);
    pool.give_back(third);
    pool.stop().await.unwrap();
    assert_eq!((world.host.used().unwrap(), links()), (vec![], vec![]));
}

#[test]
fn what_is_in_doubt_is_not_used_again() {
    in_namespaces("reuse::doubt");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn doubt() {
    let world = World::new().await;
    let (pool, _told) = pool(&world).await;
    let gone = |slot: Slot| !world.host.used().unwrap().contains(&slot);

    // A VM that lives on has its tap.
    let network = pool.take(Policy::default()).await.unwrap();
    let (slot, tap) = (network.slot(), network.tap().unwrap().try_clone_to_owned().unwrap());
    pool.give_back(network);
    pool.settled().await;
    assert!(gone(slot));
    assert_eq!(pool.stats().not_reused, 1);
    assert!(rustix::io::write(&tap, &[0; 60]).is_err(), "its tap leads nowhere");

    // Fragments: the kernel may keep some for the next one's.
    for (name, to) in [("four", "9.9.9.9:8080"), ("six", "[2a00:9::9]:8080")] {
        let network = pool.take(Policy::default()).await.unwrap();
        let guest = world.guest(name, &network);
        let to: std::net::SocketAddr = to.parse().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = guest.namespace.run(|| std::net::UdpSocket::bind(any)).unwrap();
        let sent = network.counters().await.unwrap().sent.packets;
        let begun = Instant::now();
        // The first ones may be lost while the guest's link comes up.
        while network.counters().await.unwrap().sent.packets == sent {
            let _ = socket.send_to(&[7; 4000], to);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", network.counters().await);
        }
        let (slot, before) = (network.slot(), pool.stats().not_reused);
        drop((guest, socket));
        pool.give_back(network);
        pool.settled().await;
        assert!(gone(slot), "{name}");
        assert_eq!(pool.stats().not_reused, before + 1, "{name}");
    }

    // Somebody has taken the link away.
    let network = pool.take(Policy::default()).await.unwrap();
    let slot = network.slot();
    assert!(Command::new("ip").args(["link", "delete", &slot.link()]).status().unwrap().success());
    pool.give_back(network);
    pool.settled().await;
    let PoolStats { not_reused, taken_reused, .. } = pool.stats();
    assert!(gone(slot));
    assert_eq!((not_reused, taken_reused), (4, 0));
    pool.stop().await.unwrap();
    assert_eq!((world.host.used().unwrap(), links()), (vec![], vec![]));
}

#[test]
fn a_daemon_that_is_killed_in_a_reset_leaves_nothing() {
    in_namespaces("reuse::killed");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn killed() {
    let world = World::new().await;
    let slot = Slot::try_from(7).unwrap();
    let lease = Lease::make(&world.host, slot, Policy::default()).await.unwrap();
    // The tap outlives its descriptors while nobody has one.
    tap::set_persistent(lease.tap().unwrap(), true).unwrap();
    drop(lease);
    let path = world.host.namespaces.path(&slot.namespace());
    assert!(run("ip link show guest", Some(&path)).contains("guest"));
    assert_eq!(world.host.sweep([].into()).await.unwrap(), [slot]);
    assert_eq!((world.host.used().unwrap(), links()), (vec![], vec![]));
    let again = Lease::make(&world.host, slot, Policy::default()).await.unwrap();
    again.release().await.unwrap();
}
