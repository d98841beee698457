//! Can this host run a stock Linux kernel? Decided by trying, because a /dev/kvm that opens proves little: nested PVM
//! offers one that runs guest kernels through an instruction emulator, without cmpxchg16b and ten thousand times too
//! slowly.

mod guest;
mod vm;

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_proto::probe::{KvmFinding, ProbeReport};
use guest::{LOOP_ITERATIONS, Step};
use vm::{RunError, TinyVm};

/// A guest loop slower than the host's by more than this runs in an emulator. Hardware comes in below 3, also in the
/// software machine, where host and guest are equally slow; the emulator of nested PVM is slower by thousands.
const SLOWEST_HARDWARE: f64 = 20.0;

/// How often the loop is timed, at most; the fastest pass counts, since a slow one may only have been preempted.
const LOOP_PASSES: u32 = 32;

/// Once this much time is spent on the guest's loop, what was measured is enough.
const LOOP_BUDGET: Duration = Duration::from_millis(200);

/// How long the time stamp counter is watched: a reading is good to a fraction of a microsecond, so this gives its rate
/// to some ten parts in a million.
const TSC_WINDOW: Duration = Duration::from_millis(50);

/// What to probe.
#[derive(Debug)]
pub struct Options {
    /// How many VMs to keep alive at once.
    pub vms: u32,
    /// The KVM device; another path only in tests.
    pub device: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Options { vms: 1, device: "/dev/kvm".into() }
    }
}

/// Tries the host's KVM.
pub fn probe(options: &Options) -> ProbeReport {
    ProbeReport { kvm: find(options).unwrap_or_else(|finding| finding), tsc_khz: tsc_khz() }
}

/// The finding arrives on either side: `Err` is the first thing that ruled a good KVM out.
fn find(options: &Options) -> Result<KvmFinding, KvmFinding> {
    check_access(&options.device)?;
    let broken = |error: vm::SetupError| KvmFinding::Broken { reason: error.to_string() };
    let kvm = vm::open(&options.device).map_err(broken)?;
    let mut vms = Vec::new();
    let mut slowdown = f64::INFINITY;
    for _ in 0..options.vms {
        let mut vm = TinyVm::new(&kvm).map_err(broken)?;
        slowdown = slowdown.min(examine(&mut vm)?);
        vms.push(vm);
    }
    // Every VM runs once more while all the others are alive.
    for vm in &mut vms {
        expect_step(vm, Step::Loop)?;
    }
    Ok(KvmFinding::Good { slowdown, vms: options.vms })
}

fn check_access(device: &Path) -> Result<(), KvmFinding> {
    match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(error) => Err(refusal(device, &error)),
    }
}

fn refusal(device: &Path, error: &io::Error) -> KvmFinding {
    match error.kind() {
        ErrorKind::NotFound => KvmFinding::NoDevice,
        ErrorKind::PermissionDenied => KvmFinding::NoPermission,
        _ => KvmFinding::Broken { reason: format!("opening {}: {error}", device.display()) },
    }
}

/// Takes one VM through all steps of the guest and returns how much slower than the host its loop ran.
fn examine(vm: &mut TinyVm) -> Result<f64, KvmFinding> {
    for step in [Step::LongMode, Step::Cmpxchg16b, Step::Sse] {
        expect_step(vm, step)?;
    }
    let begun = Instant::now();
    let mut fastest = Duration::MAX;
    for _ in 0..LOOP_PASSES {
        let pass = Instant::now();
        expect_step(vm, Step::Loop)?;
        fastest = fastest.min(pass.elapsed());
        if begun.elapsed() > LOOP_BUDGET {
            break;
        }
    }
    let slowdown = fastest.as_secs_f64() / host_loop().as_secs_f64();
    if slowdown > SLOWEST_HARDWARE {
        return Err(KvmFinding::Emulated {
            reason: format!("guest code runs {slowdown:.0} times slower than the host's own"),
            slowdown: Some(slowdown),
        });
    }
    Ok(slowdown)
}

/// Runs the guest to its next report, which must be this step's, and a success.
fn expect_step(vm: &mut TinyVm, expected: Step) -> Result<(), KvmFinding> {
    let emulated = |reason: String| KvmFinding::Emulated { reason, slowdown: None };
    match vm.run() {
        Ok(step) if step == expected => Ok(()),
        Ok(step) => Err(emulated(format!("the guest reported {step} where {expected} was due"))),
        Err(RunError::Wrong(step)) => Err(emulated(format!("{step} gave a wrong result"))),
        Err(error @ RunError::Exit(_)) => Err(emulated(format!("{expected} did not execute: {error}"))),
        Err(error @ RunError::Kvm(_)) => Err(KvmFinding::Broken { reason: format!("{expected}: {error}") }),
    }
}

/// The same loop as the guest's, on the host: the fastest of a few passes.
fn host_loop() -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..8 {
        let pass = Instant::now();
        guest::run_loop_on_host(LOOP_ITERATIONS);
        fastest = fastest.min(pass.elapsed());
    }
    fastest
}

fn tsc_khz() -> u64 {
    let (ticks_before, before) = tsc_and_clock();
    std::thread::sleep(TSC_WINDOW);
    let (ticks_after, after) = tsc_and_clock();
    let ticks = u128::from(ticks_after - ticks_before);
    u64::try_from(ticks * 1_000_000 / (after - before).as_nanos()).unwrap_or(0)
}

/// The counter and the clock at one moment: of several readings, the one least torn by an interruption.
fn tsc_and_clock() -> (u64, Instant) {
    let mut best = (u64::MAX, 0, Instant::now());
    for _ in 0..16 {
        let ticks = guest::tsc();
        let clock = Instant::now();
        let width = guest::tsc() - ticks;
        if width < best.0 {
            best = (width, ticks + width / 2, clock);
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe_device(device: &Path) -> KvmFinding {
        probe(&Options { device: device.into(), vms: 1 }).kvm
    }

    #[test]
    fn no_device() {
        assert_eq!(probe_device(Path::new("/dev/no-such-kvm")), KvmFinding::NoDevice);
    }

    #[test]
    fn a_device_that_is_not_kvm_is_broken() {
        assert!(matches!(probe_device(Path::new("/dev/null")), KvmFinding::Broken { .. }));
    }

    #[test]
    fn refusals_to_open_keep_their_reasons() {
        let refused = |errno| refusal(Path::new("/dev/kvm"), &io::Error::from_raw_os_error(errno));
        // EPERM is what a device cgroup answers, EACCES the file's mode.
        assert_eq!(refused(1), KvmFinding::NoPermission);
        assert_eq!(refused(13), KvmFinding::NoPermission);
        assert_eq!(refused(2), KvmFinding::NoDevice);
        // ENODEV: the node is there, the module is not.
        assert!(matches!(refused(19), KvmFinding::Broken { .. }));
    }

    #[test]
    fn the_counter_runs_at_a_plausible_rate() {
        let khz = tsc_khz();
        assert!((100_000..20_000_000).contains(&khz), "{khz} kHz");
    }

    #[test]
    fn this_host_gives_a_finding_that_names_its_reason() {
        match probe_device(Path::new("/dev/kvm")) {
            KvmFinding::Emulated { reason, .. } => assert!(!reason.is_empty()),
            KvmFinding::Good { slowdown, vms } => {
                assert!(slowdown < SLOWEST_HARDWARE);
                assert_eq!(vms, 1);
            }
            KvmFinding::NoDevice | KvmFinding::NoPermission => {}
            KvmFinding::Broken { reason } => panic!("{reason}"),
        }
    }
}
