//! Who reaches what, in which mode.

use std::fs;
use std::io::{Read, Write};

use rustix::fd::AsFd;

use super::in_namespaces;
use super::world::{ELSEWHERE, Guest, HOST4, HOST6, OTHER_PORT, PORT, Reached, World, line};
use crate::plan::{GATEWAY4, GATEWAY6, Slot};
use crate::rules::ranges::is_internet;
use crate::{Egress, EgressEntry, Exceptions, Lease, Policy};

fn slot(number: u16) -> Slot {
    Slot::try_from(number).unwrap()
}

fn policy(egress: Egress) -> Policy {
    Policy { egress, bandwidth: None }
}

fn list(entries: &[(&str, &[&str])]) -> Policy {
    let entries = entries.iter().map(|(to, ports)| EgressEntry {
        to: to.parse().unwrap(),
        ports: ports.iter().map(|ports| ports.parse().unwrap()).collect(),
    });
    policy(Egress::List(entries.collect()))
}

/// What is never reached: the host by all its addresses, the namespace, other sandboxes.
fn nothing_near(guest: &Guest, other: &Lease) {
    let near = [
        HOST4.to_string(),
        HOST6.to_string(),
        GATEWAY4.to_string(),
        GATEWAY6.to_string(),
        slot(1).host4().to_string(),
        slot(1).host6().to_string(),
        slot(1).uplink4().to_string(),
        other.slot().host4().to_string(),
        other.slot().uplink4().to_string(),
        other.slot().uplink6().to_string(),
        "127.0.0.2".into(),
    ];
    for address in near {
        let reached = guest.reach_within(&address, PORT, std::time::Duration::from_millis(600));
        assert!(!matches!(reached, Reached::Yes(_)), "{address}: {reached:?}");
    }
}

#[test]
fn every_mode_is_as_specified() {
    in_namespaces("matrix::modes");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn modes() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(1), Policy::default()).await.unwrap();
    let other = Lease::make(&world.host, slot(2), Policy::default()).await.unwrap();
    let guest = world.guest("guest", &lease);
    let neighbour = world.guest("neighbour", &other);
    super::world::serve(&neighbour.namespace);
    // The host listens on all its addresses too.
    let host = std::net::TcpListener::bind(("::", PORT)).unwrap();

    // Allow: the internet, and nothing else of it; translated to the host's address.
    for address in ELSEWHERE {
        let reached = guest.reach(address, PORT);
        let from = if address.contains(':') { HOST6.to_string() } else { HOST4.to_string() };
        let expected =
            if is_internet(address.parse().unwrap()) { Reached::Yes(from) } else { Reached::Forbidden };
        assert_eq!(reached, expected, "{address}");
    }
    for port in [53, 853] {
        assert_eq!(guest.reach("9.9.9.9", port), Reached::Forbidden, "DNS elsewhere, port {port}");
        assert_eq!(guest.reach("2a00:9::9", port), Reached::Forbidden, "DNS elsewhere, port {port}");
    }
    nothing_near(&guest, &other);

    // Deny: nothing.
    lease.change(policy(Egress::Deny)).await.unwrap();
    for address in ELSEWHERE {
        assert_eq!(guest.reach(address, PORT), Reached::Forbidden, "{address}");
    }
    nothing_near(&guest, &other);

    // A list: what is on it, private or not, at its ports; still neither host nor neighbours.
    let listed = list(&[
        ("9.9.9.9", &["8080"]),
        ("10.1.0.0/16", &[]),
        ("2a00:9::/32", &["9000-9100"]),
        ("0.0.0.0/1", &["5"]),
        ("198.19.0.0/16", &[]),
        ("5.5.5.1", &[]),
    ]);
    lease.change(listed).await.unwrap();
    let yes = |address: &dyn ToString| Reached::Yes(address.to_string());
    assert_eq!(guest.reach("9.9.9.9", PORT), yes(&HOST4));
    assert_eq!(guest.reach("9.9.9.9", OTHER_PORT), Reached::Forbidden);
    assert_eq!(guest.reach("8.8.8.8", PORT), Reached::Forbidden);
    assert_eq!(guest.reach("10.1.2.3", OTHER_PORT), yes(&HOST4));
    assert_eq!(guest.reach("10.1.2.3", 53), Reached::Forbidden);
    assert_eq!(guest.reach("172.16.9.9", PORT), Reached::Forbidden);
    assert_eq!(guest.reach("2a00:9::9", OTHER_PORT), yes(&HOST6));
    assert_eq!(guest.reach("2a00:9::9", PORT), Reached::Forbidden);
    nothing_near(&guest, &other);

    // Exceptions: the internet without what is denied, but with what is allowed of that; nothing private, listed or not.
    let except = Exceptions {
        deny: ["8.0.0.0/8", "9.9.9.9", "2a00:9::/32"].map(|network| network.parse().unwrap()).into(),
        allow: ["8.8.8.8:8080", "10.1.0.0/16"].map(|entry| entry.parse().unwrap()).into(),
    };
    lease.change(policy(Egress::Except(except))).await.unwrap();
    for address in ELSEWHERE {
        let expected = match is_internet(address.parse().unwrap()) {
            true if address == "8.8.8.8" => yes(&HOST4),
            true if address.starts_with('8') || address == "9.9.9.9" => Reached::Forbidden,
            true if address.starts_with("2a00:9:") => Reached::Forbidden,
            true if address.contains(':') => yes(&HOST6),
            true => yes(&HOST4),
            false => Reached::Forbidden,
        };
        assert_eq!(guest.reach(address, PORT), expected, "{address}");
    }
    assert_eq!(guest.reach("8.8.8.8", OTHER_PORT), Reached::Forbidden);
    assert_eq!(guest.reach("8.8.8.8", 53), Reached::Forbidden);
    nothing_near(&guest, &other);

    // The other sandbox was never touched by any of this.
    assert_eq!(neighbour.reach("8.8.8.8", PORT), yes(&HOST4));
    drop(host);
}

#[test]
fn a_change_reaches_what_is_connected() {
    in_namespaces("matrix::changes");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn changes() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(7), Policy::default()).await.unwrap();
    let guest = world.guest("guest", &lease);
    let mut good = guest.connect(([9, 9, 9, 9], PORT).into()).unwrap();
    let mut bad = guest.connect(([8, 8, 8, 8], PORT).into()).unwrap();
    for stream in [&mut good, &mut bad] {
        line(stream).unwrap();
        writeln!(stream, "one").unwrap();
        assert_eq!(line(stream).unwrap(), "one");
    }
    lease.change(list(&[("9.9.9.9", &[])])).await.unwrap();
    writeln!(good, "two").unwrap();
    assert_eq!(line(&mut good).unwrap(), "two");
    writeln!(bad, "two").unwrap();
    assert!(line(&mut bad).is_err(), "a connection that is forbidden now goes on");
    // And back: it was only refused, not broken.
    lease.change(Policy::default()).await.unwrap();
    bad.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    assert_eq!(line(&mut bad).unwrap(), "two");

    // The same where networks are denied one by one.
    let mut bad = guest.connect(([8, 8, 8, 8], PORT).into()).unwrap();
    line(&mut bad).unwrap();
    let deny = vec!["8.8.8.0/24".parse().unwrap()];
    lease.change(policy(Egress::Except(Exceptions { deny, allow: Vec::new() }))).await.unwrap();
    writeln!(good, "three").unwrap();
    assert_eq!(line(&mut good).unwrap(), "three");
    writeln!(bad, "three").unwrap();
    assert!(line(&mut bad).is_err(), "a connection that is denied now goes on");
}

#[test]
fn spoofers_are_not_heard() {
    in_namespaces("matrix::spoofing");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn spoofing() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(3), Policy::default()).await.unwrap();
    let guest = world.guest("guest", &lease);
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    let before = lease.counters().await.unwrap();
    assert_eq!(before.spoofed.packets, 0, "{before:?}");
    assert!(before.sent.packets > 0 && before.received.bytes > 0, "{before:?}");
    // Another address like its own, of another network, of the other family, and another MAC.
    let index = guest.links.expect("eth0").unwrap();
    let mut heard = before.spoofed.packets;
    for address in ["198.19.255.6", "192.168.1.5", "9.9.9.9"] {
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        guest.links.add_address(index, address.into(), 32).unwrap();
        let socket = guest.namespace.run(|| std::net::UdpSocket::bind((address, 0))).unwrap();
        socket.send_to(b"hello", ("8.8.8.8", PORT)).unwrap();
        heard = more(&lease, heard).await;
    }
    let address: std::net::Ipv6Addr = "2a00:9::7".parse().unwrap();
    guest.links.add_address(index, address.into(), 128).unwrap();
    let socket = guest.namespace.run(|| std::net::UdpSocket::bind((address, 0))).unwrap();
    socket.send_to(b"hello", ("2a00:8::8", PORT)).unwrap();
    heard = more(&lease, heard).await;
    guest.links.set_up(index, Some([2, 1, 2, 3, 4, 5])).unwrap();
    assert!(!matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    more(&lease, heard).await;
}

/// Waits until more spoofed packets were counted.
async fn more(lease: &Lease, than: u64) -> u64 {
    for _ in 0..100 {
        let now = lease.counters().await.unwrap().spoofed.packets;
        if now > than {
            return now;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("a spoofed packet was not dropped: {:?}", lease.counters().await);
}

#[test]
fn bandwidth_has_a_limit() {
    in_namespaces("matrix::bandwidth");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn bandwidth() {
    const LIMIT: u64 = 1_000_000;
    let world = World::new().await;
    let made = std::time::Instant::now();
    let limited = Policy { egress: Egress::Allow, bandwidth: Some(LIMIT) };
    let lease = Lease::make(&world.host, slot(3), limited).await.unwrap();
    let guest = world.guest("guest", &lease);
    let mut stream = guest.connect(([9, 9, 9, 9], PORT).into()).unwrap();
    line(&mut stream).unwrap();
    let mut writer = stream.try_clone().unwrap();
    std::thread::spawn(move || while writer.write_all(&[7; 65536]).is_ok() {});
    let start = std::time::Instant::now();
    let mut buffer = [0; 65536];
    while start.elapsed().as_secs() < 3 {
        // Packets that were dropped come again a little later.
        let _ = stream.read(&mut buffer);
    }
    let counters = lease.counters().await.unwrap();
    // The bucket was full, which is a second's worth, and the last packet may have been a large one.
    let milliseconds = u64::try_from(made.elapsed().as_millis()).unwrap();
    let most = LIMIT * milliseconds / 1000 + LIMIT + (64 << 10);
    for direction in [counters.sent, counters.received] {
        assert!(direction.bytes <= most, "in {milliseconds} ms: {counters:?}");
    }
    assert!(counters.sent.bytes > LIMIT / 4, "{counters:?}");
    assert!(counters.over_limit.packets > 0, "{counters:?}");

    // The same connection goes on without a limit, and with another one.
    let mut read_for = |seconds: u64| {
        let start = std::time::Instant::now();
        while start.elapsed().as_secs() < seconds {
            let _ = stream.read(&mut buffer);
        }
    };
    lease.change(Policy { egress: Egress::Allow, bandwidth: None }).await.unwrap();
    let before = lease.counters().await.unwrap();
    read_for(2);
    let after = lease.counters().await.unwrap();
    assert_eq!(after.over_limit, before.over_limit);
    assert!(after.sent.bytes > before.sent.bytes, "{before:?}, then {after:?}");
    lease.change(Policy { egress: Egress::Allow, bandwidth: Some(LIMIT / 10) }).await.unwrap();
    read_for(3);
    let limited = lease.counters().await.unwrap();
    assert!(limited.over_limit.packets > after.over_limit.packets, "{after:?}, then {limited:?}");
}

#[test]
fn nobody_has_all_connections() {
    in_namespaces("matrix::connections");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn connections() {
    let world = World::new().await;
    let lease = Lease::make(&world.host, slot(3), Policy::default()).await.unwrap();
    let other = Lease::make(&world.host, slot(4), Policy::default()).await.unwrap();
    let (guest, neighbour) = (world.guest("guest", &lease), world.guest("neighbour", &other));
    let mut stream = guest.connect(([9, 9, 9, 9], PORT).into()).unwrap();
    line(&mut stream).unwrap();
    let socket = guest.namespace.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
    // Some are lost on the way, so it takes a few more than there may be.
    for port in 10_000..60_000u16 {
        // The other side says that nobody listens, and that is heard here.
        let _ = socket.send_to(b"x", ("9.9.9.9", port));
        if port % 100 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        if port % 1000 == 0 && lease.counters().await.unwrap().over_limit.packets > 0 {
            break;
        }
    }
    let counters = lease.counters().await.unwrap();
    assert!(counters.over_limit.packets > 0, "{counters:?}");
    // What is connected stays so, and others do not notice.
    writeln!(stream, "still there").unwrap();
    assert_eq!(line(&mut stream).unwrap(), "still there");
    assert!(matches!(neighbour.reach("9.9.9.9", PORT), Reached::Yes(_)));
}

#[test]
fn the_host_is_a_router_for_sandboxes_only() {
    in_namespaces("matrix::forwarding");
}

#[tokio::test]
#[ignore = "in namespaces of its own, by the test above"]
async fn forwarding() {
    // A new namespace has what the host has.
    fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    let world = World::new().await;
    assert_eq!(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
    assert!(world.prepared.changes.iter().any(|change| change.contains("ipv4/ip_forward is 1 now")));
    // Another process changes nothing, and the host's other links stay apart.
    let (_, prepared) = world.again().await;
    assert_eq!(prepared.changes, Vec::<String>::new());
    let lan = lan(&world);
    assert_ne!(reach_from(&lan), Some(true), "the host forwards for others");
    let lease = Lease::make(&world.host, slot(0), Policy::default()).await.unwrap();
    let guest = world.guest("guest", &lease);
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
}

/// A machine on a second network of the host.
fn lan(world: &World) -> crate::namespace::Namespace {
    use crate::netlink::route::{End, Links};
    let (lan, links) = world.stand_in("lan");
    let end = |name: &str, last| End { name: name.into(), mac: [2, 0, 0, 0, 1, last] };
    let here = Links::open().unwrap();
    here.add_veth(&end("lan0", 1), &end("eth0", 2), lan.as_fd()).unwrap();
    let (near, far) = (here.expect("lan0").unwrap(), links.expect("eth0").unwrap());
    here.set_up(near, None).unwrap();
    links.set_up(far, None).unwrap();
    here.add_address(near, "5.5.6.1".parse().unwrap(), 24).unwrap();
    links.add_address(far, "5.5.6.2".parse().unwrap(), 24).unwrap();
    links.add_default_route(far, "5.5.6.1".parse().unwrap()).unwrap();
    lan
}

fn reach_from(lan: &crate::namespace::Namespace) -> Option<bool> {
    let to = std::net::SocketAddr::from(([9, 9, 9, 9], PORT));
    let timeout = std::time::Duration::from_millis(800);
    Some(lan.run(|| std::net::TcpStream::connect_timeout(&to, timeout)).is_ok())
}
