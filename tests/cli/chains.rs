//! Chains of snapshots.

use std::fs;

use forkd_proto::control::Vsock;
use forkd_tests::engine::process::Failure;
use forkd_tests::fake_agent::FakeAgents;
use snapbox::{assert_data_eq, str};

use crate::world::{Home, World};

#[test]
fn a_history_is_shown_and_a_chain_is_verified() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    world.run(&["snapshot", "make", "--from", &id, "--tag", "child"])?;
    world.run(&["snapshot", "make", "--from", &id, "--tag", "other"])?;
    assert_data_eq!(
        world.run(&["snapshot", "history", "base"])?,
        str![[r#"
exit: 0
--- stdout
SNAPSHOT  KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED  NAMES
base *    full  ready  [..]
├─ child  diff  ready  [..]
└─ other  diff  ready  [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "history", "child"])?,
        str![[r#"
exit: 0
--- stdout
SNAPSHOT    KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED  NAMES
base        full  ready  [..]
└─ child *  diff  ready  [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "verify", "child"])?,
        str![[r#"
exit: 0
--- stdout
tag             child
result          intact
snapshots       2
disk layers     0
read            [..] KiB

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "verify", "none"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no snapshot "none"
hint: see forkd snapshot ls

"#]]
    );
    Ok(())
}

#[test]
fn a_snapshot_gets_and_loses_names() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(&["snapshot", "make", "--from", &world.fork("base")?, "--tag", "child"])?;
    assert_data_eq!(
        world.run(&["snapshot", "tag", "base", "latest"])?,
        str![[r#"
exit: 0
--- stderr
latest is a name of snapshot base.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "latest"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the name latest is in use: it is a name of snapshot base
hint: choose another name, or move it with --force

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "latest", "--force"])?,
        str![[r#"
exit: 0
--- stderr
latest is a name of snapshot child.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "child"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot child has other names: latest
hint: remove those names first (forkd snapshot rm NAME), or all with --all-names

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "latest"])?,
        str![[r#"
exit: 0
--- stdout
latest

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "again"])?,
        str![[r#"
exit: 0
--- stderr
again is a name of snapshot child.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "child", "--all-names"])?,
        str![[r#"
exit: 0
--- stdout
child

"#]]
    );
    Ok(())
}

#[test]
fn a_snapshot_is_compacted() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(&["snapshot", "make", "--from", &world.fork("base")?, "--tag", "child"])?;
    assert_data_eq!(
        world.run(&["snapshot", "compact", "child"])?,
        str![[r#"
exit: 0
--- stderr
Snapshot child is full: [..] of memory on disk.

"#]]
    );
    world.run(&["snapshot", "make", "--from", &world.fork("child")?, "--tag", "next"])?;
    assert_data_eq!(
        world.run(&["snapshot", "compact", "child"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot child is the parent of next
hint: compact or remove them first

"#]]
    );
    Ok(())
}

/// A daemon whose `base` has a fake agent.
fn with_agents() -> Result<(World, FakeAgents), Failure> {
    let home = Home::new()?;
    let agents = FakeAgents::below(&home.path().join("engine"));
    let world = World::over(home, &["--listen", "none"], |base| {
        base.shape.devices.vsock = Some(Vsock { cid: 3 });
        Ok(())
    })?;
    Ok((world, agents))
}

#[test]
fn a_chain_is_built_from_a_file() -> Result<(), Failure> {
    let (world, _agents) = with_agents()?;
    let path = world.path().join("forkd.toml");
    let file = path.to_str().ok_or("a path")?;
    let chain = |command: &str| {
        format!(
            "[snapshot.numpy]\nfrom = \"snapshot:base\"\nrun = [\"one\"]\n\
             [snapshot.pandas]\nfrom = \"numpy\"\nrun = [\"{command}\"]\nenv = {{ A = \"b\" }}\n\
             [snapshot.twin]\nfrom = \"base\"\nrun = [\"one\"]\n"
        )
    };
    fs::write(&path, chain("two"))?;
    assert_data_eq!(
        world.run(&["snapshot", "build", "-f", file, "--dry-run"])?,
        str![[r#"
exit: 0
--- stdout
NAME    WOULD BE  SNAPSHOT
numpy   made      -
twin    made      -
pandas  made      -

"#]]
    );
    let built = world.stdout(&["snapshot", "build", "-f", file])?;
    let rows: Vec<Vec<&str>> = built.lines().map(|line| line.split_whitespace().collect()).collect();
    let results: Vec<_> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(results, [("NAME", "RESULT"), ("numpy", "made"), ("twin", "reused"), ("pandas", "made")]);
    assert_eq!(rows[1][2], rows[2][2]);
    // Beside the file, without an option.
    let again = world.command(&["snapshot", "build"]).current_dir(world.path()).output()?;
    let again = String::from_utf8(again.stdout)?;
    assert_eq!(again.matches("unchanged").count(), 3, "{again}");
    fs::write(&path, chain("other"))?;
    let changed = world.stdout(&["snapshot", "build", "-f", file, "--json"])?;
    let changed: serde_json::Value = serde_json::from_str(&changed)?;
    let outcomes: Vec<_> = (0..3).map(|index| changed["snapshots"][index]["outcome"].as_str()).collect();
    assert_eq!(outcomes, [Some("unchanged"), Some("unchanged"), Some("made")]);
    assert_eq!(changed["snapshots"][2]["replaced"], rows[3][2]);
    let one = world.stdout(&["snapshot", "build", "-f", file, "twin", "--no-cache"])?;
    assert!(one.lines().count() == 2 && one.contains("twin  made"), "{one}");
    Ok(())
}

#[test]
fn a_file_that_is_wrong_is_refused_before_anything_is_made() -> Result<(), Failure> {
    let world = World::new()?;
    let path = world.path().join("forkd.toml");
    let file = path.to_str().ok_or("a path")?;
    let refused = |text: &str, arguments: &[&str]| -> Result<String, Failure> {
        fs::write(&path, text)?;
        let output = world.output(&[&["snapshot", "build", "-f", file], arguments].concat())?;
        assert_eq!(output.status.code(), Some(1), "{text}");
        Ok(String::from_utf8(output.stderr)?)
    };
    let good = "[snapshot.a]\nfrom = \"base\"\n";
    for (text, arguments, part) in [
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"none\"",
            &[][..],
            "forkd.toml: snapshot.b.from: no table, image or snapshot is named \"none\"",
        ),
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"image:base\"",
            &[],
            "snapshot.b.from: no image is named \"base\"",
        ),
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"snapshot:none\"",
            &[],
            "snapshot.b.from: no snapshot is named \"none\"",
        ),
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"base\"\nvcpus = 2",
            &[],
            "snapshot.b.vcpus: only valid for a snapshot of an image",
        ),
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"base\"\nwarm_up = [\"bash=@none.sh\"]",
            &[],
            "snapshot.b.warm_up: cannot read",
        ),
        (
            good.to_owned() + "[snapshot.b]\nfrom = \"c\"\n[snapshot.c]\nfrom = \"b\"",
            &[],
            "based on each other in a cycle: b from c from b",
        ),
        (good.to_owned(), &["a", "x"], "no table [snapshot.x]; the file has a"),
    ] {
        let says = refused(&text, arguments)?;
        assert!(says.contains(part), "{text}: {says}");
    }
    assert_eq!(world.stdout(&["snapshot", "ls", "--quiet"])?, "base");
    Ok(())
}

/// The examples of docs/snapshots.md are such files.
#[test]
fn the_documented_chains_can_be_read() -> Result<(), Failure> {
    let document = include_str!("../../docs/snapshots.md");
    let mut examples = document.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut parse = || forkd_image::chain::parse(examples.next().unwrap_or_default(), "forkd.toml".as_ref());
    let (chain, with_images) = (parse()?, parse()?);
    let names: Vec<&str> = chain.snapshots.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["base", "pandas"]);
    let names: Vec<&str> = with_images.images.iter().map(|image| image.name.as_str()).collect();
    assert_eq!(names, ["tools", "project"]);
    Ok(())
}
