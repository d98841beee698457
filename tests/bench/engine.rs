//! The first part of `make demo`: what this host's own KVM does with a tiny guest, beside its floor, in two seconds.

use std::io::Write;

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::speed::{children, pauses, with_warm_zygote};
use forkd_tests::measure::raise_descriptor_limit;

const BRANCHES: usize = 10;
const TOUCHED_MIB: u64 = 64;

fn main() -> Result<(), Failure> {
    raise_descriptor_limit();
    let (one, hundred) = with_warm_zygote(|zygote| Ok((children(zygote, 1)?, children(zygote, 100)?)))?;
    let branch = pauses(TOUCHED_MIB, false, BRANCHES)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<58}{:>10}{:>10}{:>8}", "WHAT", "TIME", "FLOOR", "RATIO")?;
    for (what, measured) in [("1 child runs guest code", &one), ("100 children run guest code", &hundred)] {
        let (time, floor) = (measured.wall_ms, measured.floor_ms);
        writeln!(out, "{what:<58}{time:>7.1} ms{floor:>7.1} ms{:>8.1}", measured.ratio)?;
    }
    let what = format!("pause of a branch with {TOUCHED_MIB} MiB written, p50 of {BRANCHES}");
    writeln!(out, "{what:<58}{:>7.1} ms", branch.pause_p50_ms)?;
    writeln!(out, "{:<58}{:>6} KiB", "memory of its own per child", hundred.private_kib_per_child)?;
    writeln!(out, "floor: a bare clone(2) that makes a KVM VM of the same size and runs it")?;
    Ok(())
}
