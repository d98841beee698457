//! Names: which are known, and what they open.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::in_namespaces;
use super::world::{Guest, OTHER_PORT, PORT, Reached, World};
use crate::plan::{GATEWAY4, Slot};
use crate::{Egress, EgressEntry, Exceptions, Lease, Notice, Policy, Reason, Upstream};

/// A resolver with a few names, at a port of the host's loopback.
pub(super) fn upstream() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = std::net::TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = known(&buffer[..length]);
            let bytes = answer.to_vec().unwrap();
            let bytes = if bytes.len() > 1232 { answer.truncate().to_vec().unwrap() } else { bytes };
            socket.send_to(&bytes, from).unwrap();
        }
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut asked = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(&framed(&known(&asked).to_vec().unwrap())).unwrap();
        }
    });
    address
}

pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn known(asked: &[u8]) -> Message {
    let asked = Message::from_vec(asked).unwrap();
    let query = asked.queries[0].clone();
    let name = query.name().to_ascii().to_lowercase();
    let mut answer = Message::response(asked.metadata.id, OpCode::Query);
    answer.queries = vec![query.clone()];
    let mut say = |data| answer.answers.push(Record::from_rdata(query.name().clone(), 60, data));
    match (name.as_str(), query.query_type()) {
        ("good.example.com." | "other.org.", RecordType::A) => say(RData::A(A([9, 9, 9, 9].into()))),
        ("good.example.com.", RecordType::AAAA) => say(RData::AAAA(AAAA("2a00:9::9".parse().unwrap()))),
        ("trick.example.com.", RecordType::A) => {
            for address in [[169, 254, 169, 254], [10, 1, 2, 3], [8, 8, 8, 8]] {
                say(RData::A(A(address.into())));
            }
        }
        ("large.example.com.", RecordType::TXT) => {
            (0..20).for_each(|_| say(RData::TXT(TXT::new(vec!["x".repeat(200)]))));
        }
        _ => answer.metadata.response_code = ResponseCode::NXDomain,
    }
    answer
}

pub(super) fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(77, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.queries = vec![Query::query(Name::from_ascii(name).unwrap(), kind)];
    message.to_vec().unwrap()
}

/// Asks as a guest does, without blocking what answers.
pub(super) async fn ask(guest: &Guest, name: &str, kind: RecordType) -> Message {
    let socket = guest.namespace.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let asked = question(name, kind);
    let answer = tokio::task::spawn_blocking(move || {
        socket.send_to(&asked, (GATEWAY4, 53)).unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).expect("the resolver answers");
        Message::from_vec(&buffer[..length]).unwrap()
    });
    let answer = answer.await.unwrap();
    assert_eq!((answer.metadata.id, answer.metadata.message_type), (77, MessageType::Response));
    answer
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    let address = |record: &Record| match &record.data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    };
    message.answers.iter().filter_map(address).collect()
}

pub(super) fn policy(entries: &[(&str, &[&str])]) -> Policy {
    let entry = |(to, ports): &(&str, &[&str])| EgressEntry {
        to: to.parse().unwrap(),
        ports: ports.iter().map(|ports| ports.parse().unwrap()).collect(),
    };
    Policy { egress: Egress::List(entries.iter().map(entry).collect()), bandwidth: None }
}

#[test]
fn names_open_their_addresses() {
    in_namespaces("names::resolving");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in namespaces of its own, by the test above"]
async fn resolving() {
    let world = World::new().await;
    let listed = policy(&[("*.example.com", &["8080"])]);
    let lease = Lease::make(&world.host, Slot::try_from(1).unwrap(), listed.clone()).await.unwrap();
    let guest = world.guest("guest", &lease);
    let (notices, mut told) = tokio::sync::mpsc::channel(16);
    let resolver = lease.resolver(Upstream::Servers(vec![upstream()]), Some(notices)).await.unwrap();

    // Before anybody asks, nothing is open.
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    // A name that is not on the list does not exist, though it has the address of one that is.
    let other = ask(&guest, "other.org.", RecordType::A).await;
    assert_eq!((other.metadata.response_code, other.answers.len()), (ResponseCode::NXDomain, 0));
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    // Both are told, the packet when the kernel has gathered some.
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let notice = tokio::time::timeout(Duration::from_secs(5), told.recv()).await;
        let Notice { slot, tenancy, dropped } = notice.expect("in time").unwrap();
        assert_eq!((slot, tenancy, dropped.reason), (lease.slot(), lease.tenancy(), Reason::Refused));
        seen.push((dropped.name, dropped.destination, dropped.port, dropped.protocol));
    }
    let packet = (None, "9.9.9.9".parse().ok(), Some(PORT), Some(6));
    assert!(seen.contains(&packet), "{seen:?}");
    assert!(seen.contains(&(Some("other.org".into()), None, None, None)), "{seen:?}");
    // An allowed one opens exactly its addresses, at its ports.
    let good = ask(&guest, "GOOD.example.com.", RecordType::A).await;
    assert_eq!(addresses(&good), ["9.9.9.9".parse::<IpAddr>().unwrap()]);
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    assert_eq!(guest.reach("9.9.9.9", OTHER_PORT), Reached::Forbidden);
    assert_eq!(guest.reach("8.8.8.8", PORT), Reached::Forbidden);
    assert_eq!(guest.reach("2a00:9::9", PORT), Reached::Forbidden);
    ask(&guest, "good.example.com.", RecordType::AAAA).await;
    assert!(matches!(guest.reach("2a00:9::9", PORT), Reached::Yes(_)));
    // A name that leads into the LAN does not open it.
    let trick = ask(&guest, "trick.example.com.", RecordType::A).await;
    assert_eq!(addresses(&trick), ["8.8.8.8".parse::<IpAddr>().unwrap()]);
    assert!(matches!(guest.reach("8.8.8.8", PORT), Reached::Yes(_)));
    assert_eq!(guest.reach("169.254.169.254", PORT), Reached::Forbidden);
    assert_eq!(guest.reach("10.1.2.3", PORT), Reached::Forbidden);
    // Names that upstream does not know.
    let none = ask(&guest, "none.example.com.", RecordType::A).await;
    assert_eq!(none.metadata.response_code, ResponseCode::NXDomain);

    // An answer too large for a datagram comes over TCP.
    assert!(ask(&guest, "large.example.com.", RecordType::TXT).await.metadata.truncation);
    let mut stream = guest.connect((GATEWAY4, 53).into()).unwrap();
    let large = tokio::task::spawn_blocking(move || {
        stream.write_all(&framed(&question("large.example.com.", RecordType::TXT))).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut bytes).unwrap();
        Message::from_vec(&bytes).unwrap()
    });
    assert_eq!(large.await.unwrap().answers.len(), 20);

    // Addresses close by themselves, and with the policy that opened them.
    let short = [("9.9.9.9".parse().unwrap(), Duration::from_secs(1))];
    lease.change(policy(&[("*.example.com", &[]), ("other.org", &[])])).await.unwrap();
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    assert!(!lease.inside.open(&listed, &[0], &short).unwrap(), "of a policy that is no more");
    assert!(lease.inside.open(&lease.policy(), &[1], &short).unwrap());
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    let other = ask(&guest, "other.org.", RecordType::A).await;
    assert_eq!(addresses(&other).len(), 1);
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));

    lease.change(Policy { bandwidth: Some(1 << 30), ..lease.policy() }).await.unwrap();
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)), "another bandwidth closes nothing");

    // A name that is allowed wins over networks that are denied. Other names are answered, and open nothing.
    let except = Exceptions {
        deny: vec!["9.9.9.0/24".parse().unwrap(), "2a00:9::/32".parse().unwrap()],
        allow: vec!["*.example.com:8080".parse().unwrap()],
    };
    lease.change(Policy { egress: Egress::Except(except), bandwidth: None }).await.unwrap();
    assert_eq!(addresses(&ask(&guest, "other.org.", RecordType::A).await).len(), 1);
    assert_eq!(guest.reach("9.9.9.9", PORT), Reached::Forbidden);
    assert!(matches!(guest.reach("8.8.8.8", OTHER_PORT), Reached::Yes(_)));
    ask(&guest, "good.example.com.", RecordType::A).await;
    assert!(matches!(guest.reach("9.9.9.9", PORT), Reached::Yes(_)));
    assert_eq!(guest.reach("9.9.9.9", OTHER_PORT), Reached::Forbidden);
    assert_eq!(guest.reach("2a00:9::9", PORT), Reached::Forbidden);

    lease.change(Policy { egress: Egress::Deny, bandwidth: None }).await.unwrap();
    let denied = ask(&guest, "good.example.com.", RecordType::A).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    lease.change(Policy::default()).await.unwrap();
    assert_eq!(addresses(&ask(&guest, "other.org.", RecordType::A).await).len(), 1);
    drop(resolver);
    lease.release().await.unwrap();
    assert_eq!(world.host.used().unwrap(), []);
}
