//! How long sandboxes live that are used through MCP, and what becomes of abandoned calls.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_api::sandbox::{EndReason, SandboxState};
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use super::{Mcp, open_daemon};
use crate::world::World;

/// Seconds that sandboxes of these tests live after their last use.
const TTL: u64 = 3;
/// Long enough that a sandbox whose time is not renewed has expired.
const LONG: Duration = Duration::from_secs(2 * TTL);

/// A call over HTTP whose answer is not read. The call is given up with this value.
fn call_unheard(address: &str, tool: &str, arguments: &Value) -> Result<TcpStream, Failure> {
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments },
    })
    .to_string();
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{call}",
        call.len()
    )?;
    Ok(stream)
}

/// The same call of a `forkd mcp` that can be killed.
fn call_over_stdio(world: &World, tool: &str, arguments: &Value) -> Result<Child, Failure> {
    let mut command = binaries::forkd(world.home(), &["mcp", "--sandbox-ttl", &TTL.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let stdin = child.stdin.as_mut().ok_or("no stdin")?;
    let hello = json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
    });
    for message in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": tool, "arguments": arguments },
        }),
    ] {
        writeln!(stdin, "{message}")?;
    }
    Ok(child)
}

/// The sandbox stays, and never has more time left than after its last use.
fn stays(world: &World, id: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < LONG {
        let sandbox = world.sandbox(id)?;
        assert_eq!(sandbox.state, SandboxState::Running, "{:?}", sandbox.ended);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        assert!(sandbox.expires_at_unix.is_some_and(|expires| expires <= now + TTL + 1), "{sandbox:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn until_expired(world: &World, id: &str) -> Result<(), Failure> {
    world.until("its time is over", |world| Ok(world.sandbox(id)?.state == SandboxState::Ended))?;
    assert_eq!(world.sandbox(id)?.ended.map(|it| it.reason), Some(EndReason::Expired));
    Ok(())
}

/// The id of the only sandbox, once it is there.
fn only(world: &World) -> Result<String, Failure> {
    world.until("there is a sandbox", |world| Ok(!world.sandboxes("")?.is_empty()))?;
    Ok(world.sandboxes("")?.remove(0).id)
}

#[test]
fn sandboxes_of_a_client_that_is_gone_expire() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-ttl", &TTL.to_string()])?;
    let kept = world.fork("base", 1)?.remove(0).id;
    let id = {
        let mcp = Mcp::open(&address, None)?;
        mcp.text("run", json!({ "command": "true", "sandbox": kept }))?;
        mcp.sandbox()?
    };
    world.until("its time is over", |world| Ok(world.sandbox(&id)?.state == SandboxState::Ended))?;
    assert_eq!(world.sandbox(&id)?.ended.map(|it| it.reason), Some(EndReason::Expired));
    // One that was made in another way stays.
    assert_eq!(world.sandbox(&kept)?.state, SandboxState::Running);
    Ok(())
}

#[test]
fn a_client_that_vanishes_in_a_long_run_leaves_a_sandbox_that_expires() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-ttl", &TTL.to_string()])?;
    let long = json!({ "command": "stall", "timeout_secs": 3600 });
    let call = call_unheard(&address, "run", &long)?;
    let id = only(&world)?;
    stays(&world, &id)?;
    drop(call);
    until_expired(&world, &id)?;
    world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;

    let mut child = call_over_stdio(&world, "run", &long)?;
    let id = only(&world)?;
    stays(&world, &id)?;
    child.kill()?;
    child.wait()?;
    until_expired(&world, &id)
}

#[test]
fn a_call_that_ends_does_not_shorten_the_time_of_another() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-ttl", &TTL.to_string()])?;
    let mcp = Mcp::open(&address, None)?;
    let id = mcp.sandbox()?;
    let short =
        call_unheard(&address, "run", &json!({ "command": "stall", "sandbox": id, "timeout_secs": 2 }))?;
    let long =
        call_unheard(&address, "run", &json!({ "command": "stall", "sandbox": id, "timeout_secs": 3600 }))?;
    mcp.text("run", json!({ "command": "true", "sandbox": id }))?;
    stays(&world, &id)?;
    drop((short, long));
    until_expired(&world, &id)
}

#[test]
fn a_fork_renews_its_source_and_all_of_its_copies() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-ttl", &TTL.to_string()])?;
    let source = Mcp::open(&address, None)?.sandbox()?;
    let first = world.sandbox(&source)?.expires_at_unix;
    std::thread::sleep(Duration::from_millis(1100));
    let wanted = json!({ "source": source, "commands": ["true", "stall"], "timeout_secs": 3600 });
    let call = call_unheard(&address, "fork", &wanted)?;
    world.until("there are copies", |world| Ok(world.sandboxes("")?.len() == 3))?;
    assert!(world.sandbox(&source)?.expires_at_unix > first);
    let copies: Vec<String> =
        world.sandboxes("")?.into_iter().map(|it| it.id).filter(|id| *id != source).collect();
    // The one that is done as well: the call has not said yet which it is.
    for id in &copies {
        stays(&world, id)?;
    }
    drop(call);
    for id in &copies {
        until_expired(&world, id)?;
    }
    Ok(())
}

#[test]
fn a_command_whose_call_is_given_up_is_killed() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let mcp = Mcp::stdio(&world)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pid");
    let command = format!("echo $$ > {}; exec sleep 300", file.display());
    let arguments = json!({ "sandbox": id, "command": command, "timeout_secs": 300 });
    let wanted =
        CallToolRequestParams::new("run").with_arguments(arguments.as_object().cloned().ok_or("no object")?);
    mcp.runtime.block_on(async {
        let call = mcp.client().call_tool(wanted);
        assert!(tokio::time::timeout(Duration::from_secs(2), call).await.is_err());
    });
    let pid: u32 = std::fs::read_to_string(&file)?.trim().parse()?;
    world.until("the command is gone", |_| Ok(!std::path::Path::new(&format!("/proc/{pid}")).exists()))
}
