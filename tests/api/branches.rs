//! A disk that is written between many branches: each of them has what was there when it was made, also when it is loaded again.

use forkd_tests::daemon::Daemon;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};

use crate::life::snapshot;

const BRANCHES: u32 = 30;

/// A file more and a number, both on the disk.
const WRITE: &str = "head -c 65536 /dev/urandom > /srv/file-$1; (cd /srv; sha256sum file-*) > /srv/sums; echo $1 > /srv/number; sync";
const CHECK: &str = "cd /srv && sha256sum --quiet --check sums && echo $(cat number) $(ls | grep -c file-)";

pub fn many_of_one_disk_are_loaded_again() -> TestResult {
    let mut daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let id = daemon.fork("warm", 1)?.remove(0);
    for number in 1..=BRANCHES {
        daemon.run(&["exec", &id, "--", "sh", "-euc", WRITE, "sh", &number.to_string()])?;
        daemon.run(&["branch", &id, "--tag", &format!("deep-{number}"), "--wait"])?;
    }
    // No process is left, as after a restart of the host.
    host()?.script("for one in /sys/fs/cgroup/forkd/*/cgroup.kill; do echo 1 > $one; done")?;
    daemon.kill_and_start()?;
    for number in 1..=BRANCHES {
        let fork = daemon.fork(&format!("deep-{number}"), 1)?.remove(0);
        let found = daemon.run(&["exec", &fork, "--", "sh", "-euc", CHECK])?;
        check!(found == format!("{number} {number}"), "branch {number}: {found}");
        daemon.run(&["kill", &fork])?;
    }
    Ok(())
}
