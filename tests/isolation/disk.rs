//! A VM process that was taken over writes more to its disk than it may. The kernel refuses, where the file system has project quotas:
//! the daemon's layers are put on one for this test.

use forkd_tests::daemon::{Daemon, Filter};
use forkd_tests::hostile::{FILL_PORT, FILLS};
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};
use rustix::io::Errno;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a sandbox may write, in MiB.
const LIMIT: u64 = 32;
/// What the kernel lets it write beyond that: the layer's map and what the file system itself needs.
const BEYOND: u64 = 4;
/// A guest's own write, which its VM process passes on.
const WRITE: [&str; 3] = ["sh", "-c", "dd if=/dev/zero of=/root/more bs=1M count=8 conv=fsync"];

/// A file system with quotas in the place of the layers. Dropped, it is gone.
struct WithQuotas(String);

impl WithQuotas {
    fn mount(layers: String) -> Result<WithQuotas, Error> {
        host()?.script(&format!(
            "modprobe -a loop quota_v2 || true
             rm -f /var/lib/quotas; truncate -s 4G /var/lib/quotas
             mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota /var/lib/quotas
             mount -o loop,prjquota /var/lib/quotas {layers}"
        ))?;
        Ok(WithQuotas(layers))
    }
}

impl Drop for WithQuotas {
    fn drop(&mut self) {
        let _ = host().and_then(|host| host.script(&format!("umount -l {}; rm /var/lib/quotas", self.0)));
    }
}

pub fn is_limited_by_the_kernel() -> TestResult {
    let mut daemon = Daemon::start()?;
    let quotas = WithQuotas::mount(daemon.layers())?;
    daemon.become_hostile(Filter::On)?;
    let warm_up = format!(
        "python=
import os

def fill():
    it = os.open('/dev/port', os.O_WRONLY)
    os.pwrite(it, bytes([0]), {FILL_PORT})
    os.close(it)
"
    );
    daemon.run(&["snapshot", DEBIAN, "--tag", "disk", "--warm-up", &warm_up])?;
    let limit = format!("{LIMIT}M");
    let fork = || daemon.run(&["fork", "disk", "--disk-limit", &limit]);
    let (full, branched, neighbour) = (fork()?, fork()?, fork()?);
    for _ in 0..2 {
        // A branch of a disk that was written to gets a new top layer, with a new limit.
        daemon.run(&["exec", &branched, "--", "sh", "-c", "echo more >> /root/written; sync"])?;
        daemon.run(&["branch", &branched])?;
    }
    for id in [&full, &branched] {
        daemon.run(&["eval", id, "fill()"])?;
        let (bytes, error) = filled(&daemon.run(&["logs", id, "--bytes", "65536"])?)?;
        check!(error == i64::from(Errno::DQUOT.raw_os_error()), "{id}: {bytes} bytes, error {error}");
        check!(bytes <= (LIMIT + BEYOND) << 20, "{id}: {bytes} bytes");
    }
    // The guest of a full disk is told so; others write.
    let refused = daemon.output(&[&["exec", &full, "--"], &WRITE[..]].concat(), b"")?;
    check!(!refused.status.success(), "{}", binaries::transcript(&refused));
    daemon.run(&[&["exec", &neighbour, "--"], &WRITE[..]].concat())?;
    check!(daemon.run(&["eval", &neighbour, "6 * 7"])? == "42", "the neighbour");
    daemon.run(&["kill", "--all"])?;
    // Before the daemon is put back: it looks at the file system when it starts.
    drop(quotas);
    Ok(())
}

/// What a process could write, and the error that ended it, as its console says.
fn filled(console: &str) -> Result<(u64, i64), Error> {
    let line = console.lines().rev().find_map(|line| line.trim_end().strip_prefix(FILLS));
    let (bytes, error) = line.and_then(|line| line.split_once(' ')).ok_or("nothing was filled")?;
    Ok((bytes.parse()?, error.parse()?))
}
