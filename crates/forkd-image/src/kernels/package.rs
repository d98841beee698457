//! The kernel's package of the host's distribution, downloaded by apt, which checks its signatures, and unpacked beside
//! the system instead of into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forkd_host::apt::{self, MirrorProblem};
use forkd_host::command::{self, CommandError};
use forkd_host::tool::{self, MissingTool, Tool};

use crate::files::FileError;
use crate::progress::Progress;

const APT_CACHE: Tool = Tool { program: "apt-cache", package: "apt", purpose: "find the kernel's package" };
const LOOK_UP: Duration = Duration::from_secs(60);
const DOWNLOAD: Duration = Duration::from_secs(20 * 60);
const UNPACK: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error(
        "this host is not Debian or Ubuntu, the distributions with a suitable kernel package; give one by path (forkd kernel add --path FILE)"
    )]
    OtherDistribution(#[source] MissingTool),
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("apt does not know the package {0}: run `apt-get update` and try again")]
    Unknown(String),
    #[error("{0}")]
    Unreachable(MirrorProblem),
    #[error("{step} failed: {complaint}")]
    Failed { step: &'static str, complaint: String },
    #[error(transparent)]
    File(#[from] FileError),
}

impl PackageError {
    fn mirror_problem(&self) -> Option<&MirrorProblem> {
        match self {
            PackageError::Unreachable(problem) => Some(problem),
            _ => None,
        }
    }
}

/// Downloads the kernel and its modules into a directory, and returns the root that they are unpacked below.
pub(super) fn download(scratch: &Path, progress: &dyn Progress) -> Result<PathBuf, PackageError> {
    let apt_get = tool::APT_GET.find().map_err(PackageError::OtherDistribution)?;
    let dpkg_deb = tool::DPKG_DEB.find().map_err(PackageError::OtherDistribution)?;
    let is_ubuntu =
        fs::read_to_string("/etc/os-release").is_ok_and(|text| text.lines().any(|line| line == "ID=ubuntu"));
    let meta = if is_ubuntu { "linux-image-virtual" } else { "linux-image-amd64" };
    progress.step("downloading the distribution's kernel");
    let packages = match packages(meta, progress) {
        // A new system has no lists of packages yet.
        Err(PackageError::Unknown(_)) => {
            progress.step("reading the distribution's package lists");
            let mut update = Command::new(&apt_get);
            update.args(["-q", "-o", apt::RETRIES, "-o", "APT::Update::Error-Mode=any", "update"]);
            run(&mut update, "apt-get update", DOWNLOAD, progress)?;
            packages(meta, progress)?
        }
        packages => packages?,
    };
    progress.detail(&packages.join(" "));

    let downloads = scratch.join("packages");
    let root = scratch.join("unpacked");
    for directory in [&downloads, &root] {
        fs::create_dir(directory).map_err(FileError::at("make", directory))?;
    }
    let mut get = Command::new(apt_get);
    // The user that apt would switch to cannot write here.
    get.current_dir(&downloads)
        .args(["-q", "-o", apt::RETRIES, "-o", "APT::Sandbox::User=root", "download"])
        .args(&packages);
    run(&mut get, "apt-get download", DOWNLOAD, progress)?;
    progress.step("unpacking the distribution's kernel");
    for file in crate::files::names(&downloads)? {
        let mut extract = Command::new(&dpkg_deb);
        run(extract.arg("--extract").arg(downloads.join(file)).arg(&root), "dpkg-deb", UNPACK, progress)?;
    }
    Ok(root)
}

/// The packages that hold what a package without content stands for.
fn packages(meta: &str, progress: &dyn Progress) -> Result<Vec<String>, PackageError> {
    let mut show = APT_CACHE.command()?;
    let outcome = command::run(show.args(["show", meta]).env("LC_ALL", "C"), "", LOOK_UP)?;
    let unknown = || PackageError::Unknown(meta.into());
    if !outcome.status.success() {
        return Err(unknown());
    }
    let (record, is_broken) = usable(&outcome.stdout);
    if is_broken {
        progress.warn("the only kernel that apt knows has a bug that crashes guests; run `apt-get update`, or give one by path");
    }
    let image = kernel_package(record).ok_or_else(unknown)?;
    // Ubuntu has the modules in a package of their own.
    let modules = image.replacen("linux-image-", "linux-modules-", 1);
    let mut show = APT_CACHE.command()?;
    let outcome = command::run(show.args(["show", "--no-all-versions", &modules]), "", LOOK_UP)?;
    let has_modules = outcome.status.success() && outcome.stdout.contains("Package:");
    Ok(if has_modules { vec![image, modules] } else { vec![image] })
}

/// The newest of a package's records whose kernel can be used; else the newest, and that it is broken.
fn usable(records: &str) -> (&str, bool) {
    let is_broken = |record: &&str| {
        let version = record.lines().find_map(|line| line.strip_prefix("Version: "));
        version.is_some_and(|version| apt::is_broken_kernel(version.trim()))
    };
    let mut all = records.split("\n\n");
    match all.clone().find(|record| !is_broken(record) && record.contains("Version: ")) {
        Some(record) => (record, false),
        None => all.next().map_or((records, false), |record| (record, is_broken(&record))),
    }
}

/// The kernel among a package's dependencies: `Depends: linux-image-6.1.0-40-amd64 (= 6.1.153-1), …`.
fn kernel_package(record: &str) -> Option<String> {
    let depends = record.lines().find_map(|line| line.strip_prefix("Depends:"))?;
    let names = depends.split([',', '|']).filter_map(|part| part.split_whitespace().next());
    let plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    let mut kernels = names.filter(|name| name.starts_with("linux-image-")).filter(plain);
    kernels.next().map(str::to_owned)
}

fn run(
    command: &mut Command,
    step: &'static str,
    limit: Duration,
    progress: &dyn Progress,
) -> Result<(), PackageError> {
    let attempt = || {
        let outcome = command::run_unless(command, "", limit, &|| progress.is_cancelled())?;
        if outcome.status.success() {
            return Ok(());
        }
        Err(match MirrorProblem::of(&outcome.stderr) {
            Some(problem) => PackageError::Unreachable(problem),
            None => PackageError::Failed { step, complaint: outcome.complaint() },
        })
    };
    apt::retry(attempt, PackageError::mirror_problem, |text| progress.warn(text))
}

#[cfg(test)]
mod tests {
    use super::{kernel_package, usable};

    #[test]
    fn the_kernel_is_found_among_the_dependencies() {
        let debian =
            "Package: linux-image-amd64\nDepends: linux-image-6.1.0-40-amd64 (= 6.1.153-1)\nSize: 1\n";
        assert_eq!(kernel_package(debian).as_deref(), Some("linux-image-6.1.0-40-amd64"));
        let record = |version: &str, abi: u32| {
            format!(
                "Package: linux-image-amd64\nVersion: {version}\nDepends: linux-image-6.1.0-{abi}-amd64 (= {version})\n\n"
            )
        };
        let all = record("6.1.192-1", 55) + &record("6.1.176-1", 50);
        let (chosen, is_broken) = usable(&all);
        assert_eq!(
            (kernel_package(chosen).as_deref(), is_broken),
            (Some("linux-image-6.1.0-50-amd64"), false)
        );
        let broken = record("6.1.192-1", 55);
        assert_eq!(usable(&broken), (broken.trim_end(), true));
        assert_eq!(usable(debian), (debian, false));
        let ubuntu = "Depends: linux-base, linux-image-6.8.0-31-generic, linux-modules-extra\n";
        assert_eq!(kernel_package(ubuntu).as_deref(), Some("linux-image-6.8.0-31-generic"));
        assert_eq!(kernel_package("Depends: libc6\n"), None);
        assert_eq!(kernel_package("Depends: linux-image-$(x)\n"), None);
        assert_eq!(kernel_package(""), None);
    }
}
