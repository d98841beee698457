//! What the verbs do when nothing is wrong.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use forkd_tests::{TestResult, check};
use serde_json::Value;

use crate::world::{Failure, World};

pub fn exec_passes_streams_and_status() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    world.forkd(&["start"])?;

    // Every byte value, more than any pipe holds, both ways.
    let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let mut child = world
        .command(&["exec", "--", "sh", "-c", "cat; echo aside >&2; exit 42"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let writer = std::thread::spawn({
        let sent = sent.clone();
        move || stdin.write_all(&sent)
    });
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    check!(
        output.stdout == sent,
        "{} bytes went in, {} other bytes came out",
        sent.len(),
        output.stdout.len()
    );
    check!(String::from_utf8_lossy(&output.stderr).contains("aside"), "stderr is lost");
    check!(output.status.code() == Some(42), "the status is {}", output.status);

    for (script, expected) in
        [("exit 0", 0), ("exit 255", 255), ("kill -TERM $$", 128 + 15), ("no-such-command", 127)]
    {
        let status = world.output(&["exec", "--", "sh", "-c", script])?.status;
        check!(status.code() == Some(expected), "{script}: {status}, not {expected}");
    }
    // Words arrive as they were given.
    let words = ["printf", "%s|", "a b", "$HOME", "it's", "", "*", "--json"];
    check!(world.exec(&words)? == "a b|$HOME|it's||*|--json|", "the words were changed");

    check!(world.forkd(&["logs"])?.contains("forkd-machine: up"), "the console's log is missing");
    world.forkd(&["stop"])?;
    let refused = world.refused(&["exec", "--", "true"])?;
    check!(refused.contains("is stopped; start it with"), "exec on a stopped machine says: {refused}");
    Ok(())
}

/// A rebuilt binary shows in the running machine at once.
pub fn the_host_s_binaries_are_visible_and_read_only() -> TestResult {
    let world = World::new()?;
    let binaries = world.home().join("binaries, and more");
    fs::create_dir(&binaries)?;
    for name in ["forkd", "forkd-vmm"] {
        fs::copy(forkd_tests::binaries::directory().join(name), binaries.join(name))?;
    }
    let forkd = |arguments: &[&str]| -> Result<String, Failure> {
        let mut command = std::process::Command::new(binaries.join("forkd"));
        let output = command.arg("machine").args(arguments).env("FORKD_HOME", world.home()).output()?;
        check_output(&output)?;
        Ok(String::from_utf8(output.stdout)?)
    };
    forkd(&["init"])?;
    forkd(&["start"])?;
    check!(
        forkd(&["exec", "--", "forkd", "--version"])?.starts_with("forkd "),
        "forkd does not run in the machine"
    );
    fs::write(binaries.join("new"), "#!/bin/sh\necho new\n")?;
    check!(forkd(&["exec", "--", "sh", "/opt/forkd/bin/new"])? == "new\n", "a new file is not seen");
    let write = world.output(&["exec", "--", "touch", "/opt/forkd/bin/forkd"])?;
    check!(!write.status.success(), "the machine may write to the host's binaries");
    Ok(())
}

fn check_output(output: &std::process::Output) -> TestResult {
    check!(output.status.success(), "{}", forkd_tests::binaries::transcript(output));
    Ok(())
}

pub fn machines_are_listed_with_their_states() -> TestResult {
    let world = World::new()?;
    let list = || -> Result<Value, Failure> { Ok(serde_json::from_str(&world.forkd(&["ls", "--json"])?)?) };
    check!(list()? == serde_json::json!([]), "an empty home has machines");
    world.forkd(&["init", "--name", "b", "--memory", "1G", "--disk", "8G"])?;
    let warning = world.output(&["init", "--name", "a", "--cpus", "2"])?;
    let emulated = forkd_host::kvm::probe(&forkd_tests::binaries::directory())?.kvm.state() != "good";
    let warned = String::from_utf8_lossy(&warning.stderr).contains("unreliable under emulation");
    check!(warned == emulated, "a warning about two CPUs: {warned}; emulated: {emulated}");
    world.forkd(&["start", "--name", "b"])?;

    let machines = list()?;
    let column = |field: &str| (machines[0][field].clone(), machines[1][field].clone());
    check!(column("name") == ("a".into(), "b".into()), "{machines}");
    check!(column("state") == ("stopped".into(), "running".into()), "{machines}");
    check!(column("cpus").0 == 2, "{machines}");
    check!((column("memory_mib").1, column("disk_mib").1) == (1024.into(), 8192.into()), "{machines}");
    check!(machines[1]["heartbeat"]["uptime_seconds"].is_f64(), "{machines}");

    let exec = |script: &str| world.forkd(&["exec", "--name", "b", "--", "sh", "-c", script]);
    check!(exec("hostname")? == "b\n", "the machine has another name");
    let disk: u64 = exec("df --output=size -BM / | tail -1 | tr -dc 0-9")?.parse()?;
    check!((7000..8192).contains(&disk), "the file system did not grow to its disk: {disk} MiB");
    Ok(())
}

pub fn wrong_usage_is_refused() -> TestResult {
    let world = World::without_image()?;
    for arguments in [
        &["init", "--name", "../up"] as &[&str],
        &["init", "--memory", "lots"],
        &["init", "--cpus", "-1"],
        &["exec", "--"],
        &["fly"],
    ] {
        let status = world.output(arguments)?.status;
        check!(status.code() == Some(2), "{arguments:?}: {status}");
    }
    for (arguments, words) in [
        (&["init", "--memory", "100M"] as &[&str], "at least 512 MiB of memory"),
        (&["init", "--disk", "1G"], "a disk of at least"),
        (&["init", "--cpus", "0"], "1 to 255 CPUs"),
        (&["start"], "there is no machine default; make it with: forkd machine init"),
        (&["status", "--name", "x"], "there is no machine x"),
        (&["rm"], "there is no machine default"),
    ] {
        let refused = world.refused(arguments)?;
        check!(refused.contains(words), "{arguments:?} says: {refused}");
    }
    check!(world.machine_files()?.is_empty(), "something was made");
    Ok(())
}
