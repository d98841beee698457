//! The kernel and the images of guests in tests: made on this host, once, and kept beside the binaries.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use forkd_image::Progress;
use forkd_image::debian::{Debian, debian};
use forkd_image::images::{ImageStore, Source};
use forkd_image::kernels::KernelStore;
use rustix::fs::FlockOperation;

use crate::TestResult;
use crate::binaries;
use crate::watch::report;

/// The Debian image of all tests.
pub const DEBIAN: &str = "forkd-tests-debian:latest";

const SUITE: &str = "bookworm";
/// What the official clients' tests use: arrays, plots, tables, JavaScript.
const PACKAGES: [&str; 5] = ["python3", "python3-numpy", "python3-matplotlib", "python3-pandas", "nodejs"];

/// The library, whose kernel and images are made by [`prepare`].
pub fn directory() -> PathBuf {
    binaries::directory().join("test-library")
}

/// Sees to it that there are a kernel, an initial RAM disk with the agent, and the Debian image.
pub fn prepare() -> TestResult {
    let library = directory();
    fs::create_dir_all(&library)?;
    // Of two runs at once, one makes them and the other finds them.
    let turn = File::open(&library)?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
    let kernels = KernelStore::new(&library);
    // One that was added before guests needed this module.
    if let Some(old) = kernels.default_kernel()?
        && !old.metadata.modules.iter().any(|name| name.ends_with("-tcp_diag.ko"))
    {
        kernels.remove(&old.metadata.id, true)?;
    }
    let kernel = kernels.ensure_default(&Report)?;
    kernel.initramfs(&binaries::directory().join("forkd-agent"), &Report)?;

    image(&library, DEBIAN, &PACKAGES)
}

/// Sees to it that there is a Debian image of this name with these packages, too.
pub fn prepare_image(name: &str, packages: &[&str]) -> TestResult {
    let library = directory();
    let turn = File::open(&library)?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
    image(&library, name, packages)
}

fn image(library: &Path, name: &str, packages: &[&str]) -> TestResult {
    let store = ImageStore::new(library);
    let include: Vec<String> = packages.iter().map(|package| (*package).to_owned()).collect();
    let source = Source::Debian { suite: SUITE.into(), include: include.clone(), mirror: None };
    // Packages may have become newer since; the tests do not ask for that.
    if store.find(name).is_ok_and(|image| image.metadata.source == source) {
        return Ok(());
    }
    let wanted =
        Debian { suite: SUITE.into(), include, mirror: None, name: Some(name.parse()?), min_mib: None };
    debian(&store, &wanted, &Report)?;
    Ok(())
}

/// Steps and warnings as lines on stderr.
#[derive(Debug)]
pub struct Report;

impl Progress for Report {
    fn step(&self, what: &str) {
        report(what);
    }
    fn detail(&self, _: &str) {}
    fn warn(&self, what: &str) {
        report(what);
    }
}
