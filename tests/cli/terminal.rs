//! A shell at a terminal: keys go through as they are, sizes are told, and the terminal is left as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use forkd_tests::engine::process::Failure;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

use crate::programs::wait_for;
use crate::stand_in::{Act, ID, StandIn, usual};
use crate::world::Home;

/// Both ends of a new terminal, of this size.
fn terminal(cols: u16, rows: u16) -> Result<(File, OwnedFd), Failure> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    resize(&theirs, cols, rows)?;
    Ok((ours.into(), theirs))
}

fn resize(terminal: &OwnedFd, cols: u16, rows: u16) -> Result<(), Failure> {
    Ok(tcsetwinsize(terminal, Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 })?)
}

#[test]
fn a_shell_has_the_whole_terminal() -> Result<(), Failure> {
    let home = Home::new()?;
    let program = [
        Act::Stdout(b"ready\r\n"),
        Act::Until("\u{3}"),
        Act::Until("resize"),
        Act::Stdout(b"bye\r\n"),
        Act::Exit(9),
    ];
    let daemon = StandIn::start(home.path(), &program, usual)?;
    let (mut ours, theirs) = terminal(111, 33)?;
    let mut command = home.command(&["shell", ID]);
    command.env("TERM", "vt100").stdin(Stdio::from(theirs.try_clone()?));
    command.stdout(Stdio::from(theirs.try_clone()?)).stderr(Stdio::from(theirs.try_clone()?));
    let mut child = command.spawn()?;
    wait_for(&daemon, "\"args\"", 1)?;
    let start: Value = serde_json::from_str(&daemon.asked()[1])?;
    assert_eq!(
        (&start["tty"], &start["env"]["TERM"]),
        (&json!({ "cols": 111, "rows": 33 }), &"vt100".into())
    );
    read_until(&mut ours, "ready")?;
    assert!(!tcgetattr(&theirs)?.local_modes.contains(LocalModes::ICANON), "keys are not taken one by one");
    // Ctrl-C is a key like any other.
    ours.write_all(b"ls\x03")?;
    wait_for(&daemon, "\u{3}", 1)?;
    resize(&theirs, 50, 20)?;
    // The terminal is not the command's controlling one, so nobody else tells it.
    kill_process(Pid::from_child(&child), Signal::WINCH)?;
    wait_for(&daemon, r#"{"resize":{"cols":50,"rows":20}}"#, 1)?;
    read_until(&mut ours, "bye")?;
    assert_eq!(child.wait()?.code(), Some(9));
    assert!(tcgetattr(&theirs)?.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    Ok(())
}

fn read_until(terminal: &mut File, words: &str) -> Result<(), Failure> {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(words) {
        let mut byte = [0];
        terminal.read_exact(&mut byte)?;
        text.extend(byte);
    }
    Ok(())
}
