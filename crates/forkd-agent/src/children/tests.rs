use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use forkd_envd::process::TerminalSize;

use super::*;
use crate::users::{self, User};

/// One reaper for all tests of this process, on a thread of its own: there can be only one who waits for any child.
pub fn children() -> Children {
    static CHILDREN: OnceLock<Children> = OnceLock::new();
    let start = || {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            crate::runtime::new().unwrap().block_on(async {
                sender.send(Children::start().unwrap()).unwrap();
                std::future::pending::<()>().await;
            });
        });
        receiver.recv().unwrap()
    };
    CHILDREN.get_or_init(start).clone()
}

pub fn shell(script: &str, stdio: Stdio) -> Spec {
    Spec {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        environment: vec![("PATH".into(), "/usr/bin:/bin".into()), ("WORD".into(), "said".into())],
        directory: "/tmp".into(),
        user: users::current(),
        stdio,
    }
}

pub fn pipes() -> Stdio {
    Stdio::Streams { input: Source::Pipe, output: Target::Pipe, error: Target::Null }
}

async fn all(output: &mut Output) -> String {
    let mut text = Vec::new();
    loop {
        let chunk = output.read(1000).await.unwrap();
        if chunk.is_empty() {
            return String::from_utf8(text).unwrap();
        }
        text.extend_from_slice(&chunk);
    }
}

#[tokio::test]
async fn a_child_reads_writes_and_ends() {
    let mut child = children().spawn(shell("cat; echo $WORD $(pwd); exit 3", pipes())).await.unwrap();
    let mut input = child.input.take().unwrap();
    input.write(b"heard\n").await.unwrap();
    drop(input);
    assert_eq!(all(child.output.as_mut().unwrap()).await, "heard\nsaid /tmp\n");
    assert_eq!(child.exit.wait().await, Exit::Code(3));
    assert_eq!(child.exit.wait().await, Exit::Code(3));
}

#[tokio::test]
async fn the_exit_of_a_child_that_dies_at_once_is_not_lost() {
    let children = children();
    let mut started = Vec::new();
    for number in 0..100 {
        let stdio = Stdio::Streams { input: Source::Null, output: Target::Null, error: Target::Null };
        started.push((number, children.spawn(shell(&format!("exit {number}"), stdio)).await.unwrap()));
    }
    for (number, mut child) in started {
        let exit = tokio::time::timeout(Duration::from_secs(20), child.exit.wait()).await;
        assert_eq!(exit, Ok(Exit::Code(number)));
    }
}

#[tokio::test]
async fn a_whole_group_is_killed() {
    let children = children();
    let mut child = children.spawn(shell("sleep 100 & echo $!; wait", pipes())).await.unwrap();
    let line = child.output.as_mut().unwrap().read(100).await.unwrap();
    let grandchild = format!("/proc/{}", String::from_utf8_lossy(&line).trim());
    assert!(Path::new(&grandchild).exists());
    children.signal_group(child.pid, Signal::KILL).await.unwrap();
    assert_eq!(child.exit.wait().await, Exit::Signal(9));
    assert_eq!(children.signal_group(child.pid, Signal::KILL).await, Err(signal::Gone));
    // The pipe ends when the last one who had it is gone.
    assert_eq!(all(child.output.as_mut().unwrap()).await, "");
}

/// In a leader of a process group it would fork, and be over before its program is.
#[tokio::test]
async fn setsid_is_waited_for() {
    let children = children();
    let mut child =
        children.spawn(shell("exec setsid sh -c 'sleep 0.1; echo text; exit 7'", pipes())).await.unwrap();
    assert_eq!(all(child.output.as_mut().unwrap()).await, "text\n");
    assert_eq!(child.exit.wait().await, Exit::Code(7));

    let script = "exec setsid sh -c 'sleep 100 & echo ready; wait'";
    let mut child = children.spawn(shell(script, pipes())).await.unwrap();
    assert_eq!(child.output.as_mut().unwrap().read(100).await.unwrap(), "ready\n");
    children.signal_group(child.pid, Signal::KILL).await.unwrap();
    assert_eq!(child.exit.wait().await, Exit::Signal(9));
    assert_eq!(all(child.output.as_mut().unwrap()).await, "", "its children are gone, too");
}

#[tokio::test]
async fn what_cannot_be_started_is_named() {
    let children = children();
    let mut missing = shell("", pipes());
    missing.program = "no-such-program".into();
    assert!(
        matches!(children.spawn(missing).await, Err(SpawnError::NotFound(name)) if name == "no-such-program")
    );
    let mut not_a_program = shell("", pipes());
    not_a_program.program = "/etc/passwd".into();
    assert!(matches!(children.spawn(not_a_program).await, Err(SpawnError::Denied(_))));
    let mut with_nul = shell("", pipes());
    with_nul.arguments.push("a\0b".into());
    assert!(matches!(children.spawn(with_nul).await, Err(SpawnError::Invalid(_))));
}

#[tokio::test]
async fn a_terminal_is_the_controlling_one() {
    let script = "stty size; tty; echo text > /dev/tty; read line; echo \"<$line>\"";
    let mut child = children()
        .spawn(shell(script, Stdio::Terminal(TerminalSize { columns: 101, rows: 33 })))
        .await
        .unwrap();
    child.input.as_mut().unwrap().write(b"typed\n").await.unwrap();
    let text = all(child.output.as_mut().unwrap()).await;
    assert!(text.contains("33 101\r\n") && text.contains("/dev/pts/"), "{text}");
    assert!(text.contains("text\r\n") && text.contains("<typed>\r\n"), "{text}");
    assert_eq!(child.exit.wait().await, Exit::Code(0));
}

#[tokio::test]
async fn a_child_is_somebody_else_if_root_says_so() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut spec = shell("id -u; id -g; id -G; cat /proc/self/oom_score_adj; ls /root", pipes());
    spec.user = User { name: "x".into(), uid: 4242, gid: 4243, home: "/".into(), groups: vec![4243, 4244] };
    let mut child = children().spawn(spec).await.unwrap();
    assert_eq!(all(child.output.as_mut().unwrap()).await, "4242\n4243\n4243 4244\n100\n");
    assert_ne!(child.exit.wait().await, Exit::Code(0));
}

#[tokio::test]
async fn orphans_are_taken_in() {
    let children = children();
    // What PID 1 is without a call.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut child = children.spawn(shell("sleep 0.2 & echo $!", pipes())).await.unwrap();
    let orphan = format!("/proc/{}", all(child.output.as_mut().unwrap()).await.trim());
    child.exit.wait().await;
    for _ in 0..200 {
        if !Path::new(&orphan).exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{orphan} is still there: {:?}", std::fs::read_to_string(format!("{orphan}/stat")));
}
