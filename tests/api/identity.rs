//! A server that was started before the snapshot runs in every child, and sees nothing of its parent there.

use std::collections::BTreeSet;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, check};
use serde_json::Value;

/// Writes down every 10 ms what it sees. Its connection is to the guest's own address on the network, which is not the
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
number = 0
while True:
    before = identity()
    alive = {name: works(ends) for name, ends in pairs.items()}
    random = os.urandom(8).hex()
    if before == identity():
        number += 1
        out.write(json.dumps({'number': number, 'boot_id': before[0], 'hostname': before[1], 'key': before[2],
            'hooked': before[3], 'random': random, **alive}) + '\n')
        out.flush()
    if number == 20: place('/run/ready', '')
    time.sleep(0.01)
"#;

/// Waits until the server has written enough in this child, and prints it all.
const SEEN: &str = "
boot_id=$(cat /proc/sys/kernel/random/boot_id)
until [ $(grep -c $boot_id /run/seen) -ge 5 ]; do sleep 0.1; done
cat /run/seen";

pub fn a_server_sees_nothing_of_its_parent() -> TestResult {
    let daemon = Daemon::start()?;
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
    Ok(())
}
