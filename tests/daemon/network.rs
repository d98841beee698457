//! Every sandbox has a network of its own, until it ends, whatever becomes of the daemon.
//!
//! The guest has no driver for its network device. The test puts frames into the tap that the VM process has, as the device
//! would, and sees what becomes of them. Each test runs again in a process with namespaces of its own, where it is alone.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::{EgressMode, NetworkStats, Sandbox, SandboxStats};
use forkd_net::plan::{GATEWAY_MAC, GATEWAY4, GUEST_MAC, GUEST4};
use forkd_proto::control::Net;
pub use forkd_tests::alone::networks;
use forkd_tests::alone::{self, is_possible, make_uplink};
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};

use crate::world::World;

/// Runs an ignored test where it is root of its own network. Without the right to make namespaces there is nothing to test.
pub fn alone(test: &str) -> Result<(), Failure> {
    if !is_possible() {
        return Ok(());
    }
    let mut command = alone::command(std::env::current_exe()?);
    let output = command.args(["--ignored", "--exact", "--nocapture", test]).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

pub const OPTIONS: [&str; 6] = ["--network", "required", "--networks-ready", "2", "--dns", "192.0.2.1"];

fn world() -> Result<World, Failure> {
    world_of(&guest::elf(100))
}

/// A daemon with networks, and a snapshot of this guest that has one.
pub fn world_of(elf: &[u8]) -> Result<World, Failure> {
    make_uplink()?;
    World::made(elf, &OPTIONS, |_, base| {
        base.shape.devices.net = Some(Net { mac: GUEST_MAC, mtu: None });
        Ok(())
    })
}

/// Waits until there are this many, all of them whole: a namespace is there before its link.
pub fn until_whole(world: &World, what: &str, count: usize) -> Result<(), Failure> {
    world.until(what, |_| {
        let (namespaces, links) = networks();
        Ok((namespaces.len(), links.len()) == (count, count))
    })
}

/// Waits until there are no networks but those that the daemon keeps ready.
pub fn until_only_ready_ones(world: &World) -> Result<(), Failure> {
    until_ready_beside(world, 0).map(drop)
}

/// The same beside those of so many sandboxes. Returns how many are ready.
fn until_ready_beside(world: &World, sandboxes: usize) -> Result<usize, Failure> {
    let ready = || Ok::<usize, Failure>(metric(world, "forkd_networks_ready")?.try_into()?);
    world.until("all other networks wait", |_| {
        let (namespaces, links) = networks();
        let (ready, count) = (ready()?, namespaces.len());
        // Two wait in any case.
        Ok(ready >= 2 && (count, links.len()) == (ready + sandboxes, count))
    })?;
    ready()
}

/// The number that the daemon says of this.
fn metric(world: &World, name: &str) -> Result<u64, Failure> {
    let text = world.ask("GET /metrics")?.body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.ok_or_else(|| format!("{name} is not in\n{text}"))?.parse()?)
}

/// The slot of a sandbox's network, as it is written down.
fn slot(world: &World, sandbox: &Sandbox) -> Result<u64, Failure> {
    let record = tiny::run_directory(&world.root()).join("sandboxes").join(&sandbox.id).join("record.json");
    let record: Value = serde_json::from_str(&fs::read_to_string(record)?)?;
    Ok(record["network"]["slot"].as_u64().ok_or("no slot")?)
}

/// The tap of a sandbox, from its VM process.
fn tap(sandbox: &Sandbox) -> Result<File, Failure> {
    let pid = sandbox.pid.ok_or("it has ended")?;
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let is_tap = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|path| path.as_os_str() == "/dev/net/tun")
    };
    let taps: Vec<_> = descriptors.filter(is_tap).collect();
    assert_eq!(taps.len(), 1, "a VM has its own tap and no other");
    let number = taps[0].file_name().to_str().ok_or("no number")?.parse()?;
    let pidfd = pidfd_open(Pid::from_raw(pid).ok_or("no pid")?, PidfdFlags::empty())?;
    Ok(File::from(pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())?))
}

/// A datagram in a frame, as the guest's driver would write it.
fn frame(sender: [u8; 6], from: Ipv4Addr, to: Ipv4Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let length = |of: usize| u16::try_from(of + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut ip =
        [&[0x45, 0], &length(28)[..], &[0, 1, 0, 0, 64, 17, 0, 0], &from.octets(), &to.octets()].concat();
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [&4000u16.to_be_bytes()[..], &port.to_be_bytes(), &length(8), &[0, 0], payload].concat();
    let ethernet = [&GATEWAY_MAC[..], &sender, &[8, 0]].concat();
    [&[0; 12][..], &ethernet, &ip, &udp].concat()
}

fn send(sandbox: &Sandbox, to: Ipv4Addr, port: u16) -> Result<(), Failure> {
    Ok(tap(sandbox)?.write_all(&frame(GUEST_MAC, GUEST4, to, port, b"hello"))?)
}

fn stats(world: &World, sandbox: &Sandbox) -> Result<NetworkStats, Failure> {
    let stats: SandboxStats = world.ask(&format!("GET /v1/sandboxes/{}/stats", sandbox.id))?.parsed(200)?;
    stats.network.ok_or_else(|| "no network".into())
}

/// Asks the sandbox's resolver for a name. The code of the answer, if there is any.
fn ask(sandbox: &Sandbox, name: &str) -> Result<Option<u8>, Failure> {
    let mut question = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0].to_vec();
    for label in name.split('.') {
        question.push(u8::try_from(label.len())?);
        question.extend(label.bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    let mut tap = tap(sandbox)?;
    tap.write_all(&frame(GUEST_MAC, GUEST4, GATEWAY4, 53, &question))?;
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    while begun.elapsed() < Duration::from_secs(5) {
        match tap.read(&mut buffer) {
            // Behind the headers of virtio, Ethernet, IP and UDP.
            Ok(length) if length > 58 && buffer[54..56] == [0x12, 0x34] => return Ok(Some(buffer[57] & 15)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

const NXDOMAIN: u8 = 3;
const INTERNET: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);

#[test]
fn a_sandbox_has_a_network_until_it_ends() -> Result<(), Failure> {
    alone("network::a_life")
}

#[test]
#[ignore = "alone, by the test above"]
fn a_life() -> Result<(), Failure> {
    let mut world = world()?;
    let mut lines = world.lines("GET /v1/events")?;
    assert!(world.snapshot("base")?.network);
    let sandboxes = world.fork("base", 3)?;
    until_whole(&world, "as many wait as were taken", 6)?;
    let [one, two, three] = &sandboxes[..] else { return Err("not three".into()) };
    assert_eq!(one.egress.as_ref().map(|egress| egress.mode), Some(EgressMode::Allow));

    // Each has its own, and what it may reach is what the policy says.
    send(one, INTERNET, 4321)?;
    send(one, PRIVATE, 4321)?;
    world.until("both were seen", |world| {
        let seen = stats(world, one)?;
        Ok((seen.sent_packets, seen.refused_packets) == (1, 1))
    })?;
    assert_eq!(stats(&world, two)?, NetworkStats::default());
    tap(one)?.write_all(&frame([2, 0, 0, 0, 0, 9], GUEST4, INTERNET, 4321, b""))?;
    tap(one)?.write_all(&frame(GUEST_MAC, Ipv4Addr::new(198, 19, 255, 9), INTERNET, 4321, b""))?;
    world.until("nobody spoofs", |world| Ok(stats(world, one)?.spoofed_packets == 2))?;
    let changed = json!({ "mode": "list", "allow": ["10.1.0.0/16:4321"] });
    let changed: Sandbox =
        world.tell(&format!("PUT /v1/sandboxes/{}/egress", one.id), changed)?.parsed(200)?;
    let allowed = changed.egress.ok_or("no egress")?.allow;
    assert_eq!(allowed, ["10.1.0.0/16:4321"]);
    send(one, INTERNET, 4321)?;
    send(one, PRIVATE, 4321)?;
    world.until("the other way round", |world| {
        let seen = stats(world, one)?;
        Ok((seen.sent_packets, seen.refused_packets) == (2, 2))
    })?;
    assert_eq!(ask(one, "example.com")?, Some(NXDOMAIN));
    // A denied network of the internet, with a port of it that is allowed although.
    let path = format!("PUT /v1/sandboxes/{}/egress", one.id);
    let denied = json!({ "mode": "allow", "deny": ["0.0.0.0/1"], "allow": [format!("{INTERNET}/32:4322")] });
    let shown: Sandbox = world.tell(&path, denied.clone())?.parsed(200)?;
    assert_eq!(serde_json::to_value(shown.egress)?, denied);
    send(one, INTERNET, 4321)?;
    send(one, INTERNET, 4322)?;
    world.until("denied but for a port", |world| {
        let seen = stats(world, one)?;
        Ok((seen.sent_packets, seen.refused_packets) == (3, 3))
    })?;
    let listed = json!({ "mode": "list", "allow": allowed });
    world.tell(&path, listed)?.parsed::<Sandbox>(200)?;

    // Another bandwidth leaves the rest alone. Without a number it is the daemon's, which has none.
    for (mib, shown) in [(json!(7), Some(7)), (json!(null), None), (json!(2), Some(2))] {
        let wanted = json!({ "bandwidth_mib": mib });
        let changed: Sandbox =
            world.tell(&format!("PUT /v1/sandboxes/{}/bandwidth", one.id), wanted)?.parsed(200)?;
        assert_eq!(changed.limits.bandwidth_mib, shown);
        assert_eq!(changed.egress.ok_or("no egress")?.allow, allowed);
    }

    // What was dropped is told.
    let mut told = Vec::new();
    while told.len() < 6 {
        let mut event = lines.next()?.ok_or("no event")?;
        if event["event"] == "dropped" {
            assert_eq!(event["id"], json!(one.id));
            let event = event.as_object_mut().ok_or("no object")?;
            for key in ["at_unix_ms", "cursor", "event", "id"] {
                event.remove(key);
            }
            told.push(Value::Object(event.clone()));
        }
    }
    let packet = |reason: &str, to: Ipv4Addr| json!({ "reason": reason, "protocol": "udp", "destination": to, "port": 4321 });
    for (expected, count) in [
        (packet("refused", PRIVATE), 1),
        (packet("refused", INTERNET), 2),
        (packet("spoofed", INTERNET), 2),
        (json!({ "reason": "refused", "name": "example.com" }), 1),
    ] {
        assert_eq!(told.iter().filter(|told| **told == expected).count(), count, "{expected}: {told:?}");
    }

    // What comes from it may reach what it may.
    let branch = json!({ "tag": "branch" });
    world.tell(&format!("POST /v1/sandboxes/{}/branch", one.id), branch)?;
    let child = world.fork("branch", 1)?.remove(0);
    assert_eq!(child.egress.as_ref().ok_or("no egress")?.allow, allowed);
    assert_eq!(child.limits.bandwidth_mib, Some(2));
    let asked =
        json!({ "from_sandbox": one.id, "egress": { "mode": "deny" }, "limits": { "bandwidth_mib": 3 } });
    let copy = world.create(asked)?.sandboxes.remove(0);
    assert_eq!(
        (copy.egress.ok_or("no egress")?.mode, copy.limits.bandwidth_mib),
        (EgressMode::Deny, Some(3))
    );
    // Going back takes the network along.
    let back: Sandbox = world
        .tell(&format!("POST /v1/sandboxes/{}/rollback", one.id), json!({ "tag": "branch" }))?
        .parsed(200)?;
    send(&back, PRIVATE, 4321)?;
    world.until("it still goes out", |world| Ok(stats(world, &back)?.sent_packets == 4))?;

    // A network ends with its sandbox: one that is removed, one that dies.
    for sandbox in world.sandboxes("")? {
        if sandbox.id == three.id {
            rustix::process::kill_process(
                Pid::from_raw(three.pid.ok_or("no pid")?).ok_or("no pid")?,
                Signal::KILL,
            )?;
        } else {
            world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
        }
    }
    until_only_ready_ones(&world)?;
    world.end(Signal::TERM)?;
    assert_eq!(networks(), (vec![], vec![]), "a daemon that stops leaves none");
    world.start(&OPTIONS)
}

#[test]
fn a_network_outlives_the_daemon() -> Result<(), Failure> {
    alone("network::a_crash")
}

#[test]
#[ignore = "alone, by the test above"]
fn a_crash() -> Result<(), Failure> {
    let mut world = world()?;
    let deny = json!({ "snapshot_tag": "base", "n": 2, "egress": { "mode": "deny" } });
    let sandboxes = world.create(deny)?.sandboxes;
    let [kept, doomed] = &sandboxes[..] else { return Err("not two".into()) };
    assert_eq!(ask(kept, "example.com")?, Some(NXDOMAIN));
    until_whole(&world, "the pool is full", 4)?;
    world.end(Signal::KILL)?;
    let before = networks();
    assert_eq!(before.0.len(), 4);
    assert_eq!(ask(kept, "example.com")?, None, "nobody answers");
    // Packets go on being judged without a daemon.
    send(kept, INTERNET, 4321)?;
    rustix::process::kill_process(Pid::from_raw(doomed.pid.ok_or("no pid")?).ok_or("no pid")?, Signal::KILL)?;

    world.start(&OPTIONS)?;
    assert!(stats(&world, kept)?.refused_packets >= 1, "counters began anew");
    assert_eq!(ask(kept, "example.com")?, Some(NXDOMAIN), "its resolver is there again");
    assert_eq!(world.sandbox(&kept.id)?.egress.ok_or("no egress")?.mode, EgressMode::Deny);
    world.until("one and those that wait", |_| Ok(networks().0.len() == 3))?;
    let allow: Value = json!({ "mode": "allow" });
    world.tell(&format!("PUT /v1/sandboxes/{}/egress", kept.id), allow)?.parsed::<Sandbox>(200)?;
    send(kept, INTERNET, 4321)?;
    world.until("it goes out", |world| Ok(stats(world, kept)?.sent_packets == 1))?;

    // A name is a mount, and a daemon with a mount namespace of its own takes it along. The VM's tap leads back.
    world.end(Signal::KILL)?;
    let name = format!("/run/netns/forkd-{:04}", slot(&world, kept)?);
    assert!(Command::new("umount").arg(&name).status()?.success());
    fs::remove_file(&name)?;
    world.start(&OPTIONS)?;
    assert_eq!(world.sandbox(&kept.id)?.egress.map(|egress| egress.mode), Some(EgressMode::Allow));
    send(kept, INTERNET, 4321)?;
    world.until("it goes out", |world| Ok(stats(world, kept)?.sent_packets == 2))?;

    // One that is gone is not given to another as if it were there.
    world.end(Signal::KILL)?;
    let link = name.replace("/run/netns/forkd-", "forkd");
    assert!(Command::new("ip").args(["link", "delete", &link]).status()?.success());
    assert!(Command::new("umount").arg(&name).status()?.success());
    world.start(&OPTIONS)?;
    let lost = world.sandbox(&kept.id)?;
    assert_eq!((lost.egress, lost.ended), (None, None));
    assert!(world.log().contains("has lost its network"), "{}", world.log());
    let refused = json!({ "mode": "deny" });
    world.refuses(ErrorCode::Malformed, &format!("PUT /v1/sandboxes/{}/egress", kept.id), refused)?;
    Ok(())
}

#[test]
fn a_network_is_used_again() -> Result<(), Failure> {
    alone("network::a_second_tenant")
}

#[test]
#[ignore = "alone, by the test above"]
fn a_second_tenant() -> Result<(), Failure> {
    let mut world = world()?;
    let mut lines = world.lines("GET /v1/events")?;
    let reused = r#"forkd_networks_taken_total{kind="reused"}"#;
    let deny = json!({ "snapshot_tag": "base", "egress": { "mode": "deny" } });
    let first = world.create(deny)?.sandboxes.remove(0);
    let its_slot = slot(&world, &first)?;
    send(&first, INTERNET, 4321)?;
    assert_eq!(ask(&first, "example.com")?, Some(NXDOMAIN));
    world.until("it was refused", |world| Ok(stats(world, &first)?.refused_packets == 1))?;
    let before = metric(&world, reused)?;
    world.ask(&format!("DELETE /v1/sandboxes/{}", first.id))?;
    let count = until_ready_beside(&world, 0)?;
    assert_eq!(metric(&world, "forkd_networks_not_reused_total")?, 0);

    // Whoever gets all of them gets the one that came back.
    let sandboxes = world.fork("base", u32::try_from(count)?)?;
    assert!(metric(&world, reused)? > before);
    let slots = sandboxes.iter().map(|sandbox| slot(&world, sandbox)).collect::<Result<Vec<_>, _>>()?;
    let index = slots.iter().position(|slot| *slot == its_slot).ok_or("the network is not used again")?;
    let second = &sandboxes[index];
    assert_eq!(stats(&world, second)?, NetworkStats::default());
    assert_eq!(second.egress.as_ref().map(|egress| egress.mode), Some(EgressMode::Allow));
    send(second, INTERNET, 4321)?;
    send(second, PRIVATE, 4321)?;
    world.until("its own policy holds", |world| {
        let seen = stats(world, second)?;
        Ok((seen.sent_packets, seen.refused_packets) == (1, 1))
    })?;
    // What was dropped is told of the one whose it was.
    let mut told = Vec::new();
    while told.last() != Some(&json!(second.id)) {
        let event = lines.next()?.ok_or("no event")?;
        if event["event"] == "dropped" {
            told.push(event["id"].clone());
        }
    }
    assert!(told.len() > 1 && told.iter().rev().skip(1).all(|id| *id == json!(first.id)), "{told:?}");

    // A daemon that is killed finds it again, and removes those that were reset and waited.
    let gone = &sandboxes[(index + 1) % sandboxes.len()];
    world.ask(&format!("DELETE /v1/sandboxes/{}", gone.id))?;
    until_ready_beside(&world, sandboxes.len() - 1)?;
    assert_eq!(metric(&world, "forkd_networks_not_reused_total")?, 0);
    world.end(Signal::KILL)?;
    world.start(&OPTIONS)?;
    until_whole(&world, "those of sandboxes and two that wait", sandboxes.len() + 1)?;
    assert_eq!(slot(&world, second)?, its_slot);
    send(second, INTERNET, 4321)?;
    world.until("it goes out", |world| Ok(stats(world, second)?.sent_packets == 2))?;
    for sandbox in world.sandboxes("")? {
        world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
    }
    until_only_ready_ones(&world)?;
    world.end(Signal::TERM)?;
    assert_eq!(networks(), (vec![], vec![]), "a daemon that stops leaves none");
    world.start(&OPTIONS)
}

#[test]
fn without_networks_nobody_goes_silently_without() -> Result<(), Failure> {
    alone("network::refusals")
}

#[test]
#[ignore = "alone, by the test above"]
fn refusals() -> Result<(), Failure> {
    let mut world = world()?;
    world.end(Signal::TERM)?;
    world.start(&["--network", "none"])?;
    let fork = json!({ "snapshot_tag": "base" });
    let said = world.refuses(ErrorCode::Unavailable, "POST /v1/sandboxes", fork)?;
    assert!(said.contains("--network none"), "{said}");
    assert_eq!(world.sandboxes("")?.len(), 0);
    Ok(())
}

#[test]
fn a_sandbox_without_a_device_has_no_egress() -> Result<(), Failure> {
    let world = World::new()?;
    assert!(!world.snapshot("base")?.network);
    let sandbox = world.fork("base", 1)?.remove(0);
    assert_eq!((sandbox.egress, sandbox.limits.bandwidth_mib), (None, None));
    for body in [
        json!({ "snapshot_tag": "base", "egress": { "mode": "deny" } }),
        json!({ "snapshot_tag": "base", "limits": { "bandwidth_mib": 1 } }),
        json!({ "snapshot_tag": "base", "egress": { "mode": "list", "allow": ["10.0.0.1/8"] } }),
        json!({ "snapshot_tag": "base", "egress": { "mode": "allow", "deny": ["example.com"] } }),
        json!({ "snapshot_tag": "base", "egress": { "mode": "deny", "deny": ["8.8.8.8"] } }),
        json!({ "snapshot_tag": "base", "egress": { "mode": "some" } }),
    ] {
        world.refuses(ErrorCode::Malformed, "POST /v1/sandboxes", body)?;
    }
    let path = format!("PUT /v1/sandboxes/{}/egress", sandbox.id);
    world.refuses(ErrorCode::Malformed, &path, json!({ "mode": "deny" }))?;
    world.refuses(ErrorCode::NotFound, "PUT /v1/sandboxes/inone/egress", json!({ "mode": "deny" }))?;
    let path = format!("PUT /v1/sandboxes/{}/bandwidth", sandbox.id);
    for body in [json!({ "bandwidth_mib": 5 }), json!({ "bandwidth_mib": 0 }), json!({ "egress": "allow" })] {
        world.refuses(ErrorCode::Malformed, &path, body)?;
    }
    let nobody = json!({ "bandwidth_mib": null });
    world.refuses(ErrorCode::NotFound, "PUT /v1/sandboxes/inone/bandwidth", nobody)?;
    Ok(())
}
