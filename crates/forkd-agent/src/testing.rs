//! What unit tests share. All of a test process have one reaper, so no test may wait for a child by other means.

use forkd_envd::Exit;

use crate::agent::{Agent, Settings};
use crate::children::tests::children;
use crate::children::{Source, Spec, Stdio, Target};
use crate::users;

pub fn agent(settings: Settings) -> Agent {
    Agent::with_children(children(), settings, false)
}

/// Runs a program to its end: how it ended, and what it printed.
pub fn run(program: &str, arguments: &[&str]) -> (Exit, String) {
    crate::runtime::new().unwrap().block_on(async {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let spec = Spec {
            program: program.into(),
            arguments: arguments.iter().map(Into::into).collect(),
            environment: vec![("PATH".into(), path), ("LC_ALL".into(), "C.UTF-8".into())],
            directory: "/".into(),
            user: users::current(),
            stdio: Stdio::Streams { input: Source::Null, output: Target::Pipe, error: Target::Null },
        };
        let mut child = children().spawn(spec).await.unwrap();
        let mut output = child.output.take().unwrap();
        let mut text = Vec::new();
        loop {
            let chunk = output.read(1 << 16).await.unwrap();
            if chunk.is_empty() {
                return (child.exit.wait().await, String::from_utf8(text).unwrap());
            }
            text.extend_from_slice(&chunk);
        }
    })
}

/// Runs an ignored test of this process in a network namespace of its own, on hosts where it may make one.
pub fn run_in_network_namespace(test: &str) {
    if run("unshare", &["--net", "true"]).0 != Exit::Code(0) {
        // Namespaces are root's on some hosts.
        return;
    }
    let program = std::env::current_exe().unwrap();
    let (exit, said) = run("unshare", &["--net", program.to_str().unwrap(), "--ignored", "--exact", test]);
    assert_eq!(exit, Exit::Code(0), "{said}");
}
