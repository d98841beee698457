//! Over TCP, who one is.

use std::process::Command;

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::world::World;

fn over_tcp(world: &World, address: &str, arguments: &[&str], token: Option<&str>) -> Command {
    let mut command = world.command(arguments);
    command.env("FORKD_ADDRESS", address);
    if let Some(token) = token {
        command.env("FORKD_TOKEN", token);
    }
    command
}

#[test]
fn a_token_is_needed_good_and_good_enough() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", world.address()?);
    let secret = world.stdout(&["token", "create", "reader", "--scope", "read"])?;
    let with = |arguments: &[&str], token: Option<&str>| -> Result<String, Failure> {
        Ok(outcome(&over_tcp(&world, &address, arguments, token).output()?, world.path()))
    };
    assert_data_eq!(
        with(&["ls"], None)?,
        str![[r#"
exit: 1
--- stderr
forkd: a token is needed
hint: FORKD_TOKEN or --token-file gives a token; forkd token create makes one

"#]]
    );
    assert_data_eq!(
        with(&["ls"], Some("wrong"))?,
        str![[r#"
exit: 1
--- stderr
forkd: malformed token
hint: FORKD_TOKEN or --token-file gives a token; forkd token create makes one

"#]]
    );
    assert_data_eq!(
        with(&["ls"], Some(&secret))?,
        str![[r#"
exit: 0
--- stdout
ID  SNAPSHOT  STATE  AGE  ENDS IN  VCPUS  MEMORY  PID  BRANCHES

"#]]
    );
    assert_data_eq!(
        with(&["fork", "base"], Some(&secret))?,
        str![[r#"
exit: 1
--- stderr
forkd: this needs the scope run, and the token has read
hint: make one on the daemon's host: forkd token create NAME --scope run

"#]]
    );
    assert_data_eq!(
        with(&["exec", "inone", "--", "true"], Some("wrong"))?,
        str![[r#"
exit: 1
--- stderr
forkd: malformed token
hint: FORKD_TOKEN or --token-file gives a token; forkd token create makes one

"#]]
    );
    Ok(())
}

#[test]
fn a_token_has_so_many_sandboxes_and_no_more() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", world.address()?);
    let secret = world.stdout(&["token", "create", "small", "--max-sandboxes", "2", "--max-memory", "1G"])?;
    let other = world.stdout(&["token", "create", "tiny", "--max-memory", "100M", "--max-vcpus", "4"])?;
    let with = |arguments: &[&str], token: &str| over_tcp(&world, &address, arguments, Some(token)).output();
    let told = |arguments: &[&str], token: &str| -> Result<String, Failure> {
        Ok(outcome(&with(arguments, token)?, world.path()))
    };
    let refused = str![[r#"
exit: 1
--- stderr
forkd: limit of the token exceeded for sandboxes: 0 in use, 3 requested, limit 2
hint: remove some of its sandboxes or branches first, or use a token that allows more

"#]];
    assert_data_eq!(told(&["fork", "base", "-n", "3"], &secret)?, refused);
    let made = with(&["fork", "base", "-n", "2"], &secret)?;
    assert!(made.status.success(), "{made:?}");
    let ids = String::from_utf8(made.stdout)?;
    let first = ids.lines().next().ok_or("no id")?;
    assert!(told(&["inspect", first], &secret)?.contains("token:small"));
    assert!(told(&["fork", first], &secret)?.contains("2 in use, 1 requested, limit 2"));
    // What somebody else has is none of its business.
    assert!(with(&["fork", "base"], &other)?.status.success());
    let refused = str![[r#"
exit: 1
--- stderr
forkd: limit of the token exceeded for MiB of memory: 64 in use, 64 requested, limit 100
hint: remove some of its sandboxes or branches first, or use a token that allows more

"#]];
    assert_data_eq!(told(&["fork", "base"], &other)?, refused);
    assert!(with(&["kill", first], &secret)?.status.success());
    assert!(with(&["fork", "base"], &secret)?.status.success());
    Ok(())
}

#[test]
fn clients_of_e2b_are_told_where_the_daemon_is_and_with_which_key() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let secret = world.stdout(&["token", "create", "agents"])?;
    let address = format!("http://{}", world.address()?);
    let told = over_tcp(&world, &address, &["e2b", "env"], Some(&secret)).output()?;
    let told = String::from_utf8(told.stdout)?;
    let expected = format!(
        "export E2B_API_URL={address}\nexport E2B_SANDBOX_URL={address}\nexport E2B_API_KEY={secret}\n"
    );
    let files = told.strip_prefix(&expected).ok_or(told.clone())?;
    // Where the daemon's CA is, alone and with all that the system trusts.
    let value = |line: &str, name: &str| line.strip_prefix(&format!("export {name}=")).map(str::to_owned);
    let node = files.lines().find_map(|line| value(line, "NODE_EXTRA_CA_CERTS")).ok_or("no file for Node")?;
    let ca = std::fs::read_to_string(&node)?;
    assert!(node.starts_with(&world.path().display().to_string()) && ca.starts_with("-----BEGIN"), "{node}");
    if let Some(both) = files.lines().find_map(|line| value(line, "SSL_CERT_FILE")) {
        assert!(std::fs::read_to_string(both)?.ends_with(&ca));
        assert_eq!(files.lines().count(), 3, "{files}");
    }
    // Over its socket, the daemon says where it listens for TCP, and that a token is needed there.
    let told = world.output(&["e2b", "env"])?;
    let (stdout, stderr) = (String::from_utf8(told.stdout)?, String::from_utf8(told.stderr)?);
    assert!(stdout.starts_with(&format!("export E2B_API_URL={address}\n")), "{stdout}");
    assert!(!stdout.contains("E2B_API_KEY"), "{stdout}");
    assert!(stderr.contains(r#"export E2B_API_KEY="$(forkd token create NAME)""#), "{stderr}");
    Ok(())
}

#[test]
fn clients_of_e2b_need_a_tcp_port_and_no_token_before_there_is_one() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let told = world.stdout(&["e2b", "env"])?;
    assert!(told.starts_with(&format!("export E2B_API_URL=http://{}\n", world.address()?)), "{told}");
    assert!(told.contains("E2B_API_KEY=e2b_0"), "{told}");
    assert_data_eq!(
        World::new()?.run(&["e2b", "env"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the daemon does not listen on TCP, which E2B's SDKs need
hint: start it with a TCP port: forkd serve --listen 127.0.0.1:8889

"#]]
    );
    Ok(())
}

#[test]
fn a_token_belongs_to_a_project_and_sees_what_is_shared() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", world.address()?);
    let secret = world.stdout(&["token", "create", "agents", "--project", "team"])?;
    let with = |arguments: &[&str]| -> Result<String, Failure> {
        Ok(outcome(&over_tcp(&world, &address, arguments, Some(&secret)).output()?, world.path()))
    };
    assert_data_eq!(
        with(&["fork", "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or sandbox is named base
hint: see forkd snapshot ls and forkd ls --all

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "share", "base"])?,
        str![[r#"
exit: 0
--- stderr
Every project can fork from base.

"#]]
    );
    assert_data_eq!(
        world.run(&["project", "limit", "team", "--max-sandboxes", "1"])?,
        str![[r#"
exit: 0
--- stderr
Limits of project team: 1 sandboxes.

"#]]
    );
    assert_data_eq!(
        world.run(&["project", "ls"])?,
        str![[r#"
exit: 0
--- stdout
NAME     TOKENS  LIMITS
default       0  none
team          1  1 sandboxes

"#]]
    );
    let made = with(&["fork", "base", "--json"])?;
    assert!(made.contains(r#""project": "team""#), "{made}");
    assert_data_eq!(
        with(&["fork", "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: limit of the project exceeded for sandboxes: 1 in use, 1 requested, limit 1
hint: remove some of its sandboxes or branches first, or raise its limits on the daemon's host: forkd project limit

"#]]
    );
    assert_data_eq!(
        with(&["snapshot", "rm", "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot base belongs to another project
hint: it is public: every project can use it, but only a token of its own project or one with the scope admin can change it

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "share", "base", "--off"])?,
        str![[r#"
exit: 0
--- stderr
Only project default can fork from base.

"#]]
    );
    assert!(world.run(&["token", "create", "x", "--project", "a b"])?.contains("invalid project name"));
    Ok(())
}

#[test]
fn a_token_can_have_the_secret_of_a_file() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", world.address()?);
    let file = world.path().join("secret");
    let create = ["token", "create", "pod", "--secret-file", file.to_str().ok_or("a path")?];
    for secret in
        ["e2b_0123456789abcdef0123456789abcdef01234567", "e2b_ffffffffffffffffffffffffffffffffffffffff"]
    {
        std::fs::write(&file, format!("{secret}\n"))?;
        // Again is the same, and another secret replaces the first.
        for _ in 0..2 {
            assert_data_eq!(
                world.run(&create)?,
                str![[r#"
exit: 0
--- stderr
Created the token pod.

"#]]
            );
        }
        assert!(over_tcp(&world, &address, &["ls"], Some(secret)).output()?.status.success());
    }
    let first = "e2b_0123456789abcdef0123456789abcdef01234567";
    assert!(!over_tcp(&world, &address, &["ls"], Some(first)).output()?.status.success());
    std::fs::write(&file, "password\n")?;
    assert_data_eq!(
        world.run(&create)?,
        str![[r#"
exit: 1
--- stderr
forkd: HOME/secret has no secret: expected e2b_ and 40 hexadecimal digits (echo e2b_$(openssl rand -hex 20))

"#]]
    );
    Ok(())
}
