//! The watch over the host, on a machine that is made to hang.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forkd_host::home;
use forkd_tests::host::{TestHost, TestMachine, machine_name};
use forkd_tests::process::signal;
use forkd_tests::watch::{self, Patience};
use forkd_tests::{TestResult, check};
use rustix::process::Signal;

static VICTIM: OnceLock<TestHost> = OnceLock::new();
static RUNS: AtomicU32 = AtomicU32::new(0);

pub fn a_machine_that_stops_answering_is_restarted() -> TestResult {
    let victim = TestMachine::acquire(&home::directory()?, &format!("{}-victim", machine_name()))?;
    let victim = VICTIM.get_or_init(|| TestHost::Machine(Box::new(victim)));
    let patience = Patience { silence: Duration::from_secs(3), ..Patience::default() };

    let verdict = watch::run(victim, patience, || {
        let Some(host @ TestHost::Machine(victim)) = VICTIM.get() else {
            return Err("no victim".into());
        };
        if RUNS.fetch_add(1, Ordering::SeqCst) == 0 {
            let pid = victim.machine().status()?.pid.ok_or("the machine has no process")?;
            signal(Signal::STOP, u32::try_from(pid)?)?;
        }
        host.run(&["true"]).map(drop)
    });

    verdict.result?;
    check!(verdict.restarts == 1, "restarted {} times", verdict.restarts);
    check!(RUNS.load(Ordering::SeqCst) == 2, "ran {} times", RUNS.load(Ordering::SeqCst));
    victim.release()
}
