use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::children::tests::{children, pipes, shell};
use forkd_envd::Exit;

use crate::children::Signal;

/// A directory that looks like the root of cgroup v2 to the agent, and has the cgroup of programs in it.
pub fn imitation(directory: &Path) -> PathBuf {
    let group = directory.join(NAME);
    fs::create_dir(&group).unwrap();
    for (path, text) in [
        (directory.join("cgroup.procs"), ""),
        (group.join("cgroup.procs"), ""),
        (group.join(FREEZE), "0"),
        (group.join("cgroup.events"), "populated 1\nfrozen 1\n"),
    ] {
        fs::write(path, text).unwrap();
    }
    group.join(FREEZE)
}

/// A cgroup of this host to be the root. Removed with all that is below, when this is dropped.
struct Root(PathBuf);

impl Root {
    /// Nothing where there is no cgroup v2, or it is not ours to change.
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mounted = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let path =
            Path::new(mounted.split(' ').nth(1)?).join(format!("forkd-agent-{name}-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        std::thread::sleep(Duration::from_millis(200));
        for path in listing::paths(&self.0).unwrap_or_default() {
            let _ = fs::remove_dir(path);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn programs_stand_still_from_the_freeze_to_the_thaw() {
    let Some(root) = Root::new("programs") else { return };
    let other = root.0.join("frozen-by-its-owner");
    fs::create_dir(&other).unwrap();
    fs::write(other.join(FREEZE), "1").unwrap();
    let children = children().below(&root.0);

    let count = "while :; do echo tick; sleep 0.01; done";
    let mut program = children.spawn(shell(count, pipes())).await.unwrap();
    let group = fs::read_to_string(format!("/proc/{}/cgroup", program.pid)).unwrap();
    assert!(group.trim_end().ends_with("/forkd"), "{group}");
    let output = program.output.as_mut().unwrap();
    assert!(!output.read(1000).await.unwrap().is_empty());

    children.freeze().await.unwrap();
    children.freeze().await.unwrap();
    assert!(children.are_frozen().await);
    let silence = Duration::from_millis(100);
    // What was in the pipe comes before the silence.
    while let Ok(chunk) = tokio::time::timeout(silence, output.read(1000)).await {
        assert!(!chunk.unwrap().is_empty());
    }
    // Hooks run, and programs that are started wait.
    let mut hook = children.spawn_beside(shell("exit 4", pipes())).await.unwrap();
    assert_eq!(hook.exit.wait().await, Exit::Code(4));
    let waiting = tokio::spawn({
        let children = children.clone();
        async move { children.spawn(shell("exit 5", pipes())).await.unwrap().exit.wait().await }
    });
    tokio::time::sleep(silence).await;
    assert!(!waiting.is_finished());

    assert_eq!(children.thaw().await, Vec::<String>::new());
    assert!(!children.are_frozen().await && !output.read(1000).await.unwrap().is_empty());
    assert_eq!(waiting.await.unwrap(), Exit::Code(5));
    assert_eq!(fs::read_to_string(other.join(FREEZE)).unwrap().trim(), "1");
    children.signal_group(program.pid, Signal::KILL).await.unwrap();
    program.exit.wait().await;
}

#[tokio::test]
async fn cgroups_of_others_are_frozen_too_and_late_ones_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let freeze = imitation(directory.path());
    let docker = directory.path().join("docker");
    fs::create_dir(&docker).unwrap();
    fs::write(docker.join(FREEZE), "0\n").unwrap();
    fs::write(docker.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    let children = children().below(directory.path());
    let late = children.freeze().await.unwrap_err();
    assert!(matches!(&late, FreezeError::Late(path) if *path == docker), "{late}");
    assert!(children.are_frozen().await);
    let state = || [&freeze, &docker.join(FREEZE)].map(|path| fs::read_to_string(path).unwrap());
    assert_eq!(state(), ["1", "1"]);
    assert_eq!(children.thaw().await, Vec::<String>::new());
    assert_eq!(state(), ["0", "0"]);
}

#[tokio::test]
async fn without_cgroups_nothing_is_frozen() {
    let directory = tempfile::tempdir().unwrap();
    let children = children().below(directory.path());
    assert!(matches!(children.freeze().await, Err(FreezeError::Unsupported)));
    let mut child = children.spawn(shell("exit 3", pipes())).await.unwrap();
    assert_eq!(child.exit.wait().await, Exit::Code(3));
    assert!(!directory.path().join(NAME).exists());
}
