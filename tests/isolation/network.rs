//! What guests reach, each cell of the table: targets × modes.

use std::collections::BTreeMap;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::{TestResult, binaries, check};
use serde_json::Value;

use crate::internet::{Internet, RESOLVER};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What the parent knows how to do, and so every sandbox. It reaches the internet itself while it is warmed up.
const WARM_UP: &str = r#"python=
import errno, json, socket, threading

def family(address):
    return socket.AF_INET6 if ':' in address else socket.AF_INET

def said(error):
    return errno.errorcode.get(error.errno, str(error)) if error.errno else 'timeout'

def tcp(address, port):
    with socket.socket(family(address), socket.SOCK_STREAM) as it:
        it.settimeout(10)
        try:
            it.connect((address, port))
            return 'connected'
        except OSError as error:
            return said(error)

def names(name):
    try:
        return ' '.join(sorted({found[4][0] for found in socket.getaddrinfo(name, 81, type=socket.SOCK_STREAM)}))
    except OSError as error:
        return 'none'

def query(address):
    with socket.socket(family(address), socket.SOCK_DGRAM) as it:
        it.settimeout(10)
        try:
            it.connect((address, 53))
            it.send(bytes.fromhex('123401000001000000000000') + b'\x04good\x07example\x03com\x00\x00\x01\x00\x01')
            it.recv(512)
            return 'answered'
        except OSError as error:
            return said(error)

def probe(targets):
    answers = {}
    def one(kind, to):
        address, _, port = to.rpartition(' ')
        answers[kind + ' ' + to] = tcp(address, int(port)) if kind == 'tcp' else {'name': names, 'query': query}[kind](to)
    threads = [threading.Thread(target=one, args=target) for target in targets]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps(answers))

def spoof(source):
    head = bytes.fromhex('45000020000100004011') + b'\0\0' + socket.inet_aton(source) + socket.inet_aton('9.9.9.9')
    total = sum(int.from_bytes(head[at:at + 2], 'big') for at in range(0, 20, 2))
    total = (total & 0xffff) + (total >> 16)
    head = head[:10] + (0xffff - total).to_bytes(2, 'big') + head[12:]
    frame = bytes.fromhex('02666bffff0102666bffff020800') + head + bytes.fromhex('10e11092000c0000') + b'hello!'
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as it:
        it.bind(('eth0', 0))
        it.send(frame)

print(tcp('9.9.9.9', 81))
"#;

fn daemon() -> Result<Daemon, Error> {
    let daemon = Daemon::start_asking(RESOLVER)?;
    let output =
        daemon.output(&["snapshot", DEBIAN, "--tag", "probing", "--warm-up", WARM_UP, "--no-wait"], b"")?;
    check!(output.status.success(), "{}", binaries::transcript(&output));
    let said = [output.stdout, output.stderr].concat();
    check!(String::from_utf8_lossy(&said).contains("probing"), "{}", String::from_utf8_lossy(&said));
    Ok(daemon)
}

/// What becomes of each try: `tcp ADDRESS PORT`, `name NAME`, `query ADDRESS`.
fn probe(daemon: &Daemon, id: &str, targets: &[&str]) -> Result<BTreeMap<String, String>, Error> {
    let targets: Vec<_> = targets.iter().filter_map(|target| target.split_once(' ')).collect();
    let said = daemon.run(&["eval", id, &format!("probe({})", serde_json::to_string(&targets)?)])?;
    Ok(serde_json::from_str(&said)?)
}

/// Whether the other side has answered: somebody, nobody who listens, or the name's address.
fn reached(said: &str) -> bool {
    matches!(said, "connected" | "ECONNREFUSED" | "answered") || said.contains("9.9.9.9")
}

/// A row: what is tried, and in which of the modes `allow`, `deny` and `list` it is reached. The list has the name
/// `good.example.com` at port 81, and 10.99.0.1 at port 81.
const TABLE: [(&str, [bool; 3]); 27] = [
    // Names of the list come first, since they open addresses.
    ("name good.example.com", [true, false, true]),
    // Another name of the same address.
    ("name other.example.org", [true, false, false]),
    ("name unknown.example.net", [false, false, false]),
    // The internet: the name's address at its port, the same at another, and one without a name.
    ("tcp 9.9.9.9 81", [true, false, true]),
    ("tcp 2a00:9::9 81", [true, false, true]),
    ("tcp 9.9.9.9 82", [true, false, false]),
    ("tcp 2a00:9::9 82", [true, false, false]),
    ("tcp 8.8.8.8 81", [true, false, false]),
    ("tcp 2a00:8::8 81", [true, false, false]),
    // The host, at the addresses that it has: outside, and as the gateway.
    ("tcp 9.9.9.1 22", [false; 3]),
    ("tcp 2a00:9::1 22", [false; 3]),
    ("tcp 198.19.255.1 22", [false; 3]),
    ("tcp fd66:6f72:6b64:ffff::1 22", [false; 3]),
    ("tcp 198.19.0.1 22", [false; 3]),
    // Other sandboxes: the networks of the first slots, one of which is another's.
    ("tcp 198.19.0.2 81", [false; 3]),
    ("tcp 198.19.0.6 81", [false; 3]),
    ("tcp 198.19.0.10 81", [false; 3]),
    ("tcp fd66:6f72:6b64:1::2 81", [false; 3]),
    // Metadata, and private networks.
    ("tcp 169.254.169.254 80", [false; 3]),
    ("tcp 10.99.0.1 81", [false, false, true]),
    ("tcp 10.99.0.1 82", [false; 3]),
    ("tcp 172.16.9.9 81", [false; 3]),
    ("tcp 192.168.77.7 81", [false; 3]),
    ("tcp fd00:1::9 81", [false; 3]),
    // Names elsewhere, though somebody would answer there.
    ("query 9.9.9.9", [false; 3]),
    ("query 2a00:9::9", [false; 3]),
    ("tcp 9.9.9.9 853", [false; 3]),
];

pub fn lets_out_what_is_allowed() -> TestResult {
    let _internet = Internet::new()?;
    let daemon = daemon()?;
    let ids = daemon.fork("probing", 2)?;
    let id = &ids[0];
    let modes: [&[&str]; 3] = [
        &["--egress", "allow"],
        &["--egress", "deny"],
        &["--allow", "good.example.com:81", "--allow", "10.99.0.1:81"],
    ];
    let mut wrong = Vec::new();
    for (mode, options) in modes.into_iter().enumerate() {
        daemon.run(&[&["egress", id], options].concat())?;
        if mode == 2 {
            let before = probe(&daemon, id, &["tcp 9.9.9.9 81"])?;
            check!(!before.values().any(|said| reached(said)), "open before anybody has asked: {before:?}");
        }
        let (first, rest): (Vec<_>, Vec<_>) =
            TABLE.iter().map(|(target, _)| *target).partition(|target| target.starts_with("name"));
        let mut seen = probe(&daemon, id, &first)?;
        seen.extend(probe(&daemon, id, &rest)?);
        for (target, expected) in TABLE {
            let said = seen.get(target).ok_or_else(|| format!("{target} was not tried"))?;
            if reached(said) != expected[mode] {
                wrong.push(format!("{}: {target}: {said}", options.join(" ")));
            }
        }
    }
    check!(wrong.is_empty(), "{wrong:#?}");
    let stats = daemon.json(&["stats", "--once"])?;
    check!(stats.to_string().contains("refused_packets"), "{stats}");
    Ok(())
}

pub fn is_nobody_else_s() -> TestResult {
    let _internet = Internet::new()?;
    let daemon = daemon()?;
    let ids = daemon.fork("probing", 2)?;
    let spoofed = |id: &str| -> Result<u64, Error> {
        let all = daemon.json(&["stats", "--once"])?;
        let one = all.as_array().and_then(|all| all.iter().find(|one| one["id"] == id).cloned());
        Ok(find(&one.unwrap_or_default(), "spoofed_packets").unwrap_or_default())
    };
    let before = spoofed(&ids[0])?;
    for source in ["198.19.0.6", "9.9.9.1", "10.0.0.1", "198.19.255.3"] {
        daemon.run(&["eval", &ids[0], &format!("spoof('{source}')")])?;
    }
    let after = spoofed(&ids[0])?;
    check!(after >= before + 4, "{before} packets were dropped, then {after}");
    check!(spoofed(&ids[1])? == 0, "another sandbox is blamed");
    // Its own address is fine, and the other one goes on.
    daemon.run(&["eval", &ids[0], "spoof('198.19.255.2')"])?;
    check!(spoofed(&ids[0])? == after, "its own address is refused");
    let seen = probe(&daemon, &ids[1], &["tcp 9.9.9.9 81"])?;
    check!(seen.values().all(|said| reached(said)), "{seen:?}");
    Ok(())
}

/// The first number of this name, however deep.
fn find(value: &Value, name: &str) -> Option<u64> {
    match value {
        Value::Object(fields) => {
            let own = fields.get(name).and_then(Value::as_u64);
            own.or_else(|| fields.values().find_map(|value| find(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

pub fn outlives_the_daemon() -> TestResult {
    let _internet = Internet::new()?;
    let mut daemon = daemon()?;
    let ids = daemon.fork("probing", 2)?;
    let [one, other] = &ids[..] else { return Err(format!("{ids:?}").into()) };
    daemon.run(&["egress", one, "--allow", "good.example.com:81"])?;
    daemon.run(&["branch", one, "--tag", "branch"])?;
    let targets = ["name good.example.com", "name other.example.org"];
    let expect = |daemon: &Daemon, id: &str, when: &str| -> TestResult {
        let seen = probe(daemon, id, &targets)?;
        let names = [&seen["name good.example.com"], &seen["name other.example.org"]];
        check!(reached(names[0]) && !reached(names[1]), "{when}: {seen:?}");
        let seen = probe(daemon, id, &["tcp 9.9.9.9 81", "tcp 8.8.8.8 81"])?;
        check!(reached(&seen["tcp 9.9.9.9 81"]) && !reached(&seen["tcp 8.8.8.8 81"]), "{when}: {seen:?}");
        Ok(())
    };
    expect(&daemon, one, "before")?;
    daemon.kill_and_start()?;
    expect(&daemon, one, "after the daemon was killed")?;
    let seen = probe(&daemon, other, &["tcp 8.8.8.8 81"])?;
    check!(seen.values().all(|said| reached(said)), "the other one may still reach all: {seen:?}");
    daemon.run(&["rollback", one, "branch"])?;
    expect(&daemon, one, "after it went back")?;
    let child = daemon.fork("branch", 1)?;
    expect(&daemon, &child[0], "a child of its branch")?;
    Ok(())
}
