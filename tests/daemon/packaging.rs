//! The systemd unit: systemd understands it, it stays as tight as it is, and the daemon understands what it is started with.

use std::fs;
use std::path::Path;
use std::process::Command;

use forkd_tests::engine::process::Failure;
use forkd_tests::{binaries, check};
use rustix::process::{Signal, getgid};
use tempfile::TempDir;

use crate::world::World;

const UNIT: &str = include_str!("../../packaging/forkd.service");
/// What `systemd-analyze security` may find, of 100. Lower is better: what the unit allows is what the daemon needs.
const MOST_EXPOSED: &str = "50";

/// The unit, with the program that was built.
fn unit() -> Result<TempDir, Failure> {
    let directory = tempfile::tempdir()?;
    let program = binaries::directory().join("forkd");
    let text = UNIT.replace("/usr/bin/forkd", &program.display().to_string());
    fs::write(directory.path().join("forkd.service"), text)?;
    Ok(directory)
}

fn analyze(arguments: &[&str], unit: &Path) -> Result<String, Failure> {
    let run = Command::new("systemd-analyze").args(arguments).arg(unit).output();
    let run = run.map_err(|error| format!("systemd-analyze (scripts/setup installs it): {error}"))?;
    let transcript = binaries::transcript(&run);
    check!(run.status.success(), "{transcript}");
    Ok(transcript)
}

#[test]
fn systemd_understands_the_unit_and_finds_it_tight() -> Result<(), Failure> {
    let directory = unit()?;
    let unit = directory.path().join("forkd.service");
    let said = analyze(&["verify", "--man=no"], &unit)?;
    check!(!said.contains("forkd.service:"), "systemd warns: {said}");
    let threshold = format!("--threshold={MOST_EXPOSED}");
    analyze(&["security", "--offline=true", "--no-pager", &threshold], &unit)?;
    // Without these, a restart of the daemon would end every sandbox.
    for line in ["KillMode=process", "OOMPolicy=continue"] {
        check!(UNIT.lines().any(|is| is == line), "{line} is missing");
    }
    Ok(())
}

#[test]
fn the_daemon_understands_what_the_unit_starts_it_with() -> Result<(), Failure> {
    let start = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/forkd serve "));
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let words = start.ok_or("no ExecStart")?.split_whitespace().map(|word| match word {
        "/run/forkd/forkd.sock" => at("forkd.sock"),
        "/var/log/forkd/audit.jsonl" => at("audit.jsonl"),
        // The group is one that the package makes.
        "forkd" => getgid().as_raw().to_string(),
        word => word.to_owned(),
    });
    let words: Vec<String> = words.collect();
    let mut world = World::new()?;
    world.end(Signal::TERM)?;
    world.launch(&words.iter().map(String::as_str).collect::<Vec<_>>(), &[])?;
    let socket = directory.path().join("forkd.sock");
    world.until("it answers where the unit says", |_| {
        Ok(crate::client::send(&socket, "GET /healthz", "", None).is_ok_and(|answer| answer.status == 200))
    })?;
    world.until("it keeps an audit log", |_| {
        Ok(fs::read_to_string(at("audit.jsonl"))?.contains("/healthz"))
    })?;
    world.end(Signal::TERM)
}
