//! A guest that breaks the rules of its devices: root of a Linux guest sends a driver away and drives the device itself. Only that
//! guest's VM ends, and says why. What a device can answer with an error it answers, and the VM keeps running.

use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::measure::print;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, binaries, check};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(120);

const DRIVER: &str = include_str!("driver.py");

/// A queue that rules are broken of.
struct Queue {
    device: u32,
    number: u32,
    /// Whether the device writes to what the driver offers.
    writes: bool,
    name: &'static str,
}

const ENTROPY: Queue = Queue { device: 3, number: 0, writes: true, name: "the entropy device" };
/// Transmission.
const NET: Queue = Queue { device: 1, number: 1, writes: false, name: "the network device" };
/// Transmission. Whoever is sent away here is the way to the agent.
const VSOCK: Queue = Queue { device: 2, number: 1, writes: false, name: "the vsock device" };
const DISK: Queue = Queue { device: 0, number: 0, writes: true, name: "the disk" };

const CASES: [(Queue, &str); 17] = [
    (ENTROPY, "ring_outside"),
    (ENTROPY, "buffer_outside"),
    (ENTROPY, "huge_length"),
    (ENTROPY, "loop"),
    (ENTROPY, "indirect_loop"),
    (ENTROPY, "indirect_in_indirect"),
    (ENTROPY, "indirect_outside"),
    (ENTROPY, "indirect_of_odd_length"),
    (ENTROPY, "head_outside"),
    (ENTROPY, "index_ahead"),
    (NET, "indirect_loop"),
    (NET, "huge_length"),
    (VSOCK, "buffer_outside"),
    (VSOCK, "indirect_loop"),
    (DISK, "indirect_loop"),
    (DISK, "buffer_outside"),
    (DISK, "huge_length"),
];

/// A street of sandboxes: one that does wrong, and one that must not feel it.
struct Street {
    daemon: Daemon,
    neighbour: String,
    pid: Value,
}

impl Street {
    fn new() -> Result<Street, Error> {
        let daemon = Daemon::start()?;
        let warm_up = format!("python={DRIVER}");
        let output = daemon
            .output(&["snapshot", DEBIAN, "--tag", "driver", "--warm-up", &warm_up, "--no-wait"], b"")?;
        check!(output.status.success(), "{}", binaries::transcript(&output));
        let neighbour = daemon.fork("driver", 1)?.remove(0);
        let pid = daemon.json(&["inspect", &neighbour])?["pid"].clone();
        Ok(Street { daemon, neighbour, pid })
    }

    fn neighbour_is_well(&self, after: &str) -> TestResult {
        let shown = self.daemon.json(&["inspect", &self.neighbour])?;
        check!(shown["state"] == "running" && shown["pid"] == self.pid, "after {after}: {shown}");
        let said = self.daemon.run(&["eval", &self.neighbour, "6 * 7"])?;
        check!(said == "42", "after {after} the neighbour says {said}");
        Ok(())
    }

    /// Why a sandbox has ended.
    fn ended(&self, id: &str, after: &str) -> Result<Value, Error> {
        let begun = Instant::now();
        loop {
            let shown = self.daemon.json(&["inspect", id])?;
            if shown["state"] == "ended" {
                return Ok(shown["ended"].clone());
            }
            check!(begun.elapsed() < PATIENCE, "after {after} it goes on: {shown}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

pub fn that_breaks_rules_ends_alone() -> TestResult {
    let street = Street::new()?;
    for (queue, case) in CASES {
        let Queue { device, number, writes, name } = queue;
        let id = street.daemon.fork("driver", 1)?.remove(0);
        let writes = if writes { "True" } else { "False" };
        let code = format!("break_rules({device}, {number}, {writes}, '{case}')");
        // Its answer does not come any more.
        let output = street.daemon.output(&["eval", &id, "--timeout", "20", &code], b"")?;
        let ended =
            street.ended(&id, case).map_err(|error| format!("{error}; {}", binaries::transcript(&output)))?;
        let detail = ended["detail"].as_str().unwrap_or_default();
        print(&json!({ "tried": case, "of": name, "ended": detail }))?;
        let expected = format!("the guest's driver of {name}: ");
        check!(ended["reason"] == "failed" && detail.starts_with(&expected), "{name}, {case}: {ended}");
        street.neighbour_is_well(case)?;
        street.daemon.run(&["kill", &id])?;
    }
    Ok(())
}

/// Its end says what its console says, and not only that it was reset.
pub fn that_panics_says_why() -> TestResult {
    let street = Street::new()?;
    let id = street.daemon.fork("driver", 1)?.remove(0);
    let crash = "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger";
    // Its answer does not come any more.
    street.daemon.output(&["exec", &id, "--timeout", "20", "--", "sh", "-c", crash], b"")?;
    let ended = street.ended(&id, "a panic")?;
    print(&json!({ "tried": "panic", "ended": ended }))?;
    let detail = ended["detail"].as_str().unwrap_or_default();
    let expected = "Kernel panic - not syncing: sysrq triggered crash";
    check!(ended["reason"] == "kernel_panic" && detail.starts_with(expected), "after a panic: {ended}");
    street.neighbour_is_well("a panic")
}

pub fn that_writes_beyond_its_disk_is_refused() -> TestResult {
    let street = Street::new()?;
    let id = street.daemon.fork("driver", 1)?.remove(0);
    // VIRTIO_BLK_S_IOERR, each time.
    let said = street.daemon.run(&["eval", &id, "write_beyond_the_end()"])?;
    check!(said == "[1, 1, 1, 1]", "the disk answers {said}");
    check!(street.daemon.run(&["eval", &id, "6 * 7"])? == "42", "it is of no use any more");
    street.neighbour_is_well("writes beyond the end")
}

/// Registers are written at random. What becomes of the guest is its own business; if its VM ends, it says why.
pub fn that_writes_garbage_to_registers_harms_nobody() -> TestResult {
    let street = Street::new()?;
    for seed in 0..count(3, 30) {
        let id = street.daemon.fork("driver", 1)?.remove(0);
        street.daemon.output(&["eval", &id, "--timeout", "60", &format!("garbage({seed})")], b"")?;
        let shown = street.daemon.json(&["inspect", &id])?;
        print(
            &json!({ "tried": "garbage", "seed": seed, "state": shown["state"], "ended": shown["ended"]["detail"] }),
        )?;
        let told = shown["ended"]["detail"].as_str().is_some_and(|detail| !detail.is_empty());
        check!(shown["state"] == "running" || (shown["state"] == "ended" && told), "{shown}");
        street.neighbour_is_well("garbage")?;
        street.daemon.run(&["kill", &id])?;
    }
    Ok(())
}

/// Thousands of connections to the host's side at once: nobody is there, and who talks to the guest is heard all the same.
pub fn that_floods_vsock_is_still_heard() -> TestResult {
    let street = Street::new()?;
    let id = street.daemon.fork("driver", 1)?.remove(0);
    let mut flooding = Ends(street.daemon.command(&["eval", &id, "--timeout", "300", "flood()"]).spawn()?);
    let mut heard = 0;
    while flooding.0.try_wait()?.is_none() {
        street.daemon.run(&["exec", &id, "--", "true"])?;
        street.neighbour_is_well("a flood")?;
        heard += 1;
    }
    check!(flooding.0.wait()?.success(), "the flood did not end well");
    print(&json!({ "tried": "flood", "heard_meanwhile": heard }))?;
    check!(heard > 0, "the flood was over before anybody was heard");
    Ok(())
}

/// A process that ends with this value.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
