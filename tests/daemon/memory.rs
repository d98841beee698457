//! Clients that are slow and guests that flood: the daemon's memory stays bounded, and it keeps serving.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forkd_api::exec::Executed;
use forkd_tests::engine::process::Failure;
use forkd_tests::{check, scale};
use serde_json::json;

use crate::client;
use crate::world::World;

/// What the daemon may come to hold more than when it had nothing to do.
const BOUND: u64 = 128 << 20;
/// The longest that somebody who only wants to know whether it lives may wait. A daemon that is not optimised takes several times
/// as long for everything.
const HEALTHY: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });

/// A client that is there and wants something, and never gets on with it.
struct Slow {
    /// Sends its request byte by byte.
    dribbles: Option<UnixStream>,
    /// Only stays.
    _stays: Option<OwnedFd>,
}

impl Slow {
    /// The quarters of a crowd.
    fn new(number: u32, socket: &Path, address: &str) -> Result<Slow, Failure> {
        let connect = || UnixStream::connect(socket);
        let stays: OwnedFd = match number % 4 {
            0 => return Ok(Slow { dribbles: Some(connect()?), _stays: None }),
            1 => {
                let mut half = connect()?;
                half.write_all(
                    b"POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                      content-length: 1000000\r\n\r\n{\"snapshot_tag\": \"",
                )?;
                half.write_all(&[b'x'; 30 << 10])?;
                half.into()
            }
            2 => {
                let mut deaf = connect()?;
                deaf.set_nonblocking(true)?;
                let request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
                // Until the daemon reads no more.
                let _ = deaf.write_all(&request);
                deaf.into()
            }
            _ => {
                let mut shaking = TcpStream::connect(address)?;
                // The first bytes of a record of TLS.
                shaking.write_all(&[0x16, 3, 1, 2, 0, 1])?;
                shaking.into()
            }
        };
        Ok(Slow { dribbles: None, _stays: Some(stays) })
    }

    fn one_byte(&mut self) {
        if let Some(stream) = &mut self.dribbles {
            // One that was cut off is out of patience's way.
            let _ = stream.write_all(b"G");
        }
    }
}

fn memory(pid: u32, name: &str) -> Result<u64, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
    Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Asks again and again, and says how long the longest answer took.
fn probe(socket: &Path, done: &AtomicBool) -> Result<Duration, Failure> {
    let mut longest = Duration::ZERO;
    while !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = client::send(socket, "GET /healthz", "", None)?;
        check!(answer.status == 200, "{answer:?}");
        longest = longest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(longest)
}

/// Guests that flood, in every way that there is.
fn flood(world: &World, id: &str, mebibytes: u32) -> Result<(), Failure> {
    let (exec, eval) = (format!("POST /v1/sandboxes/{id}/exec"), format!("POST /v1/sandboxes/{id}/eval"));
    let amount = mebibytes.to_string();
    std::thread::scope(|scope| {
        let plain = scope.spawn(|| -> Result<(), Failure> {
            let executed: Executed =
                world.tell(&exec, json!({ "args": ["flood", amount], "timeout_secs": 600 }))?.parsed(200)?;
            check!(executed.truncated, "all of it was kept");
            Ok(())
        });
        let coded = scope.spawn(|| -> Result<(), Failure> {
            let answer =
                world.tell(&eval, json!({ "code": format!("flood {amount}"), "timeout_secs": 600 }))?;
            check!(answer.status == 200, "{}", answer.head);
            Ok(())
        });
        let streamed = scope.spawn(|| -> Result<(), Failure> {
            let accept = "accept: application/x-ndjson\r\n";
            let body = json!({ "args": ["flood", amount], "timeout_secs": 600 });
            let mut lines = world.lines_of(accept, &exec, &body)?;
            let mut count = 0;
            while let Some(line) = lines.next()? {
                check!(line.get("error").is_none(), "{line}");
                count += 1;
            }
            check!(count > 10, "{count} lines");
            Ok(())
        });
        // Those who ask, and do not read what they get.
        let unread = scope.spawn(|| -> Result<(), Failure> {
            let accept = "accept: application/x-ndjson\r\n";
            let lines = (0..8).map(|_| world.lines_of(accept, &exec, &json!({ "args": ["endless"] })));
            let _lines = lines.collect::<Result<Vec<_>, _>>()?;
            let body = json!({ "args": ["flood", "1000"] });
            let flooded = (0..8).map(|_| world.lines_of(accept, &exec, &body));
            let _flooded = flooded.collect::<Result<Vec<_>, _>>()?;
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        });
        for thread in [plain, coded, streamed, unread] {
            thread.join().map_err(|_| "a client panicked")??;
        }
        Ok(())
    })
}

#[test]
fn slow_clients_and_floods_cost_a_bounded_amount() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&["--listen", "127.0.0.1:0", "--tls"])?;
    let address = world.address()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let pid = world.pid()?;
    let before = memory(pid, "VmRSS")?;
    let (socket, done) = (world.socket(), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| -> Result<Duration, Failure> {
        let prober = scope.spawn(|| probe(&socket, &done));
        let load = || -> Result<(), Failure> {
            let crowd = (0..scale::count(100, 500)).map(|number| Slow::new(number, &socket, &address));
            let mut crowd = crowd.collect::<Result<Vec<_>, _>>()?;
            for _ in 0..10 {
                crowd.iter_mut().for_each(Slow::one_byte);
                std::thread::sleep(Duration::from_millis(100));
            }
            flood(&world, &id, scale::count(50, 200))?;
            crowd.iter_mut().for_each(Slow::one_byte);
            // Somebody who goes away is forgotten.
            drop(crowd);
            Ok(())
        };
        let loaded = load();
        done.store(true, Ordering::Relaxed);
        let longest = prober.join().map_err(|_| "the prober panicked")??;
        loaded.map(|()| longest)
    })?;
    let peak = memory(pid, "VmHWM")?.saturating_sub(before);
    check!(peak < BOUND, "the daemon grew by {} MiB", peak >> 20);
    check!(longest < HEALTHY, "somebody waited {longest:?} to hear that it lives");
    world.until("connections are gone", |world| {
        Ok(world.ask("GET /metrics")?.body.contains("forkd_http_connections 1\n"))
    })
}

/// Half an answer is not waited for by anybody else.
#[test]
fn who_does_not_read_does_not_hold_up_the_next() -> Result<(), Failure> {
    let world = World::new()?;
    let mut deaf = UnixStream::connect(world.socket())?;
    deaf.write_all(&b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50))?;
    let begun = Instant::now();
    check!(world.ask("GET /v1/snapshots")?.status == 200, "no answer");
    check!(begun.elapsed() < HEALTHY, "it took {:?}", begun.elapsed());
    let mut first = [0; 12];
    deaf.read_exact(&mut first)?;
    check!(&first == b"HTTP/1.1 200", "{first:?}");
    Ok(())
}
