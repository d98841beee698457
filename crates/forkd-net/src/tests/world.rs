//! A host with an internet around it, and guests.
//!
//! ```text
//!   guest ── tap ══ cable ══ tap ── lease ── this process's namespace ("host") ── veth ── "internet"
//!                (a thread)                    5.5.5.1                                  5.5.5.2 and all other addresses
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::namespace::{Namespace, Namespaces};
use crate::netlink::route::{End, Links};
use crate::plan::{GATEWAY4, GATEWAY6, GUEST_MAC, GUEST4, GUEST6, PREFIX4, PREFIX6};
use crate::{Host, Lease, Prepared, Settings, tap};

pub const PORT: u16 = 8080;
/// A second one, for policies with ports.
pub const OTHER_PORT: u16 = 9090;
pub const HOST4: Ipv4Addr = Ipv4Addr::new(5, 5, 5, 1);
pub const HOST6: Ipv6Addr = Ipv6Addr::new(0x2a00, 5, 0, 0, 0, 0, 0, 1);
const WAN4: Ipv4Addr = Ipv4Addr::new(5, 5, 5, 2);
const WAN6: Ipv6Addr = Ipv6Addr::new(0x2a00, 5, 0, 0, 0, 0, 0, 2);

/// Where targets are that should be reached by nobody or somebody: all in the "internet".
pub const ELSEWHERE: [&str; 12] = [
    "9.9.9.9",
    "8.8.8.8",
    "10.1.2.3",
    "172.16.9.9",
    "192.168.7.7",
    "169.254.169.254",
    "100.64.0.9",
    "2a00:9::9",
    "2a00:8::8",
    "fd00:1::9",
    "64:ff9b::909:909",
    "fec0::9",
];

#[derive(Debug)]
pub struct World {
    pub host: Arc<Host>,
    pub prepared: Prepared,
    _internet: Namespace,
    namespaces: Namespaces,
    directory: tempfile::TempDir,
}

impl World {
    pub async fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let namespaces = Namespaces::new(&directory.path().join("stand-ins")).unwrap();
        let (internet, ()) = namespaces.create("internet", |_| Ok(())).unwrap();
        connect_to(&internet);
        serve(&internet);
        let (host, prepared) = Host::prepare(settings(&directory)).await.unwrap();
        World { host, prepared, _internet: internet, namespaces, directory }
    }

    /// The same host, as another process would find it.
    pub async fn again(&self) -> (Arc<Host>, Prepared) {
        Host::prepare(settings(&self.directory)).await.unwrap()
    }

    /// An empty namespace, and its links.
    pub fn stand_in(&self, name: &str) -> (Namespace, Links) {
        self.namespaces.create(name, |_| Links::open()).unwrap()
    }

    /// A guest at a lease's tap.
    pub fn guest(&self, name: &str, lease: &Lease) -> Guest {
        let (namespace, (tap, links)) =
            self.namespaces.create(name, |_| Ok((tap::open("eth0")?, Links::open()?))).unwrap();
        let index = links.expect("eth0").unwrap();
        links.set_up(index, Some(GUEST_MAC)).unwrap();
        for (address, prefix, gateway) in [
            (IpAddr::from(GUEST4), PREFIX4, IpAddr::from(GATEWAY4)),
            (GUEST6.into(), PREFIX6, GATEWAY6.into()),
        ] {
            links.add_address(index, address, prefix).unwrap();
            links.add_default_route(index, gateway).unwrap();
        }
        let other = lease.tap().unwrap().try_clone_to_owned().unwrap();
        Guest { namespace, links, _cable: Cable::between(tap, other) }
    }
}

fn settings(directory: &tempfile::TempDir) -> Settings {
    Settings {
        namespaces: directory.path().join("netns"),
        locks: directory.path().join("locks"),
        may_turn_on_forwarding: true,
    }
}

fn connect_to(internet: &Namespace) {
    let end = |name: &str, last| End { name: name.into(), mac: [2, 0, 0, 0, 0, last] };
    let here = Links::open().unwrap();
    here.set_up(here.expect("lo").unwrap(), None).unwrap();
    let there = internet.run(Links::open).unwrap();
    here.add_veth(&end("wan0", 1), &end("wan0", 2), std::os::fd::AsFd::as_fd(internet)).unwrap();
    let (near, far) = (here.expect("wan0").unwrap(), there.expect("wan0").unwrap());
    here.set_up(near, None).unwrap();
    there.set_up(far, None).unwrap();
    there.set_up(there.expect("lo").unwrap(), None).unwrap();
    let ends = [(IpAddr::from(HOST4), IpAddr::from(WAN4), 24), (HOST6.into(), WAN6.into(), 64)];
    for (host, wan, prefix) in ends {
        here.add_address(near, host, prefix).unwrap();
        there.add_address(far, wan, prefix).unwrap();
        here.add_default_route(near, wan).unwrap();
        there.add_default_route(far, host).unwrap();
    }
    for address in ELSEWHERE {
        let address: IpAddr = address.parse().unwrap();
        there.add_address(far, address, if address.is_ipv4() { 32 } else { 128 }).unwrap();
    }
}

/// Greets whoever connects, on all addresses.
pub fn serve(namespace: &Namespace) {
    for port in [PORT, OTHER_PORT, 53, 853] {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = namespace.run(|| TcpListener::bind(any)).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(keep_talking));
    }
}

/// Says where the connection comes from, then repeats what it hears.
fn keep_talking(mut stream: TcpStream) {
    thread::spawn(move || {
        let peer = stream.peer_addr()?;
        writeln!(stream, "{}", peer.ip().to_canonical())?;
        let mut reader = stream.try_clone()?;
        io::copy(&mut reader, &mut stream)
    });
}

/// A machine at the other end of a tap.
#[derive(Debug)]
pub struct Guest {
    pub namespace: Namespace,
    pub links: Links,
    _cable: Cable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// The other side sees this address.
    Yes(String),
    /// Refused at once.
    Forbidden,
    /// Nothing came back.
    Silence,
}

impl Guest {
    /// Tries to connect, for so long that a packet that is lost is sent again.
    pub fn reach(&self, to: &str, port: u16) -> Reached {
        self.reach_within(to, port, Duration::from_secs(4))
    }

    pub fn reach_within(&self, to: &str, port: u16, limit: Duration) -> Reached {
        let to = SocketAddr::from((to.parse::<IpAddr>().unwrap(), port));
        match self.connect_within(to, limit) {
            Ok(mut stream) => Reached::Yes(line(&mut stream).unwrap()),
            Err(error) if error.kind() == ErrorKind::TimedOut => Reached::Silence,
            Err(_) => Reached::Forbidden,
        }
    }

    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.connect_within(to, Duration::from_secs(4))
    }

    fn connect_within(&self, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        let stream = self.namespace.run(|| TcpStream::connect_timeout(&to, limit))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(stream)
    }
}

/// One line of what the other side says.
pub fn line(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = String::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        match byte[0] {
            b'\n' => return Ok(text),
            byte => text.push(char::from(byte)),
        }
    }
}

/// Carries frames between two taps, until it is dropped.
#[derive(Debug)]
struct Cable {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cable {
    fn between(one: OwnedFd, other: OwnedFd) -> Cable {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut frame = vec![0; 70_000];
            while !stopped.load(Ordering::Relaxed) {
                let mut ready = [PollFd::new(&one, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
                let patience = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _ = poll(&mut ready, Some(&patience));
                for (from, to) in [(&one, &other), (&other, &one)] {
                    while let Ok(length) = rustix::io::read(from, &mut frame[..]) {
                        // A tap that is gone takes nothing.
                        let _ = rustix::io::write(to, &frame[..length]);
                    }
                }
            }
        });
        Cable { stop, thread: Some(thread) }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
