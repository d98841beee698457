//! The binaries under test: those built with the same profile as the test that is running.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The directory of `forkd` and its companions, `target/PROFILE`.
///
/// # Panics
///
/// If they were not built: that is a mistake in how the tests were started, not a result.
pub fn directory() -> PathBuf {
    let executable = std::env::current_exe().expect("the test knows its own path");
    let above = |path: &Path| path.parent().map(Path::to_owned).expect("the test is somewhere below target/");
    let directory = above(&executable);
    let directory = if directory.ends_with("deps") { above(&directory) } else { directory };
    for name in ["forkd", "forkd-vmm"] {
        assert!(
            directory.join(name).is_file(),
            "{name} is not in {}: build it first (make e2e does)",
            directory.display()
        );
    }
    directory
}

/// `forkd` with these arguments, its files in `home`.
pub fn forkd(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(directory().join("forkd"));
    // The host's networks are one daemon's, and a test has to be alone to be that one.
    command.env("FORKD_NETWORK", "none");
    command.args(arguments).env(forkd_host::home::HOME_VARIABLE, home).stdin(Stdio::null());
    command
}

/// Puts an executable file where a test wants it.
///
/// Another process writes it: as long as this one has it open for writing, so has every child that another thread forks in this
/// moment, and nobody can run it.
pub fn install(from: &Path, to: &Path) -> crate::TestResult {
    let installed = Command::new("install").args(["-m", "755"]).args([from, to]).output()?;
    crate::check!(installed.status.success(), "{}", transcript(&installed));
    Ok(())
}

/// The same with a script.
pub fn install_script(script: &str, to: &Path) -> crate::TestResult {
    let beside = to.with_extension("script");
    std::fs::write(&beside, script)?;
    install(&beside, to)?;
    Ok(std::fs::remove_file(beside)?)
}

/// What a command said, for a failed test to show.
pub fn transcript(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}\nstdout: {}\nstderr: {}", output.status, text(&output.stdout), text(&output.stderr))
}
