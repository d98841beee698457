//! The programs of forkd that lie side by side: all of one version?

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Problem;
use crate::command;
use crate::kvm::VMM;

const OWN: &str = env!("CARGO_PKG_VERSION");
const AGENT: &str = "forkd-agent";
const HINT: &str = "install all three programs from one build";
const LIMIT: Duration = Duration::from_secs(10);

pub(super) fn check(binaries: &Path) -> Result<String, Problem> {
    let found = [VMM, AGENT].map(|program| (program, version(&binaries.join(program), program)));
    judge(OWN, &found)
}

/// What `PROGRAM --version` prints after its name.
fn version(path: &Path, program: &str) -> Result<String, String> {
    let outcome = command::run(Command::new(path).arg("--version"), "", LIMIT)
        .map_err(|error| forkd_proto::causes::with_causes(&error))?;
    let words = outcome.stdout.trim().strip_prefix(program).map(str::trim);
    match words.filter(|words| outcome.status.success() && !words.is_empty()) {
        Some(version) => Ok(version.chars().take(40).collect()),
        // Versions before this option existed print their usage.
        None => Err(format!("{program} does not know --version")),
    }
}

fn judge(own: &str, others: &[(&str, Result<String, String>)]) -> Result<String, Problem> {
    let mut different = Vec::new();
    for (program, found) in others {
        match found {
            Ok(version) if version == own => {}
            Ok(version) => different.push(format!("{program} {version}")),
            Err(reason) => different.push(reason.clone()),
        }
    }
    if different.is_empty() {
        return Ok(format!("forkd, {VMM} and {AGENT} {own}"));
    }
    Err(Problem::warning(format!("forkd is {own}; {}", different.join("; ")), HINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(vmm: Result<&str, &str>, agent: Result<&str, &str>) -> Result<String, String> {
        let owned = |found: Result<&str, &str>| found.map(str::to_owned).map_err(str::to_owned);
        judge("2.0.0", &[(VMM, owned(vmm)), (AGENT, owned(agent))]).map_err(|problem| problem.detail)
    }

    #[test]
    fn one_version_is_fine_and_others_are_named() {
        assert_eq!(judged(Ok("2.0.0"), Ok("2.0.0")).unwrap(), "forkd, forkd-vmm and forkd-agent 2.0.0");
        assert_eq!(judged(Ok("1.9.0"), Ok("2.0.0")).unwrap_err(), "forkd is 2.0.0; forkd-vmm 1.9.0");
        let old = judged(Ok("2.0.0"), Err("forkd-agent does not know --version")).unwrap_err();
        assert_eq!(old, "forkd is 2.0.0; forkd-agent does not know --version");
    }

    #[test]
    fn a_missing_program_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let problem = check(empty.path()).unwrap_err();
        assert!(problem.detail.contains("forkd-vmm did not start"), "{}", problem.detail);
    }
}
