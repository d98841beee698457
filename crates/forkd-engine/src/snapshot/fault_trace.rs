//! The guest addresses that the vCPUs of a zygote's children fault on, as the host's kernel tells them: KVM's tracepoint, in a trace of
//! the daemon's own.
//!
//! ```text
//!   instances/forkd-PID/   set_event_pid, options/event-fork    the zygote's threads, and their children
//!                          events/kvm/kvm_page_fault/enable
//!                          trace                                 forkd-vcpu0-1234 [000] …: kvm_page_fault: … address 0x1234000 …
//! ```
//!
//! Page tables say which pages a child has written, and not which it has read. A host without tracefs knows the first only.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const PREFIX: &str = "forkd-";
/// Of each CPU. A fault takes 50 bytes, and a child some thousands of them.
const BUFFER_KIB: &str = "1024";
/// What is read of a trace.
const MOST: u64 = 64 << 20;
const EVENT: &str = " kvm_page_fault: ";

/// A trace under way. It ends with this value.
#[derive(Debug)]
pub(crate) struct FaultTrace {
    directory: PathBuf,
}

impl FaultTrace {
    /// Begins to note the faults of all that a process forks from now on.
    pub fn begin(forker: i32) -> io::Result<FaultTrace> {
        remove_leftovers();
        let directory = Path::new(INSTANCES).join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&directory)?;
        let trace = FaultTrace { directory };
        trace.set("buffer_size_kb", BUFFER_KIB)?;
        trace.set("options/event-fork", "1")?;
        let threads: Vec<_> = threads(forker)?.iter().map(ToString::to_string).collect();
        trace.set("set_event_pid", &threads.join(" "))?;
        trace.set("events/kvm/kvm_page_fault/enable", "1")?;
        Ok(trace)
    }

    /// Where a process' threads have faulted so far.
    pub fn addresses(&self, process: i32) -> io::Result<Vec<u64>> {
        let threads = threads(process)?;
        let trace = fs::File::open(self.directory.join("trace"))?;
        let mut addresses = Vec::new();
        // Names of threads are in it as they were given, so it need not be text.
        for line in BufReader::new(trace.take(MOST)).split(b'\n') {
            let line = line?;
            if let Some((thread, address)) = fault(&String::from_utf8_lossy(&line))
                && threads.contains(&thread)
            {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.directory.join(name), value)
    }
}

impl Drop for FaultTrace {
    fn drop(&mut self) {
        // Its remains are removed before the next one.
        let _ = self.set("events/kvm/kvm_page_fault/enable", "0");
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Removes the traces of daemons that were killed.
fn remove_leftovers() {
    for entry in fs::read_dir(INSTANCES).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn threads(process: i32) -> io::Result<Vec<i32>> {
    let directory = fs::read_dir(format!("/proc/{process}/task"))?;
    directory
        .map(|entry| {
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                .ok_or(ErrorKind::InvalidData.into())
        })
        .collect()
}

/// The thread and the guest address of a fault:
///
/// ```text
///            vcpu0-1234    [000] d..1.   123.456789: kvm_page_fault: vcpu 0 rip 0xffff address 0x0000000012345000 error_code 0x14
/// ```
fn fault(line: &str) -> Option<(i32, u64)> {
    let (before, event) = line.split_once(EVENT)?;
    let (task, _) = before.split_once(" [")?;
    let (_, thread) = task.trim_end().rsplit_once('-')?;
    let mut words = event.split_ascii_whitespace().skip_while(|word| *word != "address");
    let address = words.nth(1)?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).ok()?;
    Some((thread.parse().ok()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_found_in_its_line() {
        let tail = "vcpu 0 rip 0xffffffff81c0a4c3 address 0x0000000001fb8000 error_code 0x4";
        for (task, thread) in [("           vcpu0-1234    ", 1234), (" a-b c-77", 77)] {
            let line = format!("{task} [000] d..1.   123.456789: kvm_page_fault: {tail}");
            assert_eq!(fault(&line), Some((thread, 0x1fb_8000)), "{line}");
        }
        let older = " vcpu0-5 [001] d..1 1.2: kvm_page_fault: address 1fb8000 error_code 4";
        assert_eq!(fault(older), Some((5, 0x1fb_8000)));
        for line in [
            "",
            "# tracer: nop",
            " vcpu0-5 [001] d..1 1.2: kvm_exit: address 1",
            " vcpu0-5 [001] d..1 1.2: kvm_page_fault: address",
            " vcpu0 [001] d..1 1.2: kvm_page_fault: address 1",
            " vcpu0-5 [001] d..1 1.2: kvm_page_fault: address none",
        ] {
            assert_eq!(fault(line), None, "{line}");
        }
    }
}
