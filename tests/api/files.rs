//! Files and ports of a sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, check};

use crate::life::snapshot;

pub fn go_in_and_come_out() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let ids = daemon.fork("warm", 1)?;
    let id = &ids[0];
    let here = tempfile::tempdir()?;
    let tree = here.path().join("tree");
    fs::create_dir_all(tree.join("below"))?;
    let large: Vec<u8> = (0..3_000_000u32).flat_map(|number| number.to_le_bytes()).collect();
    fs::write(tree.join("below/large"), &large)?;
    fs::write(tree.join("tool"), "#!/bin/sh\necho it runs\n")?;
    fs::set_permissions(tree.join("tool"), fs::Permissions::from_mode(0o755))?;
    let tree = tree.to_str().ok_or("not text")?;

    daemon.run(&["cp", tree, &format!("{id}:/srv/")])?;
    check!(daemon.run(&["exec", id, "--", "/srv/tree/tool"])? == "it runs", "modes are kept");
    let sum = daemon.run(&["exec", id, "--", "sha256sum", "/srv/tree/below/large"])?;
    let back = here.path().join("back");
    daemon.run(&["cp", &format!("{id}:/srv/tree"), back.to_str().ok_or("not text")?])?;
    check!(fs::read(back.join("below/large"))? == large, "what came back is what went in ({sum})");
    let single = here.path().join("hostname");
    daemon.run(&["cp", &format!("{id}:/etc/hostname"), single.to_str().ok_or("not text")?])?;
    check!(single.exists(), "a single file comes out");
    let missing = daemon.output(&["cp", &format!("{id}:/no/such"), here.path().to_str().ok_or("?")?], b"")?;
    check!(missing.status.code() == Some(1), "what is not there is said to be not there");
    Ok(())
}
