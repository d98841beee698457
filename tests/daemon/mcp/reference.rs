//! The tools of deeplethe/forkd's MCP server, under their names.

use std::time::Duration;

use forkd_tests::engine::process::Failure;
use forkd_tests::tiny_library::fill;
use serde_json::{Value, json};

use super::{Mcp, open_daemon};
use crate::world::World;

const TOOLS: [&str; 11] = [
    "list_snapshots",
    "spawn_sandboxes",
    "branch_sandbox",
    "create_snapshot",
    "wait_for_text",
    "list_sandboxes",
    "get_sandbox",
    "kill_sandbox",
    "exec_command",
    "eval_code",
    "ping_sandbox",
];

#[test]
fn the_references_tools_are_offered_by_name() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-tools", "reference"])?;
    let mcp = Mcp::open(&address, None)?;
    assert_eq!(mcp.tools()?, TOOLS);
    assert_eq!(mcp.data("list_sandboxes", json!({}))?["result"], json!([]));
    assert_eq!(mcp.data("list_snapshots", json!({}))?["result"][0]["tag"], "base");
    let spawned =
        mcp.data("spawn_sandboxes", json!({ "snapshot_tag": "base", "n": 2, "per_child_netns": true }))?;
    let id = spawned["result"][0]["id"].as_str().ok_or("no id")?.to_owned();
    let ids = |list: &Value| -> Vec<Value> {
        list["result"].as_array().into_iter().flatten().map(|sandbox| sandbox["id"].clone()).collect()
    };
    let (spawned, listed) = (ids(&spawned), ids(&mcp.data("list_sandboxes", json!({}))?));
    assert!(listed.len() == 2 && spawned.iter().all(|id| listed.contains(id)), "{listed:?} {spawned:?}");
    let ran = mcp.data("exec_command", json!({ "sandbox_id": id, "args": ["fail", "5"] }))?;
    assert_eq!(ran, json!({ "stdout": "it is\nbroken\n", "stderr": "", "exit_code": 5 }));
    assert_eq!(mcp.data("eval_code", json!({ "sandbox_id": id, "code": "fail" }))?["exit_code"], 0);
    assert_eq!(mcp.data("ping_sandbox", json!({ "sandbox_id": id }))?["pong"], true);
    let branch = json!({ "sandbox_id": id, "tag": "saved", "mode": "diff", "wait": true });
    assert_eq!(mcp.data("branch_sandbox", branch)?["tag"], "saved");
    assert_eq!(mcp.data("get_sandbox", json!({ "sandbox_id": id }))?["branches"], json!(["saved"]));
    let refused = mcp
        .refused("create_snapshot", json!({ "tag": "x", "kernel": "/boot/vmlinuz", "rootfs": "/r.ext4" }))?;
    assert!(refused.contains("forkd image import"), "{refused}");
    assert_eq!(mcp.data("kill_sandbox", json!({ "sandbox_id": id }))?, json!({ "id": id, "killed": true }));
    assert_eq!(world.sandboxes("")?.len(), 1);
    Ok(())
}

#[test]
fn a_snapshot_is_made_of_an_image_of_the_library() -> Result<(), Failure> {
    let (world, _agents, address) = open_daemon(&["--mcp-tools", "reference"])?;
    fill(&world.library())?;
    let mcp = Mcp::open(&address, None)?;
    let wanted = json!({ "tag": "made", "kernel": "default", "rootfs": "empty", "tap": "tap0" });
    assert_eq!(mcp.data("create_snapshot", wanted)?["tag"], "made");
    let spawned = mcp.data("spawn_sandboxes", json!({ "snapshot_tag": "made" }))?;
    assert_eq!(spawned["result"][0]["snapshot_tag"], "made");
    let named = json!({ "tag": "other", "kernel": "none", "rootfs": "empty" });
    assert!(mcp.refused("create_snapshot", named)?.starts_with("Cannot make snapshot other: "));
    Ok(())
}

/// The guest is this host, with the real agent.
#[test]
fn text_of_a_file_is_waited_for() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let mcp = Mcp::stdio_with(&world, &["--tools", "reference"])?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("log");
    let wait = |marker: &str, timeout_secs: u64| {
        let path = path.display().to_string();
        let wanted = json!({
            "sandbox_id": id, "path": path, "marker": marker, "timeout_secs": timeout_secs, "poll_interval_ms": 50,
        });
        mcp.data("wait_for_text", wanted)
    };
    // The file is not there yet, and then it is not complete.
    let written = path.clone();
    let writing = std::thread::spawn(move || {
        for text in ["booting", "booting\nserver is ready\n"] {
            std::thread::sleep(Duration::from_millis(300));
            std::fs::write(&written, text)?;
        }
        Ok::<_, std::io::Error>(())
    });
    let found = wait("is ready", 60)?;
    writing.join().map_err(|_| "it panicked")??;
    assert_eq!(
        (&found["found"], &found["last_excerpt"]),
        (&json!(true), &json!("booting\nserver is ready\n"))
    );
    assert!(found["elapsed_ms"].as_u64().is_some_and(|elapsed| elapsed >= 300), "{found}");
    let missed = wait("is gone", 1)?;
    assert_eq!(missed["found"], false);
    Ok(())
}
