//! Requests that run when their sandbox ends are answered, with the reason.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::world::World;

/// Requests have come to the guest by then.
const UNDER_WAY: Duration = Duration::from_millis(500);
/// No answer takes longer after the end.
const SOON: Duration = Duration::from_secs(15);

fn kill(world: &World, id: &str) -> Result<(), Failure> {
    let pid = world.sandbox(id)?.pid.and_then(Pid::from_raw).ok_or("no pid")?;
    Ok(rustix::process::kill_process(pid, Signal::KILL)?)
}

/// Makes requests, ends their sandbox, and returns their answers.
fn answers(
    world: &World,
    requests: &[(String, &str, Option<Value>)],
    end: impl FnOnce() -> Result<(), Failure>,
) -> Result<Vec<Answer>, Failure> {
    thread::scope(|scope| {
        let asked: Vec<_> = requests
            .iter()
            .map(|(request, headers, body)| {
                let socket = world.socket();
                scope.spawn(move || {
                    client::send(&socket, request, headers, body.as_ref()).map_err(|error| error.to_string())
                })
            })
            .collect();
        thread::sleep(UNDER_WAY);
        end()?;
        let begun = Instant::now();
        let answers = asked.into_iter().map(|asked| Ok(asked.join().map_err(|_| "it panicked")??));
        let answers: Result<Vec<Answer>, Failure> = answers.collect();
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        answers
    })
}

fn runs(id: &str, what: &str) -> Vec<(String, &'static str, Option<Value>)> {
    let exec = json!({ "args": [what], "timeout_secs": 600 });
    vec![
        (format!("POST /v1/sandboxes/{id}/exec"), "", Some(exec.clone())),
        (format!("POST /v1/sandboxes/{id}/exec"), "accept: application/x-ndjson\r\n", Some(exec)),
        (format!("POST /v1/sandboxes/{id}/eval"), "", Some(json!({ "code": what, "timeout_secs": 600 }))),
    ]
}

#[test]
fn commands_and_code_are_told_why() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    for what in ["silent", "stall"] {
        let id = world.fork("base", 1)?.remove(0).id;
        let answered = answers(&world, &runs(&id, what), || kill(&world, &id))?;
        for answer in &answered {
            assert!(answer.body.contains("sandbox_ended"), "{what}: {answer:?}");
            let reason = "the sandbox ended while the request ran: its process was killed";
            assert!(answer.body.contains(reason), "{what}: {answer:?}");
        }
        answered[0].error(ErrorCode::SandboxEnded)?;
        answered[2].error(ErrorCode::SandboxEnded)?;
    }
    Ok(())
}

#[test]
fn each_end_has_its_reason() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let id = world.fork("base", 1)?.remove(0).id;
    let removed = answers(&world, &runs(&id, "silent")[..1], || {
        assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{id}"))?.status, 204);
        Ok(())
    })?;
    let removed = removed[0].error(ErrorCode::SandboxEnded)?;
    assert!(removed.error.ends_with("it was removed"), "{removed:?}");
    let id = world.fork("base", 1)?.remove(0).id;
    let expired = answers(&world, &runs(&id, "silent")[..1], || {
        world.tell(&format!("PUT /v1/sandboxes/{id}/ttl"), json!({ "ttl_secs": 1 }))?;
        Ok(())
    })?;
    let expired = expired[0].error(ErrorCode::SandboxEnded)?;
    assert!(expired.error.ends_with("its TTL expired"), "{expired:?}");
    Ok(())
}

#[test]
fn files_ports_and_e2b_s_clients_are_told_why() -> Result<(), Failure> {
    let mut world = World::new()?;
    // A guest that takes everything, and says nothing.
    let id = world.played(|_, mut client| drop(client.read_to_end(&mut Vec::new())))?;
    let path = "path=/etc/hosts";
    let mut requests: Vec<_> = [
        format!("GET /v1/sandboxes/{id}/files?{path}"),
        format!("GET /v1/sandboxes/{id}/files/info?{path}"),
        format!("GET /v1/sandboxes/{id}/files/list?{path}"),
        format!("DELETE /v1/sandboxes/{id}/files?{path}"),
        format!("GET /v1/sandboxes/{id}/proxy/49983/health"),
    ]
    .into_iter()
    .map(|request| (request, "", None))
    .collect();
    let routed = format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: 49983\r\n");
    requests.push(("GET /health".into(), &routed, None));
    let mut answered = answers(&world, &requests, || kill(&world, &id))?;
    let reason = "the sandbox ended while the request ran: its process was killed";
    let e2b: Value = answered.remove(5).parsed(502)?;
    assert_eq!(e2b, json!({ "sandboxId": id, "message": reason, "code": 502 }));
    for answer in answered {
        assert_eq!(answer.error(ErrorCode::SandboxEnded)?.error, reason);
    }
    Ok(())
}
