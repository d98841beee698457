//! A guest is branched while it writes to its disk, and children are forked from each branch. Every guest keeps writing
//! and verifies every file on its disk.

use std::collections::BTreeSet;
use std::time::Instant;

use forkd_tests::engine::linux::{LinuxVm, Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

const FILES: usize = 40;

/// Writes files with their sums, then checks them all.
const INIT: &str = r#"i=0
while [ $i -lt FILES ]; do
    i=$((i + 1))
    dd if=/dev/urandom of=/mnt/data$i bs=4096 count=8 2>/dev/null
    (cd /mnt && md5sum data$i >sum$i)
    [ $((i % 4)) -eq 0 ] && sync
    echo "guest: wrote $i"
done
(cd /mnt && cat sum* | md5sum -c >/tmp.log 2>&1) && echo "guest: verified $(grep -c OK /tmp.log)"
echo "guest: last $(cat /mnt/sumFILES)"
umount /mnt && echo "guest: done"
poweroff -f
"#;

pub fn test(vcpus: u8, branches: u8, children: u8) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let init = INIT.replace("FILES", &FILES.to_string());
    let setup = Setup::new(directory.path(), &Plan { vcpus, init: &init, ..Plan::default() })?;

    let begun = Instant::now();
    let (_process, mut source) = setup.boot(setup.own("source")?)?;
    source.wait_for("guest: wrote 1")?;
    let boot = begun.elapsed();
    let mut guests = Vec::new();
    let mut pauses = Vec::new();
    for branch in 0..branches {
        let (mut zygote, pause) = source.branch(&setup, &format!("source-{branch}"))?;
        pauses.push(pause.as_secs_f64() * 1e3);
        for child in 0..children {
            guests.push(setup.fork(&mut zygote, setup.own(&format!("child-{branch}-{child}"))?)?);
        }
    }

    guests.push(source);
    let mut last = BTreeSet::new();
    for guest in &mut guests {
        guest.finish(&setup)?;
        last.insert(last_file(guest)?);
    }
    pauses.sort_unstable_by(f64::total_cmp);
    Ok(json!({
        "guests": guests.len(),
        "boot_ms": boot.as_secs_f64() * 1e3,
        "pause_max_ms": pauses.last(),
        "distinct": last.len(),
    }))
}

/// What a guest wrote last, after it has found every file to be whole.
fn last_file(guest: &LinuxVm) -> Result<String, Failure> {
    let console = guest.console()?;
    if !console.contains(&format!("guest: verified {FILES}")) {
        return Err(format!("not every file is whole:\n{console}").into());
    }
    let line = console.lines().find(|line| line.starts_with("guest: last ")).ok_or("no last file")?;
    Ok(line.to_owned())
}
