//! `make bench-fork`: N children of one zygote, from the first request until the last child has run guest code and said so,
//! beside the floor (bare clone and KVM loop) of the same run, and beside as many restores by Firecracker where there is one.

use forkd_tests::engine::firecracker::{self, Snapshot};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::speed::{MEMORY_MIB, WARM_PAGES, children, with_warm_zygote};
use forkd_tests::measure::{print, raise_descriptor_limit};
use serde_json::json;

const SIZES: [u32; 4] = [1, 10, 100, 1000];
/// More restores one after another take longer than anybody wants to wait.
const ONE_BY_ONE: u32 = 100;

fn main() -> Result<(), Failure> {
    raise_descriptor_limit();
    let snapshot =
        firecracker::find().map(|program| Snapshot::make(&program, MEMORY_MIB, WARM_PAGES)).transpose()?;
    let results = with_warm_zygote(|zygote| {
        SIZES.into_iter().map(|n| children(zygote, n)).collect::<Result<Vec<_>, Failure>>()
    })?;
    // Not in between: the kernel takes back the memory of many VMs long after they have ended, and what it takes back would
    // be missing in the next children's.
    if let Some(snapshot) = &snapshot {
        snapshot.restore(1)?;
    }
    for measured in results {
        let mut result = json!(measured);
        result["bench"] = json!("fork");
        result["end"] = json!("running");
        let (mut together, mut one_by_one) = (None, None);
        if let Some(snapshot) = &snapshot {
            together = Some(snapshot.restore(measured.n)?.as_secs_f64() * 1e3);
            if measured.n <= ONE_BY_ONE {
                one_by_one = Some(snapshot.restore_one_by_one(measured.n)?.as_secs_f64() * 1e3);
            }
        }
        result["firecracker_ms"] = json!(together);
        result["firecracker_one_by_one_ms"] = json!(one_by_one);
        print(&result)?;
    }
    Ok(())
}
