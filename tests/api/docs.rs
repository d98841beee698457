//! What documents tell users to type, typed.

use std::fs;
use std::path::Path;
use std::process::Output;

use forkd_tests::daemon::Daemon;
use forkd_tests::documents::{OUTPUT, Run, Script, Shown, differences, shown};
use forkd_tests::library::DEBIAN;
use forkd_tests::{TestResult, binaries, check};
use tempfile::TempDir;

type Error = Box<dyn std::error::Error + Send + Sync>;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The commands of sections of a page.
fn commands(page: &str, sections: &[&str]) -> Result<Vec<Shown>, Error> {
    let mut commands = shown(&fs::read_to_string(Path::new(ROOT).join(page))?);
    commands.retain(|command| sections.contains(&command.section.as_str()));
    check!(!commands.is_empty(), "the sections of {page} have other names");
    Ok(commands)
}

/// Runs commands with the tests' image in the place of the documents'. Returns the files of their output, too.
fn run(daemon: &Daemon, page: &str, commands: &[Shown]) -> Result<(Output, TempDir), Error> {
    let mut script = Script::default();
    for command in commands {
        let typed = command.text.replace("forkd snapshot numpy ", &format!("forkd snapshot {DEBIAN} "));
        script.add(page, command, &Run::Foreground(typed));
    }
    let directory = tempfile::tempdir()?;
    let path = std::env::var("PATH")?;
    let output = daemon
        .program("sh")
        .args(["-c", &script.finish()])
        .env("PATH", format!("{}:{path}", binaries::directory().display()))
        .env("FORKD_HOME", Path::new("/nonexistent"))
        .env(OUTPUT, directory.path())
        .output()?;
    check!(output.status.success(), "{}", binaries::transcript(&output));
    Ok((output, directory))
}

/// The build and the image are those of the tests; from there on, it is as it is written.
pub fn the_readme_and_the_quickstart_fork_and_branch() -> TestResult {
    let daemon = Daemon::start()?;
    let readme = commands("README.md", &["forkd"])?;
    let (_, output) = run(&daemon, "README.md", &readme)?;
    let wrong = differences("README.md", &readme, output.path())?;
    check!(wrong.is_empty(), "{}", wrong.join("\n"));

    // The quickstart's snapshot is the same.
    daemon.run(&["kill", "--all"])?;
    daemon.run(&["snapshot", "rm", "half"])?;
    let quickstart = commands("docs/quickstart.md", &["3. Forks", "4. A branch"])?;
    let (output, _) = run(&daemon, "docs/quickstart.md", &quickstart)?;
    let printed = String::from_utf8(output.stdout)?;
    let lines = |wanted: &str| printed.lines().filter(|line| *line == wanted).count();
    check!(lines("[0.0, 0.0, 0.0, 0.0, 0.0]") == 10 && lines("20") == 2, "{printed}");
    Ok(())
}
