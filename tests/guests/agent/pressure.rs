//! Much of everything in one guest: output that is read slowly, many processes, a full disk, a killed interpreter. The agent
//! stays up, stays small, and says what happened.

use std::time::{Duration, Instant};

use forkd_tests::check;
use forkd_tests::measure::print;
use hyper::StatusCode;
use serde_json::json;

use super::client::{Client, stdout_of};
use super::world::{Failure, World};

/// Enough for a thousand processes.
const MEMORY: u64 = 1 << 30;
/// What a slow reader may cost the agent.
const MAX_GROWTH_KIB: u64 = 4 << 10;
/// What the agent takes after all of it.
const MAX_AFTER_KIB: u64 = 12 << 10;

pub async fn test(world: &World, mebibytes: u64, processes: usize) -> Result<(), Failure> {
    let vm = world.bring_up("pressure", MEMORY, false).await?;
    let client = Client::new(&vm.agent);
    flood(&client, mebibytes).await?;
    many(&client, processes).await?;
    full_disk(&client).await?;
    killed_interpreter(&client).await?;
    let after = client.agent_kib("VmRSS").await?;
    print(
        &json!({ "measure": "agent_after_pressure_kib", "resident": after, "peak": client.agent_kib("VmHWM").await? }),
    )?;
    check!(after < MAX_AFTER_KIB, "the agent keeps {after} KiB");
    Ok(())
}

/// A process prints much, to a client that stops reading for a while and then reads everything.
async fn flood(client: &Client<'_>, mebibytes: u64) -> Result<(), Failure> {
    let before = client.agent_kib("VmRSS").await?;
    let begun = Instant::now();
    let bytes = mebibytes << 20;
    let mut events = client.start(&["sh", "-c", &format!("yes | head -c {bytes}")]).await?;
    // Time for the agent to swallow what it should not.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let waiting = client.agent_kib("VmRSS").await?;
    let (mut read, mut largest) = (0_u64, waiting);
    let mut next_look = bytes / 4;
    while let Some(event) = events.next().await? {
        let output = stdout_of(&event)?;
        check!(output.iter().all(|byte| matches!(byte, b'y' | b'\n')), "wrong bytes after {read}");
        read += output.len() as u64;
        if read >= next_look {
            next_look += bytes / 4;
            largest = largest.max(client.agent_kib("VmRSS").await?);
        }
    }
    print(&json!({
        "measure": "slow_reader", "mebibytes": mebibytes, "seconds": begun.elapsed().as_secs_f64(),
        "agent_before_kib": before, "agent_largest_kib": largest,
    }))?;
    check!(read == bytes, "{read} of {bytes} bytes came");
    check!(largest < before + MAX_GROWTH_KIB, "the agent grew from {before} to {largest} KiB");
    Ok(())
}

/// Processes that all live at once, each with a client.
async fn many(client: &Client<'_>, processes: usize) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut all = Vec::new();
    for _ in 0..processes {
        all.push(client.start(&["sleep", "100000"]).await?);
    }
    let alive = client.run(&["sh", "-c", "grep -lx sleep /proc/[0-9]*/comm | wc -l"]).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let resident = client.agent_kib("VmRSS").await?;
    client.run(&["sh", "-c", "kill $(grep -lx sleep /proc/[0-9]*/comm | cut -d/ -f3)"]).await?;
    for mut events in all {
        let mut ended = false;
        while let Some(event) = events.next().await? {
            ended |= event["end"].is_object();
        }
        check!(ended, "a process that was killed has no end");
    }
    print(&json!({
        "measure": "processes_at_once", "processes": processes, "seconds_to_start": seconds,
        "agent_resident_kib": resident,
    }))?;
    check!(alive.trim() == processes.to_string(), "{} of {processes} processes are alive", alive.trim());
    Ok(())
}

/// The guest's own disk is filled to the last block.
async fn full_disk(client: &Client<'_>) -> Result<(), Failure> {
    // In one piece as far as it goes, then the rest.
    let fill = "fallocate -l $(($(stat -f -c '%a * %S' /)  - 50000000)) /filler; head -c 100000000 /dev/zero > /filler-2; true";
    client.run(&["sh", "-c", fill]).await?;
    let (status, message) = client.upload("/upload", vec![7; 1 << 20]).await?;
    check!(status == StatusCode::INSUFFICIENT_STORAGE, "an upload to a full disk: {status} {message}");
    let written = client.python("open('/more', 'wb').write(bytes(1 << 20))").await?;
    let error = written.error.ok_or("Python could write to a full disk")?;
    check!(error.to_string().contains("No space left on device"), "{error}");
    client.run(&["rm", "-f", "/filler", "/filler-2", "/more"]).await?;
    let (status, message) = client.upload("/upload", vec![7; 1 << 20]).await?;
    check!(status.is_success(), "an upload after the disk has room again: {status} {message}");
    Ok(())
}

/// An interpreter that is killed says so, and the next code finds another.
async fn killed_interpreter(client: &Client<'_>) -> Result<(), Failure> {
    let killed = client.python("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)").await?;
    let error = killed.error.ok_or("a killed interpreter says nothing")?;
    check!(error["name"] == "InterpreterEnded" && error["value"].to_string().contains("killed"), "{error}");
    let next = client.python("6 * 7").await?;
    check!(next.text == "42", "{next:?}");
    Ok(())
}
