//! A guest on a network. A branch leaves its connections alone; children have the same address, each in a network
//! namespace of its own.

use forkd_proto::control::Net;
use forkd_tests::check;
use forkd_tests::engine::linux::echo::{Chatter, exchange};
use forkd_tests::engine::linux::image::SHELL;
use forkd_tests::engine::linux::network::{GUEST, HOST, Namespace};
use forkd_tests::engine::linux::{Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

const PORT: u16 = 7000;
const BRANCHES: u32 = 4;
const TRANSFER: usize = 10 << 20;
const NET: Net = Net { mac: [0x02, 0, 0, 0, 0, 1], mtu: None };

pub fn test(vcpus: u8) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let plan = Plan {
        vcpus,
        init: SHELL,
        modules: &["virtio_net"],
        programs: &["guest-echo"],
        keyboard: true,
        vsock: false,
        net: Some(NET),
    };
    let setup = Setup::new(directory.path(), &plan)?;
    let namespace = Namespace::new("source")?;
    let (_process, mut source) = setup.boot(setup.own("source")?.with_tap(namespace.tap()?))?;
    source.wait_for_shell()?;
    source.run(&format!("ip address add {GUEST}/24 dev eth0; ip link set eth0 up; ip link set lo up"))?;
    source.enter(&format!("guest-echo tcp {PORT} &"))?;
    source.wait_for("echo: listening")?;
    namespace.ping()?;
    let answer = source.run(&format!("ping -c 1 -W 30 {HOST}"))?;
    check!(answer.contains("1 packets received"), "the guest's ping: {answer}");

    let stream = namespace.connect(PORT)?;
    exchange(&stream, TRANSFER)?;
    let busy = Chatter::start(stream);
    busy.wait_for(2);
    for branch in 1..BRANCHES {
        source.branch(&setup, &format!("source-{branch}"))?;
        busy.wait_for(1);
    }
    let (mut zygote, _) = source.branch(&setup, "source-last")?;
    let others = [Namespace::new("one")?, Namespace::new("two")?];
    let mut guests = Vec::new();
    for (name, namespace) in ["one", "two"].iter().zip(&others) {
        guests.push(setup.fork(&mut zygote, setup.own(name)?.with_tap(namespace.tap()?))?);
    }
    busy.wait_for(2);
    let streams = [others[0].connect(PORT)?, others[1].connect(PORT)?];
    for (namespace, stream) in others.iter().zip(&streams) {
        namespace.ping()?;
        exchange(stream, 1 << 20)?;
    }
    exchange(&busy.stop()?, 10_000)?;

    source.roll_back(&setup, &mut zygote, "source-again")?;
    exchange(&namespace.connect(PORT)?, 10_000)?;
    guests.push(source);
    for guest in &mut guests {
        guest.switch_off(&setup)?;
    }
    Ok(json!({ "guests": guests.len() }))
}
