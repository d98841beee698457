//! What documents tell users to type, typed.

use std::fs;
use std::path::Path;

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, binaries, check};

use crate::life::snapshot;

const QUICKSTART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/quickstart.md");

/// The commands of a section.
fn commands<'a>(document: &'a str, section: &str) -> Option<&'a str> {
    let (_, below) = document.split_once(&format!("\n## {section}\n"))?;
    let (section, _) = below.split_once("\n## ")?;
    let (_, commands) = section.split_once("```sh\n")?;
    Some(commands.split_once("```")?.0)
}

/// The build and the image are those of the tests; from there on, it is as it is written.
pub fn the_quickstart_forks_and_branches() -> TestResult {
    let document = fs::read_to_string(QUICKSTART)?;
    let script: Option<String> =
        ["3. Forks", "4. A branch"].map(|it| commands(&document, it)).into_iter().collect();
    let script = script.ok_or("the sections have other names")?;
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let path = std::env::var("PATH")?;
    let output = daemon
        .program("sh")
        .args(["-euc", &script])
        .env("PATH", format!("{}:{path}", binaries::directory().display()))
        .env("FORKD_HOME", Path::new("/nonexistent"))
        .output()?;
    check!(output.status.success(), "{}", binaries::transcript(&output));
    let printed = String::from_utf8(output.stdout)?;
    let lines = |wanted: &str| printed.lines().filter(|line| *line == wanted).count();
    check!(lines("[0.0, 0.0, 0.0, 0.0, 0.0]") == 10 && lines("20") == 2, "{printed}");
    Ok(())
}
