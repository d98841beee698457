//! A guest that has nothing to do does nothing: what the kernel does now and then costs every child on the host, and whatever it
//! writes is no longer its parent's.

use std::fs;

const SETTINGS: [(&str, &str); 2] = [
    // Pages are not moved about for the sake of order, for which the kernel looks twice a second: a page that moves is a page that a
    // child no longer shares. Whoever needs a huge page has memory put in order as before.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Counters of memory are added up once a minute, not every second: they may be wrong by half a MiB a CPU.
    ("/proc/sys/vm/stat_interval", "60"),
];

/// A kernel that does not know a setting does without.
pub fn keep() {
    for (path, value) in SETTINGS {
        let _ = fs::write(path, value);
    }
}
