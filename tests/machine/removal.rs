//! `rm` leaves nothing.

use std::fs;
use std::net::TcpStream;

use forkd_tests::{TestResult, check};

use crate::world::{World, is_alive};

pub fn nothing_is_left() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    world.forkd(&["start"])?;
    let status = world.status()?;
    let (pid, directory) = (world.pid()?, world.machine("default"));
    let refused = world.refused(&["rm"])?;
    check!(refused.contains("is running; stop it first, or use --force"), "rm says: {refused}");
    world.exec(&["true"])?;

    world.forkd(&["rm", "--force"])?;
    check!(!is_alive(pid), "QEMU is still there");
    for port in ["ssh_port", "api_port"] {
        let port = u16::try_from(status[port].as_u64().ok_or("no port")?)?;
        check!(TcpStream::connect(("127.0.0.1", port)).is_err(), "somebody still listens on {port}");
    }
    let files = world.machine_files()?;
    check!(files.is_empty(), "left in the machines' directory: {files:?}");
    let holders: Vec<String> = processes_in(&directory)?;
    check!(holders.is_empty(), "processes are left: {holders:?}");
    // The name can be had again.
    world.forkd(&["init"])?;
    world.forkd(&["rm"])?;
    Ok(())
}

/// Processes whose working directory is, or was, this one; the shared connection of ssh ends a moment after QEMU.
fn processes_in(directory: &std::path::Path) -> Result<Vec<String>, crate::world::Failure> {
    let mut left = Vec::new();
    for _ in 0..100 {
        left.clear();
        for entry in fs::read_dir("/proc")?.flatten() {
            let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            if cwd.to_string_lossy().contains(&*directory.to_string_lossy())
                || cwd.to_string_lossy().contains("/.rm-")
            {
                left.push(fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default());
            }
        }
        if left.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(left)
}

pub fn a_damaged_machine_can_be_removed() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    world.forkd(&["start"])?;
    let pid = world.pid()?;
    for name in ["machine.json", "run.json"] {
        fs::write(world.machine("default").join(name), "{\"half")?;
    }
    let refused = world.refused(&["status"])?;
    check!(refused.contains("machine.json is damaged"), "status says: {refused}");
    let refused = world.refused(&["rm"])?;
    check!(refused.contains("run.json is damaged"), "rm says: {refused}");
    world.forkd(&["rm", "--force"])?;
    check!(!is_alive(pid), "QEMU is still there");
    let files = world.machine_files()?;
    check!(files.is_empty(), "left in the machines' directory: {files:?}");
    Ok(())
}
