//! A server that was started before the snapshot runs in every child, and sees nothing of its parent there.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::scale::count;
use forkd_tests::watch::report;
use forkd_tests::{TestResult, check};
use serde_json::Value;

/// Writes down every 10 ms what it sees; more slowly when it has seen enough of a child, for the sake of the others. Its connection is to the guest's own address on the network, which is not the
/// loopback. A line is written only if nothing changed while it was made; one that was made before the freeze and written
/// after the thaw is the same in all children. The hook and `ssh-keygen` are stand-ins: the image has neither.
const SERVER: &str = r#"
import json, os, socket, time
def place(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as file: file.write(text)
    os.chmod(path, 0o755)
def read(path):
    with open(path) as file: return file.read().strip()
def pair(address):
    listener = socket.create_server((address, 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    return client, server
place('/usr/local/bin/ssh-keygen', '#!/bin/sh\nwhile [ "$1" != -f ]; do shift; done\n'
    'head -c 16 /dev/urandom | base64 > "$2"; cp "$2" "$2.pub"\n')
place('/etc/ssh/ssh_host_ed25519_key', 'of the image')
place('/etc/forkd/fork.d/10-name', '#!/bin/sh\nif [ $FORKD_GENERATION -gt 1 ]; then echo $FORKD_ID > /run/hooked; fi\n')
place('/run/hooked', 'nobody')
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(('198.19.255.1', 9))
pairs = {'remote': pair(probe.getsockname()[0]), 'loopback': pair('127.0.0.1')}
def works(ends):
    try:
        ends[0].sendall(b'x')
        return ends[1].recv(1) == b'x'
    except OSError:
        return False
def identity():
    return [read('/proc/sys/kernel/random/boot_id'), socket.gethostname(), read('/etc/ssh/ssh_host_ed25519_key'),
        read('/run/hooked')]
out = open('/run/seen', 'a')
parent, number, own = identity()[0], 0, 0
while True:
    before = identity()
    alive = {name: works(ends) for name, ends in pairs.items()}
    random = os.urandom(8).hex()
    if before == identity():
        number += 1
        own += before[0] != parent
        out.write(json.dumps({'number': number, 'boot_id': before[0], 'hostname': before[1], 'key': before[2],
            'hooked': before[3], 'random': random, **alive}) + '\n')
        out.flush()
    if number == 20: place('/run/ready', '')
    time.sleep(0.01 if own < 20 else 1)
"#;

/// Waits until the server has written enough in this child, and prints it all.
const SEEN: &str = "
boot_id=$(cat /proc/sys/kernel/random/boot_id)
until [ $(grep -c $boot_id /run/seen) -ge 5 ]; do sleep 0.1; done
cat /run/seen";

/// A connection of the guest to its own address on the network.
const CONNECT: &str = "
import socket
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(('198.19.255.1', 9))
listener = socket.create_server((probe.getsockname()[0], 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]";
const SPEAK: &str = "
try:
    client.send(b'x')
    told = server.recv(1).decode()
except OSError as error:
    told = type(error).__name__
told";

pub fn a_server_sees_nothing_of_its_parent() -> TestResult {
    let daemon = Daemon::start_listening()?;
    let start = format!("python3 -c '{}'", SERVER.replace('\'', r"'\''"));
    daemon.run(&[
        "snapshot",
        DEBIAN,
        "--tag",
        "served",
        "--no-wait",
        "--start",
        &start,
        "--ready-command",
        "test -e /run/ready",
    ])?;
    let ids = daemon.fork("served", count(4, 50))?;
    let mut parents: Option<Vec<Value>> = None;
    let (mut boot_ids, mut keys, mut numbers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for id in &ids {
        let seen = daemon.run(&["exec", id, "--", "sh", "-c", SEEN])?;
        let lines = seen.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let first = lines.first().ok_or("the server has seen nothing")?.clone();
        let (before, after): (Vec<Value>, Vec<Value>) =
            lines.into_iter().partition(|line| line["boot_id"] == first["boot_id"]);
        for line in &before {
            check!(line["hooked"] == "nobody" && line["key"] == "of the image", "{id}: {line}");
            check!(line["remote"] == true && line["loopback"] == true, "{id}: {line}");
        }
        // A line that one child has and another has not was written after the fork.
        check!(parents.get_or_insert_with(|| before.clone()) == &before, "{id} ran as its parent");
        for line in &after {
            check!(line["hostname"] == id.as_str() && line["hooked"] == id.as_str(), "{id}: {line}");
            check!(line["remote"] == false && line["loopback"] == true, "{id}: {line}");
            check!(line["boot_id"] == after[0]["boot_id"] && line["key"] == after[0]["key"], "{id}: {line}");
            check!(
                numbers.insert(line["random"].to_string()),
                "{id}: two have the same random number: {line}"
            );
        }
        check!(boot_ids.insert(after[0]["boot_id"].to_string()), "{id}: two have the same boot id");
        check!(keys.insert(after[0]["key"].to_string()), "{id}: two have the same host key");
        check!(after[0]["key"] != "of the image", "{id} has the host key of its image");
    }
    of_a_live_branch(&daemon, ids.first().ok_or("no sandbox")?)
}

/// Children of a running sandbox lose its connections; the sandbox does not. The daemon says how long they had no identity.
fn of_a_live_branch(daemon: &Daemon, source: &str) -> TestResult {
    daemon.run(&["eval", source, CONNECT])?;
    let (count_before, seconds_before) = windows(daemon)?;
    let children = daemon.fork(source, 2)?;
    let (count, seconds) = windows(daemon)?;
    check!(count - count_before == 2.0, "{count_before} windows before, {count} after");
    report(&format!(
        "children of a live branch had no identity for {:.3} s",
        (seconds - seconds_before) / 2.0
    ));
    for child in &children {
        let answer = daemon.run(&["eval", child, SPEAK])?;
        check!(answer.contains("Error"), "{child} speaks on the connection of {source}: {answer}");
    }
    let answer = daemon.run(&["eval", source, SPEAK])?;
    check!(answer == "x", "{source} has lost its connection: {answer}");
    Ok(())
}

/// How many children of live branches got an identity, and how long all of them together had none.
fn windows(daemon: &Daemon) -> Result<(f64, f64), Box<dyn std::error::Error + Send + Sync>> {
    let (address, token) = daemon.tcp()?;
    let mut stream = TcpStream::connect(&address)?;
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: forkd\r\nconnection: close\r\n{token}\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let value = |kind: &str| {
        let name = format!("forkd_identity_window_seconds_{kind} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.trim().parse::<f64>().ok()).ok_or_else(|| format!("no {name}in {text}"))
    };
    Ok((value("count")?, value("sum")?))
}
