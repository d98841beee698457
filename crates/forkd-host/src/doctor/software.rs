//! The programs that the software machine is made with.

use std::time::Duration;

use super::{Check, Need, Problem};
use crate::command;
use crate::tool::{self, Tool};

pub(super) fn check_qemu() -> Result<String, Problem> {
    let missing = |error: tool::MissingTool| {
        Problem::failed(error.to_string(), format!("apt-get install {}", error.0.package))
    };
    let mut qemu = tool::QEMU.command().map_err(missing)?;
    let outcome = command::run(qemu.arg("--version"), "", Duration::from_secs(10))
        .map_err(|error| Problem::failed(error.to_string(), "reinstall qemu-system-x86"))?;
    judge_version(outcome.stdout.lines().next().unwrap_or_default())
}

/// QEMU 7.2 is the version that the machine's reliability was measured with; of 10.0 it is known that `microvm` boots
/// hang often.
fn judge_version(line: &str) -> Result<String, Problem> {
    let version = line.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        None => {
            Err(Problem::failed(format!("unexpected output of QEMU: {line:?}"), "reinstall qemu-system-x86"))
        }
        Some(0..7) => {
            Err(Problem::failed(format!("QEMU {version} is too old"), "install QEMU 7.2, as in Debian 12"))
        }
        Some(10..) => Err(Problem::warning(
            format!("QEMU {version}: the machine's boots are known to hang with it at times"),
            "QEMU 7.2, as in Debian 12, is what the machine was tested with",
        )),
        Some(_) => Ok(format!("QEMU {version}")),
    }
}

/// The other programs, one check each.
pub(super) fn check_tools() -> impl Iterator<Item = Check> {
    let mut tools = vec![tool::QEMU_IMG, tool::MMDEBSTRAP, tool::MKE2FS, tool::SSH];
    if !rustix::process::geteuid().is_root() {
        tools.push(tool::NEWUIDMAP);
    }
    tools.into_iter().map(check_tool)
}

fn check_tool(tool: Tool) -> Check {
    let found = match tool.find() {
        Ok(path) => Ok(path.display().to_string()),
        Err(error) => Err(Problem::failed(error.to_string(), format!("apt-get install {}", tool.package))),
    };
    Check::new(tool.program, Need::Machine, found)
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn versions_are_judged() {
        let status = |line| judge_version(line).err().map(|problem| problem.status);
        assert_eq!(status("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), None);
        assert_eq!(status("QEMU emulator version 9.2.0"), None);
        assert_eq!(status("QEMU emulator version 10.0.2"), Some(Status::Warning));
        assert_eq!(status("QEMU emulator version 5.2.0"), Some(Status::Failed));
        assert_eq!(status("nonsense"), Some(Status::Failed));
        assert_eq!(status(""), Some(Status::Failed));
    }
}
