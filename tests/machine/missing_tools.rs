//! Hosts that lack a program.

use std::path::Path;
use std::process::Command;

use forkd_host::tool::{self, Tool};
use forkd_tests::binaries;
use forkd_tests::{TestResult, check};
use serde_json::Value;

use crate::world::{Failure, World};

/// A PATH with every program that forkd needs but one.
fn path_without(missing: Tool, directory: &Path) -> Result<(), Failure> {
    for tool in
        [tool::QEMU, tool::QEMU_IMG, tool::MMDEBSTRAP, tool::SSH, tool::SSH_KEYGEN, tool::TAR, tool::UNSHARE]
    {
        if tool != missing {
            std::os::unix::fs::symlink(tool.find()?, directory.join(tool.program))?;
        }
    }
    Ok(())
}

pub fn each_is_named_with_its_package() -> TestResult {
    for missing in [tool::QEMU, tool::QEMU_IMG, tool::MMDEBSTRAP, tool::SSH, tool::SSH_KEYGEN] {
        let world = World::without_image()?;
        let path = tempfile::tempdir()?;
        path_without(missing, path.path())?;
        let output = world.command(&["init"]).env("PATH", path.path()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        check!(output.status.code() == Some(1), "{}: {}", missing.program, output.status);
        let expected = format!("{} is needed to", missing.program);
        let package = format!("apt-get install {}", missing.package);
        check!(said.contains(&expected) && said.contains(&package), "{}: it says: {said}", missing.program);
        check!(world.machine_files()?.is_empty(), "a machine was made without {}", missing.program);
    }
    Ok(())
}

/// Without native KVM and without QEMU nothing can run, and the exit status says so.
pub fn the_doctor_names_them_too() -> TestResult {
    let home = tempfile::tempdir()?;
    let path = tempfile::tempdir()?;
    path_without(tool::QEMU, path.path())?;
    let output = Command::new(binaries::directory().join("forkd"))
        .args(["doctor", "--json"])
        .env("PATH", path.path())
        .env("FORKD_HOME", home.path())
        .output()?;
    let diagnosis: Value = serde_json::from_slice(&output.stdout)?;
    let checks = diagnosis["checks"].as_array().ok_or("no checks")?;
    let qemu = checks.iter().find(|check| check["name"] == "qemu").ok_or("no check of QEMU")?;
    check!(qemu["status"] == "failed" && qemu["hint"] == "apt-get install qemu-system-x86", "{qemu}");
    let expected = match diagnosis["way"].as_str() {
        Some("native") => 0,
        Some("none") => 1,
        other => return Err(format!("the way is {other:?} without QEMU").into()),
    };
    check!(output.status.code() == Some(expected), "{}: {diagnosis}", output.status);
    Ok(())
}
