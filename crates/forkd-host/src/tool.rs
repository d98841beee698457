//! Programs of the host that forkd starts, each with the package that brings it.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// A program and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    pub program: &'static str,
    /// Debian's package.
    pub package: &'static str,
    pub purpose: &'static str,
}

pub const QEMU: Tool =
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86", purpose: "run the machine" };
pub const QEMU_IMG: Tool =
    Tool { program: "qemu-img", package: "qemu-utils", purpose: "make the machine's disk" };
pub const MMDEBSTRAP: Tool =
    Tool { program: "mmdebstrap", package: "mmdebstrap", purpose: "build Debian images" };
pub const TAR: Tool = Tool { program: "tar", package: "tar", purpose: "unpack the machine's root image" };
pub const MKE2FS: Tool = Tool { program: "mke2fs", package: "e2fsprogs", purpose: "make file systems" };
pub const DEBUGFS: Tool = Tool { program: "debugfs", package: "e2fsprogs", purpose: "finish file systems" };
pub const APT_GET: Tool = Tool { program: "apt-get", package: "apt", purpose: "download packages" };
pub const DPKG_DEB: Tool = Tool { program: "dpkg-deb", package: "dpkg", purpose: "unpack packages" };
pub const SSH: Tool = Tool { program: "ssh", package: "openssh-client", purpose: "reach the machine" };
pub const SSH_KEYGEN: Tool =
    Tool { program: "ssh-keygen", package: "openssh-client", purpose: "make the machine's keys" };
pub const NEWUIDMAP: Tool =
    Tool { program: "newuidmap", package: "uidmap", purpose: "build the machine's root image without root" };
pub const UNSHARE: Tool = Tool { program: "unshare", package: "util-linux", purpose: "enter namespaces" };
pub const IP: Tool = Tool { program: "ip", package: "iproute2", purpose: "try tap devices" };
pub const NFT: Tool = Tool { program: "nft", package: "nftables", purpose: "filter the sandboxes' network" };

/// The program is not installed.
#[derive(Debug, thiserror::Error)]
#[error("{} is needed to {} and was not found; install the package {} (apt-get install {})", .0.program, .0.purpose, .0.package, .0.package)]
pub struct MissingTool(pub Tool);

impl Tool {
    /// Looks for the program in PATH, then where Debian puts what is meant for root.
    pub fn find(&self) -> Result<PathBuf, MissingTool> {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .map(|directory| directory.join(self.program))
            .find(|candidate| {
                candidate
                    .metadata()
                    .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
            })
            .ok_or(MissingTool(*self))
    }

    /// A command that starts the program.
    pub fn command(&self) -> Result<Command, MissingTool> {
        Ok(Command::new(self.find()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let tool = Tool { program: "no-such-program", package: "some-package", purpose: "test" };
        let message = tool.find().unwrap_err().to_string();
        assert!(
            message.contains("no-such-program") && message.contains("apt-get install some-package"),
            "{message}"
        );
    }

    #[test]
    fn a_tool_is_found() {
        assert!(TAR.find().unwrap().is_absolute());
    }
}
