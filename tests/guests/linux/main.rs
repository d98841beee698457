//! `linux-guest TEST …`, started by an end-to-end test on a KVM host: the host's own stock kernel under the engine.
//!
//! Every test ends with guests that unmount their disks and switch themselves off; then the layers of each disk are put
//! together, and `e2fsck` has the last word. One JSON object on stdout.

mod net;
mod rollback;
mod shell;
mod snapshots;
mod vsock;
mod writes;

use forkd_tests::engine::process::Failure;
use forkd_tests::measure::{print, raise_descriptor_limit};

const USAGE: &str = "usage: linux-guest writes VCPUS BRANCHES CHILDREN | shell VCPUS CHILDREN | snapshots VCPUS | \
                     rollback VCPUS | vsock VCPUS | net VCPUS";

fn main() -> Result<(), Failure> {
    raise_descriptor_limit();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["writes", vcpus, branches, children] => {
            writes::test(vcpus.parse()?, branches.parse()?, children.parse()?)
        }
        ["shell", vcpus, children] => shell::test(vcpus.parse()?, children.parse()?),
        ["snapshots", vcpus] => snapshots::test(vcpus.parse()?),
        ["rollback", vcpus] => rollback::test(vcpus.parse()?),
        ["vsock", vcpus] => vsock::test(vcpus.parse()?),
        ["net", vcpus] => net::test(vcpus.parse()?),
        _ => Err(USAGE.into()),
    }?;
    print(&result)
}
