//! `make bench-branch`: how long a VM stands still while it is branched, against the memory that is its own, at rest and
//! while it writes.

use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, boot};
use forkd_tests::measure::{percentile, print};
use serde_json::json;

const MEMORY_MIB: u64 = 2048;
const SIZES: [u64; 4] = [0, 64, 256, 1024];
const BRANCHES: usize = 50;

fn main() -> Result<(), Failure> {
    for private_mib in SIZES {
        for writing in [false, true] {
            let (_process, mut vm) = boot(MEMORY_MIB << 20)?;
            vm.mailbox.order(Order::Add, 1, 0)?;
            let pages = private_mib << 20 >> 12;
            vm.mailbox.order(Order::Dirty, FREE_MEMORY, pages)?;
            let mut pauses = Vec::new();
            for _ in 0..BRANCHES {
                if writing {
                    // Still under way when the branch comes.
                    vm.mailbox.tell(Order::Dirty, FREE_MEMORY, pages.max(1000))?;
                }
                let (zygote, pause) = vm.branch()?;
                pauses.push(pause.as_secs_f64() * 1e3);
                if writing {
                    vm.mailbox.result()?;
                }
                // After the guest has written it all: what the branch shares with it must be copied. And before the next
                // branch: whoever tears down this one's memory would be part of that one's pause.
                zygote.end()?;
            }
            pauses.sort_unstable_by(f64::total_cmp);
            print(&json!({
                "bench": "branch",
                "private_mib": private_mib,
                "guest": if writing { "writing" } else { "idle" },
                "n": BRANCHES,
                "pause_p50_ms": percentile(&pauses, 50),
                "pause_p99_ms": percentile(&pauses, 99),
            }))?;
        }
    }
    Ok(())
}
