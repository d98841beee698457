//! An image that the daemon builds from what it is sent, and its sandboxes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};

const NAME: &str = "forkd-tests/api:latest";
/// The image alone is smaller: it is its content and 1 GiB.
const RECIPE: &str = "disk = \"8G\"\n";
/// A command uses what was copied, and finds a disk of the size that the recipe says, also when it takes of it.
const COMMANDS: &str = r#"
COPY tool /opt/tool
RUN /opt/tool > /opt/said && test ! -e /opt/secret && \
    test "$(df --output=size -m / | tail -n 1)" -gt 7000 && \
    fallocate -l 4G /opt/large && rm /opt/large && \
    mkdir -p /etc/ssl/certs && echo '# own' > /etc/ssl/certs/ca-certificates.crt
"#;
/// The bundle of the daemon's host.
const BUNDLE: &str = r#"cat "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}""#;

pub fn of_an_image_and_its_sandboxes() -> TestResult {
    let daemon = Daemon::start()?;
    let context = tempfile::tempdir()?;
    let write = |name: &str, text: &str| fs::write(context.path().join(name), text);
    // Another one in every run: what an earlier run has kept is none of this one's.
    let stamp = std::time::UNIX_EPOCH.elapsed()?.as_nanos().to_string();
    write("Dockerfile", &format!("FROM {DEBIAN}{COMMANDS}"))?;
    write("tool", &format!("#!/bin/sh\necho built {stamp}\n"))?;
    fs::set_permissions(context.path().join("tool"), fs::Permissions::from_mode(0o755))?;
    write("forkd.toml", RECIPE)?;
    write("secret", "")?;
    write(".dockerignore", "secret\n")?;

    let directory = context.path().to_str().ok_or("not text")?;
    let image = daemon.json(&["image", "build", directory, "--tag", NAME, "--network", "none"])?;
    check!(image["recipe"]["disk_mib"] == 8192 && image["shared"] == false, "{image}");
    let listed = daemon.run(&["image", "ls"])?;
    check!(listed.lines().any(|line| line.starts_with(NAME) && line.ends_with("own")), "{listed}");

    daemon.run(&["snapshot", NAME, "--tag", "built", "--host-certs", "--no-wait"])?;
    let ids = daemon.fork("built", 1)?;
    let id = &ids[0];
    let said = daemon.run(&["exec", id, "--", "cat", "/opt/said"])?;
    check!(said == format!("built {stamp}"), "{said}");
    let said = daemon.run(&["eval", id, "open('/opt/said').read().split()[0]"])?;
    check!(said.contains("built"), "{said}");
    certificates(&daemon, id)?;

    let needed = daemon.output(&["image", "rm", NAME], b"")?;
    let text = String::from_utf8(needed.stderr)?;
    check!(needed.status.code() == Some(1) && text.contains("needed by snapshot built"), "{text}");
    daemon.run(&["kill", id])?;
    daemon.run(&["snapshot", "rm", "built"])?;
    daemon.run(&["image", "rm", NAME])?;
    Ok(())
}

/// What the host trusts, the guest trusts: beside its own, and where the environment says.
fn certificates(daemon: &Daemon, id: &str) -> TestResult {
    let bundle = host()?.script(BUNDLE)?;
    check!(bundle.contains("BEGIN CERTIFICATE"), "the host has no certificates");
    let trusted = daemon.run(&["exec", id, "--", "cat", "/etc/ssl/certs/ca-certificates.crt"])?;
    check!(trusted.starts_with("# own\n") && trusted.contains(bundle.trim_end()), "{trusted}");
    let said = daemon.run(&["exec", id, "--", "sh", "-c", "cat \"$SSL_CERT_FILE\""])?;
    check!(said == bundle.trim_end(), "{said}");
    Ok(())
}
