//! A home whose daemon is in the machine. Here it is one of this host with another home, behind the port of a machine that is
//! only said to run.

use std::fs;
use std::path::Path;

use forkd_tests::engine::process::Failure;
use forkd_tests::tiny_library::fill;
use serde_json::json;
use snapbox::{assert_data_eq, str};

use crate::images::{is_root, tar};
use crate::world::{Home, World};

/// Says that the machine `default` of a home runs, with its daemon at a port.
fn pretend(home: &Home, daemon: &World) -> Result<(), Failure> {
    let directory = home.path().join("machines/default");
    fs::create_dir_all(&directory)?;
    let machine = json!({ "format": 1, "cpus": 1, "memory_mib": 1, "disk_mib": 1, "image": "none" });
    fs::write(directory.join("machine.json"), machine.to_string())?;
    // The 22nd word, of which the second may have spaces and ends with a bracket.
    let stat = fs::read_to_string("/proc/self/stat")?;
    let behind = stat.rsplit_once(')').ok_or("no name")?.1;
    let start_time: u64 = behind.split_whitespace().nth(19).ok_or("no start time")?.parse()?;
    let run = json!({
        "process": { "pid": std::process::id(), "start_time": start_time },
        "accelerator": "tcg", "started_at": 1, "ready": true,
        "binaries": { "path": "/", "device": 0, "inode": 0 },
        "ports": { "ssh": 1, "api": daemon.address()?.port() },
    });
    fs::write(directory.join("run.json"), run.to_string())?;
    fs::write(directory.join("token"), daemon.stdout(&["token", "create", "host", "--scope", "admin"])?)?;
    Ok(())
}

fn is_there(home: &Home, store: &str) -> bool {
    let entries = fs::read_dir(home.path().join("library").join(store)).into_iter().flatten();
    entries.flatten().any(|entry| entry.path().is_dir() && entry.file_name() != *"names")
}

#[test]
fn images_are_made_here_and_seen_there() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let home = Home::new()?;
    fill(&home.path().join("library"))?;
    let library = home.path().join("library").to_string_lossy().into_owned();
    let inside = World::with(&["--listen", "127.0.0.1:0", "--shared-library", &library])?;
    pretend(&home, &inside)?;
    assert_data_eq!(
        home.run(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME          ID            ON DISK     SIZE  USER  LIBRARY
empty:latest  [..]  1.0 MiB  1.0 MiB  root  shared

"#]]
    );
    assert_data_eq!(
        home.run(&["kernel", "ls"])?,
        str![[r#"
exit: 0
--- stdout
ID    VERSION  MODULES  LIBRARY  DEFAULT
tiny  0              0  shared   yes

"#]]
    );

    // Here, where nothing is emulated; the machine's daemon has it at once.
    let archive = |name: &str, content: &[u8]| -> Result<String, Failure> {
        let path = home.path().join(name);
        fs::write(&path, tar("a", content)?)?;
        Ok(path.to_string_lossy().into_owned())
    };
    home.stdout(&["image", "import", &archive("here.tar", b"here")?])?;
    assert!(!is_there(&inside, "images") && home.path().join("library/images/names/here%3Alatest").exists());
    let address = format!("http://{}", inside.address()?);
    let token = home.path().join("machines/default/token").to_string_lossy().into_owned();
    let named = ["--address", &address, "--token-file", &token];
    home.stdout(&[&["image", "import", &archive("there.tar", b"there")?], &named[..]].concat())?;
    assert!(is_there(&inside, "images"));
    assert_data_eq!(
        home.run(&["image", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME          ID            ON DISK     SIZE  USER  LIBRARY
empty:latest  [..]  1.0 MiB  1.0 MiB  root  shared
here:latest   [..]  1.0 GiB  root  shared
there:latest  [..]  1.0 GiB  root  own

"#]]
    );

    // Each is removed where it is.
    assert_data_eq!(
        home.run(&["image", "rm", "there", "here", "none"])?,
        str![[r#"
exit: 1
--- stderr
there is removed; freed [..].
here is removed; freed [..].
forkd: there is no image "none"
hint: see forkd image ls

"#]]
    );
    assert!(!is_there(&inside, "images") && !Path::new(&library).join("images/names/here%3Alatest").exists());
    assert_data_eq!(
        home.run(&["kernel", "rm", "tiny", "--force"])?,
        str![[r#"
exit: 0
--- stderr
Kernel tiny is removed.

"#]]
    );
    assert!(!is_there(&home, "kernels"));
    Ok(())
}
