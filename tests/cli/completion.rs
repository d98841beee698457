//! Completion as a shell asks for it: the script that `forkd completions bash` prints calls forkd with these variables.

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use serde_json::json;

use crate::stand_in::{ID, StandIn, image, sandbox, snapshot};
use crate::world::Home;

/// Words that bash is offered for the last word of a line.
fn completed(home: &Home, line: &[&str]) -> Result<Vec<String>, Failure> {
    let mut command = home.command(&[&["--", "forkd"], line].concat());
    command
        .env("COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", line.len().to_string());
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{line:?}: {}: {stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn daemon(home: &Home) -> Result<StandIn, Failure> {
    StandIn::start(home.path(), &[], |request, _| {
        let mut named = image("sha256:12");
        named["names"] = json!(["python-numpy"]);
        let answer = match request.split('?').next()? {
            "GET /v1/sandboxes" => json!({ "sandboxes": [sandbox()] }),
            "GET /v1/snapshots" => json!({ "snapshots": [snapshot("base"), snapshot("warm")] }),
            "GET /v1/images" => json!({ "images": [named] }),
            _ => return None,
        };
        Some((200, answer.to_string()))
    })
}

#[test]
fn commands_and_options_are_completed() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_eq!(completed(&home, &["roll"])?, ["rollback"]);
    assert_eq!(completed(&home, &["snapshot", "hist"])?, ["history"]);
    assert_eq!(completed(&home, &["branch", "--ta"])?, ["--tag"]);
    Ok(())
}

#[test]
fn ids_tags_and_images_of_the_daemon_are_completed() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = daemon(&home)?;
    assert_eq!(completed(&home, &["exec", ""])?.first().map(String::as_str), Some(ID));
    assert_eq!(completed(&home, &["exec", "i01"])?, [ID]);
    assert_eq!(completed(&home, &["rollback", ID, "wa"])?, ["warm"]);
    assert_eq!(completed(&home, &["kill", "--snapshot", "ba"])?, ["base"]);
    assert_eq!(completed(&home, &["image", "inspect", "py"])?, ["python-numpy"]);
    assert_eq!(completed(&home, &["run", "w"])?, ["warm"]);
    Ok(())
}

#[test]
fn copies_complete_sandboxes_and_files() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = daemon(&home)?;
    assert_eq!(completed(&home, &["cp", "i01"])?, [format!("{ID}:")]);
    let file = home.path().join("data.csv");
    std::fs::write(&file, "")?;
    let begun = home.path().join("da");
    assert_eq!(completed(&home, &["cp", &begun.to_string_lossy()])?, [file.to_string_lossy()]);
    Ok(())
}

#[test]
fn completion_without_a_daemon_is_empty_and_quick() -> Result<(), Failure> {
    let home = Home::new()?;
    let begun = std::time::Instant::now();
    assert_eq!(completed(&home, &["rollback", ID, "wa"])?, [""; 0]);
    assert!(begun.elapsed() < PATIENCE);
    Ok(())
}
