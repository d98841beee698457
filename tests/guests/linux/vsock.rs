//! Connections from the host to a program in the guest. A branch leaves them alone; a copy of the guest, forked, loaded or
//! rolled back, finds them closed, and its program listens again.

use std::fs::File;
use std::io::{ErrorKind, Read};

use forkd_store::Store;
use forkd_tests::check;
use forkd_tests::engine::linux::echo::{Chatter, exchange};
use forkd_tests::engine::linux::image::SHELL;
use forkd_tests::engine::linux::vsock::connect;
use forkd_tests::engine::linux::{LinuxVm, LinuxZygote, Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

const PORT: u32 = 5000;
const BRANCHES: u32 = 4;
const MEBIBYTE: usize = 1 << 20;

pub fn test(vcpus: u8) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let plan = Plan {
        vcpus,
        init: SHELL,
        modules: &["vmw_vsock_virtio_transport"],
        programs: &["guest-echo"],
        keyboard: true,
        vsock: true,
        net: None,
    };
    let setup = Setup::new(directory.path(), &plan)?;
    let (_process, mut source) = setup.boot(setup.own("source")?)?;
    source.wait_for_shell()?;
    source.enter(&format!("guest-echo vsock {PORT} &"))?;
    source.wait_for("echo: listening")?;

    let idle = connect(source.socket(), PORT)?;
    exchange(&idle, MEBIBYTE)?;
    let busy = Chatter::start(connect(source.socket(), PORT)?);
    busy.wait_for(2);
    for branch in 1..BRANCHES {
        source.branch(&setup, &format!("source-{branch}"))?;
        busy.wait_for(1);
    }
    let (mut zygote, _) = source.branch(&setup, "source-last")?;
    let mut child = setup.fork(&mut zygote, setup.own("child")?)?;
    busy.wait_for(2);
    let busy = busy.stop()?;
    exchange(&idle, 10_000)?;
    goes_on(&mut child)?;

    let store_path = directory.path().join("store");
    std::fs::create_dir(&store_path)?;
    let store = Store::new(&store_path);
    zygote.persist(&setup, &store, "snapshot", None)?;
    let layers = zygote.layers().iter().map(File::try_clone).collect::<Result<Vec<_>, _>>()?;
    let (_loaded_process, mut loaded) = LinuxZygote::load(&setup, &store, "snapshot", &layers)?;
    let mut second = setup.fork(&mut loaded, setup.own("loaded")?)?;
    goes_on(&mut second)?;

    exchange(&idle, 10_000)?;
    exchange(&busy, 10_000)?;
    source.roll_back(&setup, &mut zygote, "source-again")?;
    for stream in [idle, busy] {
        let end = (&stream).read(&mut [0]).map_err(|error| error.kind());
        let is_closed = matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset));
        check!(is_closed, "an old connection after a rollback: {end:?}");
    }
    goes_on(&mut source)?;
    for guest in [&mut source, &mut child, &mut second] {
        guest.switch_off(&setup)?;
    }
    Ok(json!({ "guests": 3 }))
}

/// The guest's two old connections are closed, and a new one comes through.
fn goes_on(guest: &mut LinuxVm) -> Result<(), Failure> {
    for connection in 1..=2 {
        guest.wait_for(&format!("echo: connection {connection} ends"))?;
    }
    let new = connect(guest.socket(), PORT)?;
    exchange(&new, MEBIBYTE)?;
    drop(new);
    guest.wait_for(&format!("echo: connection 3 ends after {MEBIBYTE} bytes: closed"))
}
