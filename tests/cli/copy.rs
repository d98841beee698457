//! Copies into a sandbox and out of it, against a stand-in.

use std::fs;
use std::sync::{Arc, Mutex};

use forkd_tests::engine::process::Failure;
use serde_json::json;
use snapbox::{assert_data_eq, str};

use crate::stand_in::{ID, StandIn};
use crate::world::Home;

fn archive(entries: &[(&str, &str)]) -> Result<String, Failure> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        match content.strip_prefix("-> ") {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                archive.append_link(&mut header, name, target)?;
            }
            None => {
                header.set_size(content.len().try_into()?);
                archive.append_data(&mut header, name, content.as_bytes())?;
            }
        }
    }
    Ok(String::from_utf8(archive.into_inner()?)?)
}

#[test]
fn trees_go_in_under_the_right_name() -> Result<(), Failure> {
    let home = Home::new()?;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let _daemon = StandIn::start(home.path(), &[], move |request, body| {
        let base = format!("/v1/sandboxes/{ID}/files");
        if request == format!("GET {base}/info?path=%2Fsrv") {
            return Some((200, json!({
                "name": "srv", "path": "/srv", "kind": "directory", "size": 0, "mode": 493, "owner": "root", "group": "root",
                "modified_unix": 0,
            }).to_string()));
        }
        let path = request.strip_prefix(&format!("PUT {base}?path="))?.to_owned();
        let bytes = body.as_str()?.as_bytes().to_vec();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut names: Vec<String> = archive
            .entries()
            .ok()?
            .filter_map(|entry| {
                Some(entry.ok()?.path().ok()?.to_string_lossy().trim_end_matches('/').to_owned())
            })
            .collect();
        names.sort();
        seen.lock().expect("nobody panics with it").push(format!("{path} {}", names.join(" ")));
        Some((204, String::new()))
    })?;
    let tree = home.path().join("tree");
    fs::create_dir_all(tree.join("below"))?;
    fs::write(tree.join("below/file"), "text")?;
    let (tree, file) = (tree.display().to_string(), tree.join("below/file").display().to_string());
    for (from, to) in
        [(&tree, "/srv"), (&tree, "/srv/new"), (&tree, "/other/"), (&file, "/srv"), (&file, "/name")]
    {
        assert_data_eq!(
            home.run(&["cp", from, &format!("{ID}:{to}")])?,
            str![[r#"
exit: 0

"#]]
        );
    }
    home.stdout(&["cp", &file, &format!("{ID}:/name"), "--user", "app"])?;
    assert_data_eq!(
        home.run(&["cp", &format!("{ID}:/name"), &file, "--user", "app"])?,
        str![[r#"
exit: 2
--- stderr
forkd: --user sets the owner of files in a sandbox; files copied out of one belong to you

"#]]
    );
    let sent = sent.lock().expect("nobody panics with it").clone();
    assert_eq!(
        sent,
        [
            "%2Fsrv tree tree/below tree/below/file",
            "%2Fsrv new new/below new/below/file",
            "%2Fother%2F tree tree/below tree/below/file",
            "%2Fsrv file",
            "%2F name",
            "%2F&user=app name",
        ]
    );
    Ok(())
}

#[test]
fn trees_come_out_and_are_merged() -> Result<(), Failure> {
    let home = Home::new()?;
    let tree = archive(&[("out/a", "1"), ("out/d/b", "2")])?;
    let file = archive(&[("hostname", "name")])?;
    let hostile = archive(&[("x/link", "-> /tmp"), ("x/link/forkd-cp-hostile", "")])?;
    let _daemon = StandIn::start(home.path(), &[], move |request, _| {
        let path = request.strip_prefix(&format!("GET /v1/sandboxes/{ID}/files?path="))?;
        match path {
            "%2Fsrv%2Fout" => Some((200, tree.clone())),
            "%2Fetc%2Fhostname" => Some((200, file.clone())),
            "%2Fx" => Some((200, hostile.clone())),
            "%2Fcut%2Fout" => Some((200, tree.get(..600)?.to_owned())),
            "%2Fother" => Some((200, tree.clone())),
            "%2Fempty" => Some((200, String::new())),
            _ => None,
        }
    })?;
    let here = home.path().join("here");
    fs::create_dir(&here)?;
    let to = |name: &str| here.join(name).display().to_string();
    let from = |path: &str| format!("{ID}:{path}");
    // Under a new name, into a directory, over what is there already.
    home.stdout(&["cp", &from("/srv/out"), &to("new")])?;
    home.stdout(&["cp", &from("/srv/out/"), &to("")])?;
    fs::write(here.join("out/a"), "old")?;
    fs::write(here.join("out/kept"), "")?;
    home.stdout(&["cp", &from("/srv/out"), &to("")])?;
    home.stdout(&["cp", &from("/etc/hostname"), &to("file")])?;
    for (name, content) in [("new/d/b", "2"), ("out/a", "1"), ("out/kept", ""), ("file", "name")] {
        assert_eq!(fs::read_to_string(here.join(name))?, content, "{name}");
    }
    assert_data_eq!(
        home.run(&["cp", &from("/x"), &to("x")])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot unpack "x/link/forkd-cp-hostile": Too many levels of symbolic links (os error 40)

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", &from("/cut/out"), &to("cut")])?,
        str![[r#"
exit: 1
--- stderr
forkd: the archive cannot be read after "out/a": unexpected EOF during skip

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", &from("/other"), &to("other")])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot unpack "out/a": it was not asked for

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", &from("/empty"), &to("empty")])?,
        str![[r#"
exit: 1
--- stderr
forkd: the archive is empty

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", &from("/none"), &to("none")])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is none

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", &from("/srv/out"), &to("no/such/place")])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot copy HOME/here/no/such/place: No such file or directory (os error 2) at path "HOME/here/no/such/.forkd-cp-[..]"

"#]]
    );
    // Nothing of what failed is left.
    let mut left: Vec<String> = fs::read_dir(&here)?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into()))
        .collect();
    left.sort();
    assert_eq!(left, ["file", "new", "out"]);
    Ok(())
}

#[test]
fn copies_that_make_no_sense_are_refused() -> Result<(), Failure> {
    let home = Home::new()?;
    let _daemon = StandIn::start(home.path(), &[], |_, _| None)?;
    assert_data_eq!(
        home.run(&["cp", "a", "b"])?,
        str![[r#"
exit: 2
--- stderr
forkd: exactly one side must be in a sandbox (SANDBOX:PATH) and the other a local path

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", "i:/a", "j:/b"])?,
        str![[r#"
exit: 2
--- stderr
forkd: exactly one side must be in a sandbox (SANDBOX:PATH) and the other a local path

"#]]
    );
    assert_data_eq!(
        home.run(&["cp", "i:a", "b"])?,
        str![[r#"
exit: 2
--- stderr
forkd: a path in a sandbox must begin with a slash

"#]]
    );
    let missing = home.path().join("missing").display().to_string();
    assert_data_eq!(
        home.run(&["cp", &missing, "i:/a"])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot copy HOME/missing: No such file or directory (os error 2)

"#]]
    );
    Ok(())
}
