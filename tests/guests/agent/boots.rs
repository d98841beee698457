//! A Debian image boots to ready: how long it takes, and what the agent takes.

use std::time::Instant;

use forkd_tests::check;
use forkd_tests::measure::print;
use serde_json::json;

use super::client::Client;
use super::world::{Failure, World};

const MEMORY: u64 = 512 << 20;
/// What the agent has for itself.
const MAX_OWN_KIB: u64 = 1 << 10;
/// With its code, which all guests of a host could share, and which is half as large in a release.
const MAX_AGENT_KIB: u64 = 12 << 10;

pub async fn test(world: &World) -> Result<(), Failure> {
    let begun = Instant::now();
    let vm = world.bring_up("boots", MEMORY, false).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let client = Client::new(&vm.agent);
    let resident_kib = client.agent_kib("VmRSS").await?;
    let anonymous_kib = client.agent_kib("RssAnon").await?;
    let habits = ["cat", "/proc/sys/vm/compaction_proactiveness", "/proc/sys/vm/stat_interval"];
    let habits = client.run(&habits).await?;
    let numpy = client.python("import numpy\nnumpy.arange(4).sum()").await?;
    print(&json!({
        "measure": "boot_to_ready", "seconds": seconds, "agent_resident_kib": resident_kib,
        "agent_anonymous_kib": anonymous_kib, "agent_resident_after_kib": client.agent_kib("VmRSS").await?,
    }))?;
    check!(anonymous_kib < MAX_OWN_KIB, "the agent has {anonymous_kib} KiB for itself");
    check!(resident_kib < MAX_AGENT_KIB, "the agent takes {resident_kib} KiB");
    check!(habits == "0\n60\n", "the kernel is busier than it has to be: {habits:?}");
    check!(numpy.text.ends_with('6'), "{numpy:?}");
    Ok(())
}
