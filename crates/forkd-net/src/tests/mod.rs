//! Networks as they are: with a host, an internet and guests that are namespaces, from which no packet leaves.
//!
//! Each test runs again in a process of its own, in namespaces of its own, where it may do what it likes.

mod life;
mod matrix;
mod names;
mod pool;
mod reuse;
mod world;

use std::process::Command;

/// Runs an ignored test where it is root of its own network. Without the right to make namespaces there is nothing to test.
fn in_namespaces(test: &str) {
    let may = Command::new("unshare").args(["--net", "--mount", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("{test}: skipped, since namespaces are root's");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--net", "--mount"])
        .arg(program)
        .args(["--ignored", "--exact", "--nocapture", &format!("tests::{test}")])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{test} did not run: {said}");
}
