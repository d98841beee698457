//! Keeps an idle guest quiet: periodic work of its kernel costs CPU time for every child on the host, and pages that it writes are
//! no longer shared with the parent.

use std::fs;

const SETTINGS: [(&str, &str); 2] = [
    // Pages are not moved about for the sake of order, for which the kernel looks twice a second: a page that moves is a page that a
    // child no longer shares. A request for a huge page still compacts memory.
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    // Counters of memory are added up once a minute, not every second: they may be wrong by half a MiB a CPU.
    ("/proc/sys/vm/stat_interval", "60"),
];

/// A kernel that does not know a setting does without.
pub fn apply() {
    for (path, value) in SETTINGS {
        let _ = fs::write(path, value);
    }
}
