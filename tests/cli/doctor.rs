//! What the doctor finds, on a host that lacks something.

use std::fs;

use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

use crate::stand_in::StandIn;
use crate::world::Home;

/// An `nft` of a kernel that cannot log packets.
const NFT: &str = "#!/bin/sh
if grep -q ' log '; then echo 'Error: Could not process rule: No such file or directory' >&2; exit 1; fi
";

fn check(home: &Home, name: &str) -> Result<Value, Failure> {
    let path = format!("{}:{}", home.path().join("bin").display(), std::env::var("PATH")?);
    let output = home.command(&["doctor", "--json"]).env("PATH", path).output()?;
    let diagnosis: Value = serde_json::from_slice(&output.stdout)?;
    let checks = diagnosis["checks"].as_array().ok_or("no checks")?;
    let found = checks.iter().find(|check| check["name"] == name);
    found.cloned().ok_or_else(|| format!("{name} was not looked at: {diagnosis}").into())
}

#[test]
fn a_kernel_that_cannot_log_packets_is_told_with_its_modules() -> Result<(), Failure> {
    let home = Home::new()?;
    let nft = home.path().join("bin/nft");
    fs::create_dir(home.path().join("bin"))?;
    binaries::install_script(NFT, &nft)?;
    let logging = check(&home, "drop-log")?;
    assert_eq!(
        (&logging["status"], &logging["needed_for"]),
        (&"failed".into(), &"native".into()),
        "{logging}"
    );
    let hint = logging["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("nft_log") && hint.contains("nfnetlink_log"), "{hint}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(check(&home, "nftables")?["status"], "ok", "rules that do not log are fine");
    }
    Ok(())
}

#[test]
fn the_programs_side_by_side_have_one_version() -> Result<(), Failure> {
    let versions = check(&Home::new()?, "versions")?;
    assert_eq!(versions["status"], "ok", "{versions}");
    assert_eq!(
        versions["detail"],
        concat!("forkd, forkd-vmm and forkd-agent ", env!("CARGO_PKG_VERSION")),
        "{versions}"
    );
    Ok(())
}

#[test]
fn a_daemon_that_answers_is_named_and_one_that_refuses_fails() -> Result<(), Failure> {
    let home = Home::new()?;
    let none = check(&home, "daemon")?;
    assert_eq!(
        (&none["status"], &none["hint"]),
        (&"warning".into(), &"forkd run starts one".into()),
        "{none}"
    );
    let _answers = StandIn::start(home.path(), &[], |_, _| {
        Some((200, json!({ "version": env!("CARGO_PKG_VERSION"), "api": "v1" }).to_string()))
    })?;
    let there = check(&home, "daemon")?;
    assert_eq!(there["status"], "ok", "{there}");
    let named = concat!("forkd ", env!("CARGO_PKG_VERSION"), " at unix");
    assert!(there["detail"].as_str().unwrap_or_default().starts_with(named), "{there}");
    let home = Home::new()?;
    let _older = StandIn::start(home.path(), &[], |_, _| {
        Some((200, json!({ "version": "0.0.1", "api": "v1" }).to_string()))
    })?;
    let older = check(&home, "daemon")?;
    let hint = older["hint"].as_str().unwrap_or_default();
    assert_eq!(older["status"], "warning", "{older}");
    assert!(hint.contains("systemctl restart forkd"), "{older}");
    let home = Home::new()?;
    let _refuses = StandIn::start(home.path(), &[], |_, _| {
        Some((401, json!({ "error": "who is there?", "code": "unauthorized" }).to_string()))
    })?;
    let refused = check(&home, "daemon")?;
    assert_eq!(
        (&refused["status"], &refused["detail"]),
        (&"failed".into(), &"who is there?".into()),
        "{refused}"
    );
    Ok(())
}
