//! Tells the compiler the commit and its date, which `forkd --version` prints.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNKNOWN: &str = "unknown";
/// The variable with the date of a release, in seconds since 1970: https://reproducible-builds.org/specs/source-date-epoch/
const EPOCH: &str = "SOURCE_DATE_EPOCH";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={EPOCH}");
    let checkout = checkout();
    let git = |arguments: &[&str]| checkout.as_deref().and_then(|checkout| git(checkout, arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let epoch = env::var(EPOCH).ok().or_else(|| git(&["log", "-1", "--format=%ct"]));
    let date = epoch.and_then(|epoch| {
        run(Command::new("date").args(["--utc", "+%F", "--date"]).arg(format!("@{epoch}")))
    });
    let build: Vec<String> = [commit.or_else(|| Some(UNKNOWN.into())), date].into_iter().flatten().collect();
    println!("cargo::rustc-env=BUILD_COMMIT={}", build.join(" "));

    // The branch's own file may not exist, since git packs refs. The log of HEAD changes with every commit and checkout.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]).zip(checkout.as_deref());
        let path = path.map(|(path, checkout)| checkout.join(path));
        // cargo runs this again for every build as long as a watched file does not exist.
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// The project's own checkout: an archive of the sources may have been unpacked inside of another one.
fn checkout() -> Option<PathBuf> {
    let checkout = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    checkout.join(".git").exists().then_some(checkout)
}

fn git(checkout: &Path, arguments: &[&str]) -> Option<String> {
    run(Command::new("git").arg("-C").arg(checkout).args(arguments))
}

/// What a command prints if it succeeds and prints something.
fn run(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
