//! The lists of ARCHITECTURE.md are the modules that requests pass, in this order.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forkd_api::snapshot::SnapshotStatus;
use forkd_proto::passes::VARIABLE;
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use serde_json::json;

use crate::world::World;

/// Files of this crate run in a guest, which has a stand-in for its agent here.
const IN_GUESTS: &str = "crates/forkd-agent/";

/// What goes on by itself shows within this time.
const QUIET: Duration = Duration::from_millis(300);

/// The files that the numbered lists of a section name, in this order.
fn listed(section: &str) -> Vec<String> {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md");
    let document = fs::read_to_string(document).expect("ARCHITECTURE.md is there");
    let (_, after) = document.split_once(&format!("\n## {section}\n")).expect("it has the section");
    let (list, _) = after.split_once("\n## ").expect("another one follows");
    let numbered =
        |line: &&str| line.starts_with(|first: char| first.is_ascii_digit()) || line.starts_with("   ");
    let lines = list.lines().skip_while(|line| !numbered(line)).take_while(numbered);
    let spans = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    let files = spans.filter(|span| span.ends_with(".rs") && !span.starts_with(IN_GUESTS));
    files.map(str::to_owned).collect()
}

/// The files that were passed, each when it was first.
fn passed(log: &Path) -> Result<Vec<String>, Failure> {
    let mut files: Vec<String> = Vec::new();
    for file in fs::read_to_string(log)?.lines() {
        if !files.iter().any(|known| known == file) {
            files.push(file.to_owned());
        }
    }
    fs::write(log, "")?;
    Ok(files)
}

#[test]
fn the_map_shows_the_way_that_requests_take() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let mut again = Command::new(std::env::current_exe()?);
    again.args(["--ignored", "--exact", "--nocapture", "paths::traced"]);
    let output = again.env(VARIABLE, directory.path().join("passed")).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

#[test]
#[ignore = "with the variable, by the test above"]
fn traced() -> Result<(), Failure> {
    let Some(log) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let log = Path::new(&log);
    let (world, _agents) = World::with_agents(&[])?;
    // What writes a snapshot speaks with the daemon, too.
    let is_on_disk = |tag: &str| -> Result<(), Failure> {
        world.until("the snapshot is on disk", |world| {
            Ok(world.snapshot(tag)?.status == SnapshotStatus::Ready)
        })?;
        // A daemon that has just started speaks with what it finds.
        world.until("nothing goes on", |_| {
            passed(log)?;
            std::thread::sleep(QUIET);
            Ok(fs::read_to_string(log)?.is_empty())
        })
    };
    let forkd = |words: &[&str]| -> Result<String, Failure> {
        let output = binaries::forkd(world.home(), words).output()?;
        assert!(output.status.success(), "{}", binaries::transcript(&output));
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };

    let same = |section: &str| -> Result<(), Failure> {
        assert_eq!(
            passed(log)?,
            listed(section),
            "left: what is passed; right: what ARCHITECTURE.md lists: {section}"
        );
        Ok(())
    };
    is_on_disk("base")?;
    let id = forkd(&["fork", "base"])?;
    same("The path of a fork request")?;
    forkd(&["branch", &id, "--tag", "branch"])?;
    same("The path of a branch")?;
    is_on_disk("branch")?;
    world.tell(&format!("POST /v1/sandboxes/{id}/exec"), json!({ "args": ["true"] }))?;
    same("The path of an exec")?;
    let key = format!("x-api-key: {}\r\n", world.token("paths", "run")?);
    passed(log)?;
    let made = world.tell_with(&key, "POST /v2/sandboxes", json!({ "templateID": "base" }))?;
    assert_eq!(made.status, 201, "{}", made.body);
    same("The path of an E2B client's request")
}
