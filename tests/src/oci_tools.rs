//! cosign and oras, as `scripts/oci-tools` puts them into a directory.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::engine::process::Failure;

/// Runs one of them, which must succeed; returns its standard output. They are set up below `target` the first time.
pub fn run(
    target: &Path,
    tool: &str,
    home: &Path,
    arguments: &[&dyn AsRef<OsStr>],
) -> Result<Vec<u8>, Failure> {
    let directory = target.join("oci-tools");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/oci-tools");
    let set_up = Command::new(script).arg(&directory).output()?;
    if !set_up.status.success() {
        return Err(String::from_utf8_lossy(&set_up.stderr).into());
    }
    let output = Command::new(directory.join("bin").join(tool))
        .args(arguments.iter().map(|argument| (*argument).as_ref()))
        .env("HOME", home)
        .env("COSIGN_PASSWORD", "")
        .current_dir(home)
        .output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
