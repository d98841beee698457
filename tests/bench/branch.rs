//! `make bench-branch`: how long a VM is paused while it is branched, against the memory that is its own, at rest and while it
//! writes.

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::speed::pauses;
use forkd_tests::measure::print;
use serde_json::json;

const SIZES: [u64; 4] = [0, 64, 256, 1024];
const BRANCHES: usize = 50;

fn main() -> Result<(), Failure> {
    for private_mib in SIZES {
        for writing in [false, true] {
            let mut result = json!(pauses(private_mib, writing, BRANCHES)?);
            result["bench"] = json!("branch");
            print(&result)?;
        }
    }
    Ok(())
}
