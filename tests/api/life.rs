//! From an image to a snapshot, to sandboxes, to their branches.

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::{TestResult, binaries, check};

/// What a parent has done before it was frozen.
const WARM_UP: &str = "python=import numpy; print('warm'); state = ['parent']";

pub fn snapshot(daemon: &Daemon) -> TestResult {
    let made = daemon.json(&["snapshot", DEBIAN, "--tag", "warm", "--warm-up", WARM_UP, "--no-wait"])?;
    check!(made["tag"] == "warm", "{made}");
    Ok(())
}

pub fn of_a_snapshot_and_its_sandboxes() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let ids = daemon.fork("warm", 3)?;
    let [first, second, third] = &ids[..] else { return Err(format!("{ids:?}").into()) };

    // Code finds what was imported; commands have streams and an exit code.
    let zeros = daemon.run(&["eval", first, "numpy.zeros(3).tolist()"])?;
    check!(zeros == "[0.0, 0.0, 0.0]", "{zeros}");
    let script = "cat; hostname; printf '\\377'; echo complaint >&2; exit 7";
    let output = daemon.output(&["exec", second, "--", "sh", "-c", script], b"\xfebytes\n")?;
    check!(output.status.code() == Some(7), "{}", binaries::transcript(&output));
    let expected = [b"\xfebytes\n", second.as_bytes(), b"\n\xff"].concat();
    check!(output.stdout == expected, "{}", binaries::transcript(&output));
    check!(output.stderr == b"complaint\n", "{}", binaries::transcript(&output));
    let tty =
        daemon.run(&["exec", "-t", second, "--", "sh", "-c", "test -t 0 && test -t 1 && echo terminal"])?;
    check!(tty.trim_end() == "terminal", "{tty}");

    // A branch goes on from where its sandbox was, and neither notices the other.
    daemon.run(&["eval", first, "state.append('first')"])?;
    let branch = daemon.json(&["branch", first, "--tag", "half"])?;
    check!(branch["pause_us"].is_u64() && branch["branched_from"] == first.as_str(), "{branch}");
    daemon.run(&["eval", first, "state.append('later')"])?;
    let twins = daemon.fork("half", 2)?;
    daemon.run(&["eval", &twins[0], "state.append('twin')"])?;
    for (id, expected) in [
        (first, "['parent', 'first', 'later']"),
        (&twins[0], "['parent', 'first', 'twin']"),
        (&twins[1], "['parent', 'first']"),
        (third, "['parent']"),
    ] {
        let state = daemon.run(&["eval", id, "state"])?;
        check!(state == expected, "{id}: {state}");
    }
    // Straight from a sandbox, and back to a branch in place.
    let copy = daemon.fork(first, 1)?;
    check!(daemon.run(&["eval", &copy[0], "len(state)"])? == "3", "a copy is as its original");
    daemon.run(&["rollback", first, "half"])?;
    check!(daemon.run(&["eval", first, "len(state)"])? == "2", "a rollback undoes what came later");

    // Standing still, and going on.
    daemon.run(&["pause", second])?;
    let refused = daemon.output(&["exec", second, "--", "true"], b"")?;
    check!(refused.status.code() == Some(1), "{}", binaries::transcript(&refused));
    daemon.run(&["resume", second])?;
    daemon.run(&["exec", second, "--", "true"])?;

    daemon.run(&["logs", second])?;
    let listed = daemon.run(&["ls", "--quiet"])?;
    check!(listed.lines().count() == 6, "{listed}");
    daemon.run(&["kill", second, third])?;
    let gone = daemon.output(&["exec", second, "--", "true"], b"")?;
    check!(gone.status.code() == Some(1), "{}", binaries::transcript(&gone));

    // From an image to an exit code in one line.
    let run = daemon.output(&["run", "warm", "--", "sh", "-c", "cat; exit 5"], b"read")?;
    check!(run.status.code() == Some(5) && run.stdout == b"read", "{}", binaries::transcript(&run));
    check!(daemon.run(&["ls", "--quiet"])?.lines().count() == 4, "what ran is gone");
    Ok(())
}

pub fn goes_on_when_the_daemon_is_killed() -> TestResult {
    let mut daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let ids = daemon.fork("warm", 2)?;
    daemon.run(&["eval", &ids[0], "state.append('before')"])?;
    daemon.run(&["branch", &ids[0], "--tag", "kept", "--wait"])?;
    daemon.kill_and_start()?;
    check!(daemon.run(&["eval", &ids[0], "state"])? == "['parent', 'before']", "the sandbox goes on");
    daemon.run(&["exec", &ids[1], "--", "true"])?;
    let again = daemon.fork("kept", 1)?;
    check!(daemon.run(&["eval", &again[0], "state"])? == "['parent', 'before']", "so does its branch");
    daemon.run(&["branch", &ids[1], "--tag", "later"])?;
    Ok(())
}
