//! Which VM processes there are below an engine's root, known to the engine or not: by the sockets that they listen at.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::process::Failure;

/// Every VM process with its directory. One whose directory was removed is there, too.
pub fn below(root: &Path) -> Result<Vec<(i32, PathBuf)>, Failure> {
    let sockets = listening(root)?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process may end while it is looked at.
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        if !program.to_string_lossy().contains("forkd-vmm") {
            continue;
        }
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let links = open.filter_map(|link| fs::read_link(link.path()).ok());
        let mut directories: Vec<_> = links.filter_map(|link| sockets.get(&link).cloned()).collect();
        directories.sort();
        directories.dedup();
        found.extend(directories.into_iter().map(|directory| (pid, directory)));
    }
    found.sort();
    Ok(found)
}

/// Control sockets by the way they look among a process's descriptors.
fn listening(root: &Path) -> Result<BTreeMap<PathBuf, PathBuf>, Failure> {
    let table = fs::read_to_string("/proc/net/unix")?;
    let socket = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path, where the flag is that of a socket that listens.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (flags, inode, path) = (*fields.get(3)?, *fields.get(6)?, Path::new(fields.get(7)?));
        let ours = flags == "00010000" && path.starts_with(root) && path.ends_with("control");
        ours.then(|| Some((PathBuf::from(format!("socket:[{inode}]")), path.parent()?.to_owned())))?
    };
    Ok(table.lines().filter_map(socket).collect())
}
