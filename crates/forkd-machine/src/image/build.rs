//! Builds the image: Debian's packages into a tar archive, that into a file system, its kernel beside it.
//!
//! Everything happens in a directory beside the result, which gets its name last. The archive's owners and modes are kept
//! by unpacking as root, or, for other users, in a user namespace that maps their subordinate ids.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forkd_host::command::CommandError;
use forkd_host::tool::{self, MissingTool};
use forkd_host::{apt, disk, doctor};
use forkd_image::initramfs::Initramfs;
use forkd_image::{kernel, kernels};

use super::{INITRD, ImageError, KERNEL, ROOT, ROOT_MIB, failed, recipe};
use crate::Progress;
use crate::files::FileError;

/// Directories of builds under way; the lock on the cache says whether one is.
const BUILD_PREFIX: &str = ".build-";

/// Builds the image into `destination`, which is in `images`. The caller holds the lock on `images`.
pub(super) fn build(images: &Path, destination: &Path, progress: &dyn Progress) -> Result<(), ImageError> {
    for tool in [tool::MMDEBSTRAP, tool::TAR, tool::MKE2FS] {
        tool.find()?;
    }
    if !is_root() {
        tool::UNSHARE.find()?;
        tool::NEWUIDMAP.find()?;
    }
    remove_leftovers(images)?;
    disk::require(images, doctor::MACHINE_DISK, "building the machine's image")?;

    let build = tempfile::Builder::new().prefix(BUILD_PREFIX).tempdir_in(images);
    let build = build.map_err(FileError::at("make a directory in", images))?;
    let result = build_in(build.path(), destination, progress);
    // The archive's files may belong to ids that only the namespace may touch, so removal is not the library's.
    let removed = remove_all(&build.keep());
    result.and(removed)
}

fn build_in(build: &Path, destination: &Path, progress: &dyn Progress) -> Result<(), ImageError> {
    let image = build.join("image");
    fs::create_dir(&image).map_err(FileError::at("make", &image))?;
    let archive = build.join("root.tar");

    progress.step("building the machine's image, once: Debian's packages");
    bootstrap(build, &archive, progress)?;
    progress.step("building the machine's image, once: kernel and initial RAM disk");
    extract_kernel(build, &archive, &image)?;
    progress.step("building the machine's image, once: root file system");
    assemble(build, &archive, &image.join(ROOT))?;

    for name in [KERNEL, INITRD, ROOT] {
        let path = image.join(name);
        let seal = || {
            fs::set_permissions(&path, PermissionsExt::from_mode(0o444))?;
            File::open(&path)?.sync_all()
        };
        seal().map_err(FileError::at("finish", &path))?;
    }
    Ok(fs::rename(&image, destination).map_err(FileError::at("make", destination))?)
}

/// Installs the packages into an archive.
fn bootstrap(build: &Path, archive: &Path, progress: &dyn Progress) -> Result<(), ImageError> {
    let mut mmdebstrap = tool::MMDEBSTRAP.command()?;
    mmdebstrap.args(["--variant=minbase", "--format=tar"]).arg(apt::MMDEBSTRAP_RETRIES);
    mmdebstrap.arg(format!("--include={}", recipe::PACKAGES.join(",")));
    for directory in ["doc", "locale", "man", "info"] {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude=/usr/share/{directory}/*"));
    }
    // It runs when apt has its directories, and before anything is downloaded.
    let preferences = apt::kernel_preferences();
    mmdebstrap.arg(format!("--setup-hook=printf '%s' '{preferences}' >\"$1/etc/apt/preferences.d/forkd\""));
    // Half-written files of a host that dies are thrown away with the build: no need to wait for the disk.
    mmdebstrap.arg("--dpkgopt=force-unsafe-io");
    mmdebstrap.arg(recipe::SUITE).arg(archive);
    // The kernel's package would build an initial RAM disk of its own, for minutes in some environments, for nothing.
    mmdebstrap.env("INITRD", "No");
    if std::env::var_os("TMPDIR").is_none() {
        // Half a gigabyte lies there for a while, and /tmp may be memory.
        mmdebstrap.env("TMPDIR", "/var/tmp");
    }
    let log = build.join("mmdebstrap.log");
    let attempt = || logged(&mut mmdebstrap, "mmdebstrap", &log, progress);
    apt::retry(attempt, ImageError::mirror_problem, |text| progress.warn(text))
}

/// Runs a command whose output goes to a log, line by line, and to the user as progress.
fn logged(
    command: &mut Command,
    step: &'static str,
    log: &Path,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    let io = |source| CommandError::Pipe { program: step.into(), source };
    let mut file = File::create(log).map_err(FileError::at("write", log))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(io)?)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| CommandError::Start { program: step.into(), source })?;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line.map_err(io)?;
            file.write_all(&line).and_then(|()| file.write_all(b"\n")).map_err(io)?;
            progress.detail(String::from_utf8_lossy(&line).trim());
        }
    }
    if child.wait().map_err(io)?.success() { Ok(()) } else { Err(failed(step, log)) }
}

/// Takes the kernel and what its initial RAM disk needs from the archive.
fn extract_kernel(build: &Path, archive: &Path, image: &Path) -> Result<(), ImageError> {
    let files = build.join("kernel");
    fs::create_dir(&files).map_err(FileError::at("make", &files))?;
    let mut tar = tool::TAR.command()?;
    tar.args(["--extract", "--no-same-owner", "--wildcards", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(&files);
    tar.args(["./boot/vmlinuz-*", "./usr/lib/modules/*", "./usr/bin/busybox"]);
    quiet(&mut tar, "unpacking the kernel", &build.join("kernel.log"))?;

    let (version, kernel_file) = installed_kernel(&files.join("boot"))?;
    let bytes = read(&kernel_file)?;
    let elf = kernel::to_elf(bytes)?;
    let vmlinux = image.join(KERNEL);
    fs::write(&vmlinux, elf).map_err(FileError::at("write", &vmlinux))?;

    let needed = recipe::BOOT_MODULES.map(|name| (name, true));
    let (modules, _) = kernels::load_modules(&files.join("usr/lib/modules").join(version), &needed)?;
    let mut initramfs = Initramfs::new();
    let path = image.join(INITRD);
    let mut fill = || {
        for directory in ["bin", "dev", "modules", "root"] {
            initramfs.directory(directory)?;
        }
        initramfs.file("init", 0o755, recipe::INITRAMFS_INIT.as_bytes())?;
        initramfs.file("bin/busybox", 0o755, &fs::read(files.join("usr/bin/busybox"))?)
    };
    fill().map_err(FileError::at("fill", &path))?;
    for (number, module) in modules.iter().enumerate() {
        let added =
            initramfs.file(&format!("modules/{number:02}-{}.ko", module.name), 0o644, &module.content);
        added.map_err(FileError::at("fill", &path))?;
    }
    let written = initramfs.finish().and_then(|archive| fs::write(&path, archive));
    Ok(written.map_err(FileError::at("write", &path))?)
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(FileError::at("read", path))
}

/// The version and path of the kernel in `boot`.
fn installed_kernel(boot: &Path) -> Result<(String, PathBuf), ImageError> {
    let entries = fs::read_dir(boot).map_err(|_| ImageError::NoKernel)?;
    let mut kernels: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
            Some((version, path))
        })
        .collect();
    kernels.sort();
    kernels.pop().ok_or(ImageError::NoKernel)
}

/// Unpacks the archive with its owners, adds our files, and makes a file system of it.
fn assemble(build: &Path, archive: &Path, root: &Path) -> Result<(), ImageError> {
    let overlay = build.join("overlay");
    for (path, permissions, content) in recipe::OVERLAY {
        let path = overlay.join(path);
        let place = || {
            fs::create_dir_all(path.parent().unwrap_or(&overlay))?;
            fs::write(&path, content)?;
            fs::set_permissions(&path, PermissionsExt::from_mode(permissions))
        };
        place().map_err(FileError::at("write", &path))?;
    }
    let mut assemble = as_root("sh")?;
    assemble.args(["-c", recipe::ASSEMBLE, "assemble"]);
    assemble.arg(archive).arg(build.join("rootfs")).arg(overlay).arg(root).arg(format!("{ROOT_MIB}M"));
    assemble.arg(tool::MKE2FS.find()?);
    quiet(&mut assemble, "making the root file system", &build.join("assemble.log"))
}

/// Runs a command that only speaks when something is wrong.
fn quiet(command: &mut Command, step: &'static str, log: &Path) -> Result<(), ImageError> {
    struct Silent;
    impl Progress for Silent {
        fn step(&self, _: &str) {}
        fn detail(&self, _: &str) {}
        fn warn(&self, _: &str) {}
    }
    logged(command, step, log, &Silent)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that may give files to any owner: for root that is any command; others run it in a user namespace, in which
/// they are root and their subordinate ids are everybody else.
fn as_root(program: &str) -> Result<Command, MissingTool> {
    if is_root() {
        return Ok(Command::new(program));
    }
    let mut command = tool::UNSHARE.command()?;
    command.args(["--user", "--map-root-user", "--map-auto", "--", program]);
    Ok(command)
}

/// Removes what builds that were killed have left in the cache.
pub(super) fn remove_leftovers(images: &Path) -> Result<(), ImageError> {
    let entries = fs::read_dir(images).map_err(FileError::at("list", images))?;
    for entry in entries {
        let entry = entry.map_err(FileError::at("list", images))?;
        if entry.file_name().to_string_lossy().starts_with(BUILD_PREFIX) {
            remove_all(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_all(directory: &Path) -> Result<(), ImageError> {
    if is_root() {
        return Ok(fs::remove_dir_all(directory).map_err(FileError::at("remove", directory))?);
    }
    let mut rm = as_root("rm")?;
    rm.args(["-rf", "--"]).arg(directory);
    let status = rm.status().map_err(FileError::at("remove", directory))?;
    if status.success() {
        Ok(())
    } else {
        let source = std::io::Error::other(status.to_string());
        Err(FileError::at("remove", directory)(source).into())
    }
}
