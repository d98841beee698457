//! Why a guest's kernel has panicked, as its console says it.
//!
//! The guest writes its console and may be hostile: of the log only the end is read, and what is told of it is short and
//! without control characters.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const TAIL: usize = 32 << 10;
const MAX_TEXT: usize = 200;
const PANIC: &str = "Kernel panic - not syncing";
/// How the line begins that says why, before a panic which says only that it was fatal.
const CAUSES: [&str; 6] =
    ["BUG: ", "kernel BUG at ", "Oops: ", "general protection fault", "divide error", "double fault"];
/// How many lines before the panic its cause may be: registers and a call trace come in between.
const NEAR: usize = 120;

/// The panic of a guest whose console goes to this file, with what led to it, if the console says either.
pub fn described(console: &Path) -> Option<String> {
    let file = File::open(console).ok()?;
    let length = file.metadata().ok()?.len();
    let mut tail = vec![0; TAIL];
    let read = file.read_at(&mut tail, length.saturating_sub(TAIL as u64)).ok()?;
    find(tail.get(..read)?)
}

/// The last panic of a log, since a guest can print what looks like one before.
fn find(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().map(message).collect();
    let at = lines.iter().rposition(|line| line.starts_with(PANIC))?;
    let before = lines.get(at.saturating_sub(NEAR)..at)?;
    let cause = before.iter().find(|line| CAUSES.iter().any(|cause| line.starts_with(cause)));
    let panic = plain(lines.get(at)?);
    Some(match cause {
        Some(cause) => format!("{panic} ({})", plain(cause)),
        None => panic,
    })
}

/// A line of the kernel without the time and the task in front of it: `[    1.234567][   T12] text`.
fn message(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((_, behind)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        rest = behind.trim_start();
    }
    rest
}

fn plain(line: &str) -> String {
    let shown = |character: char| if character.is_control() { ' ' } else { character };
    line.chars().map(shown).take(MAX_TEXT).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    const ENDED: &str = "[    9.1] ---[ end Kernel panic - not syncing: sysrq triggered crash ]---\r\n";

    #[test]
    fn the_panic_is_told_without_its_time() {
        let log = format!(
            "booting\r\n[    9.012345] Kernel panic - not syncing: sysrq triggered crash\r\n[    9.0] CPU: 0\r\n{ENDED}"
        );
        assert_eq!(find(log.as_bytes()).unwrap(), "Kernel panic - not syncing: sysrq triggered crash");
        let with_task = "[    1.0][   T12] Kernel panic - not syncing: Attempted to kill init!";
        assert_eq!(
            find(with_task.as_bytes()).unwrap(),
            "Kernel panic - not syncing: Attempted to kill init!"
        );
        assert_eq!(find(b"nothing of the kind\n"), None);
        assert_eq!(find(ENDED.as_bytes()), None);
    }

    #[test]
    fn what_led_to_it_is_told_too() {
        let log = "[    7.1] BUG: unable to handle page fault for address: 000000000001fb80\n\
                   [    7.1] #PF: supervisor read access in kernel mode\n\
                   [    7.2] Oops: 0000 [#1] PREEMPT SMP NOPTI\n\
                   [    7.3] RIP: 0010:exc_page_fault+0x1a/0x150\n\
                   [    7.4] Kernel panic - not syncing: Fatal exception in interrupt\n";
        let expected = "Kernel panic - not syncing: Fatal exception in interrupt \
                        (BUG: unable to handle page fault for address: 000000000001fb80)";
        assert_eq!(find(log.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn what_a_guest_prints_is_bounded_and_plain() {
        let log = format!(
            "Kernel panic - not syncing: fake\nKernel panic - not syncing: \x1b[31m{}",
            "x".repeat(1000)
        );
        let told = find(log.as_bytes()).unwrap();
        assert!(
            told.starts_with("Kernel panic - not syncing:  [31mxxx") && told.chars().count() == MAX_TEXT,
            "{told}"
        );
        let directory = tempfile::tempdir().unwrap();
        let console = directory.path().join("console.log");
        assert_eq!(described(&console), None);
        fs::write(&console, format!("{PANIC}: old\n{}\n{PANIC}: new\n", "y".repeat(1 << 20))).unwrap();
        assert_eq!(described(&console).unwrap(), format!("{PANIC}: new"));
        // Beyond what is read.
        fs::write(&console, format!("{PANIC}: old\n{}\n", "y".repeat(1 << 20))).unwrap();
        assert_eq!(described(&console), None);
    }

    proptest! {
        #[test]
        fn any_bytes_may_be_printed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut log = b"Kernel panic - not syncing: ".to_vec();
            log.extend(&bytes);
            for text in [find(&bytes), find(&log)].into_iter().flatten() {
                prop_assert!(text.chars().count() <= 2 * MAX_TEXT + 3 && !text.chars().any(char::is_control));
            }
        }
    }
}
