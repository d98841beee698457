//! Disks and VM processes that hang delay the requests that need them, and no others.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::world::World;

/// Requests have come to what holds them up by then.
const UNDER_WAY: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(5);

type Asked = thread::JoinHandle<Result<Answer, String>>;

/// Asks for something that takes long.
fn ask(world: &World, request: String, body: Value) -> Asked {
    let socket = world.socket();
    let asked = thread::spawn(move || {
        client::send(&socket, &request, "", Some(&body)).map_err(|error| error.to_string())
    });
    thread::sleep(UNDER_WAY);
    asked
}

/// A daemon with one worker, which a single file that is waited for would stop.
fn with_one_worker(world: &mut World, fault: &str) -> Result<(), Failure> {
    world.end(Signal::TERM)?;
    world.launch(&[], &[("TOKIO_WORKER_THREADS", "1"), ("FORKD_FAULT_HANG", fault)])?;
    world.until("the daemon answers", |world| {
        Ok(world.ask("GET /healthz").is_ok_and(|answer| answer.status == 200))
    })
}

fn answers_soon(world: &World) -> Result<(), Failure> {
    let begun = Instant::now();
    assert_eq!(world.ask("GET /healthz")?.status, 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    Ok(())
}

#[test]
fn a_record_that_cannot_be_written_now_holds_up_its_sandbox_only() -> Result<(), Failure> {
    let mut world = World::new()?;
    with_one_worker(&mut world, "")?;
    let id = world.fork("base", 1)?.remove(0).id;
    // A FIFO without a reader is a file that cannot be opened for a while.
    let directory = tiny::run_directory(&world.root()).join("sandboxes").join(&id);
    let new = directory.join("record.json.new");
    mknodat(CWD, &new, FileType::Fifo, Mode::RWXU, 0)?;
    let asked = ask(&world, format!("PUT /v1/sandboxes/{id}/ttl"), json!({ "ttl_secs": 1000 }));
    // Whatever the test has come to, it can be written then. It is the record afterwards, which must not be read.
    let unblock = thread::spawn(move || {
        thread::sleep(2 * SOON);
        fs::read(&new)?;
        while new.exists() {
            thread::sleep(Duration::from_millis(10));
        }
        fs::remove_file(directory.join("record.json"))
    });
    answers_soon(&world)?;
    assert!(!asked.is_finished());
    unblock.join().map_err(|_| "it panicked")??;
    assert_eq!(asked.join().map_err(|_| "it panicked")??.status, 200);
    Ok(())
}

/// The fault is not in release builds.
#[test]
#[cfg(debug_assertions)]
fn a_disk_that_is_slow_when_a_sandbox_is_made_holds_up_nobody_else() -> Result<(), Failure> {
    let mut world = World::new()?;
    with_one_worker(&mut world, "create.written")?;
    let asked = ask(&world, "POST /v1/sandboxes".into(), json!({ "snapshot_tag": "base", "n": 2 }));
    answers_soon(&world)?;
    assert!(!asked.is_finished());
    assert_eq!(asked.join().map_err(|_| "it panicked")??.status, 201);
    Ok(())
}

#[test]
fn a_daemon_that_stops_does_not_wait_for_processes_that_stand_still() -> Result<(), Failure> {
    let signal = |pid: i32, signal| -> Result<(), Failure> {
        Ok(kill_process(Pid::from_raw(pid).ok_or("no process")?, signal)?)
    };
    let mut world = World::new()?;
    let sandbox = world.fork("base", 1)?.remove(0);
    let (id, vm) = (sandbox.id, sandbox.pid.ok_or("no pid")?);
    let known = tiny::vms(&world.root());
    let zygote = zygote_of(vm)?;
    for pid in [vm, zygote] {
        signal(pid, Signal::STOP)?;
    }
    let branch = ask(&world, format!("POST /v1/sandboxes/{id}/branch"), json!({}));
    let create = ask(&world, "POST /v1/sandboxes".into(), json!({ "snapshot_tag": "base", "n": 3 }));
    let begun = Instant::now();
    world.end(Signal::TERM)?;
    assert!(begun.elapsed() < SOON, "{:?}\n{}", begun.elapsed(), world.log());
    for asked in [branch, create] {
        let answer = asked.join().map_err(|_| "it panicked")??;
        assert_eq!(answer.status, 503, "{answer:?}");
    }
    // What they were told to do they may still do. Nobody was promised it, and the next daemon ends it.
    for pid in [vm, zygote] {
        signal(pid, Signal::CONT)?;
    }
    thread::sleep(UNDER_WAY);
    world.start(&[])?;
    assert_eq!(world.sandbox(&id)?.pid, Some(vm));
    assert_eq!(tiny::vms(&world.root()), known);
    world.fork("base", 2)?;
    world.until_none_is_lost()
}

/// What a VM process was forked from.
fn zygote_of(pid: i32) -> Result<i32, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').ok_or("no name")?.1;
    Ok(fields.split_whitespace().nth(1).ok_or("no parent")?.parse()?)
}
