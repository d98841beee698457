//! Invalid arguments are refused before any daemon is asked, with status 2.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::Home;

#[test]
fn the_version_has_the_commit_and_its_date() -> Result<(), Failure> {
    let home = Home::new()?;
    let version = concat!("forkd ", env!("CARGO_PKG_VERSION"));
    assert_eq!(home.stdout(&["-V"])?, version);
    let long = home.stdout(&["--version"])?;
    let build = long.strip_prefix(&format!("{version} (")).and_then(|rest| rest.strip_suffix(')'));
    let (commit, date) = build.and_then(|build| build.split_once(' ')).ok_or(long.clone())?;
    // An archive of the sources has no commit, and no date unless SOURCE_DATE_EPOCH gave one.
    let is_commit = commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{long}");
    assert!(date.len() == 10 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'), "{long}");
    Ok(())
}

#[test]
fn a_verb_is_needed() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["no-such-verb"])?,
        str![[r#"
exit: 2
--- stderr
error: unrecognized subcommand 'no-such-verb'

Usage: forkd <COMMAND>

For more information, try '--help'.

"#]]
    );
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["exec", "i"])?,
        str![[r#"
exit: 2
--- stderr
error: the following required arguments were not provided:
  <COMMAND>...

Usage: forkd exec <SANDBOX> -- <COMMAND>...

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["kill"])?,
        str![[r#"
exit: 2
--- stderr
error: the following required arguments were not provided:
  <SANDBOX>...

Usage: forkd kill <SANDBOX>...

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot"])?,
        str![[r#"
exit: 2
--- stderr
error: the following required arguments were not provided:
  <IMAGE>

Usage: forkd snapshot <IMAGE>

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["rollback", "i"])?,
        str![[r#"
exit: 2
--- stderr
error: the following required arguments were not provided:
  <TAG>

Usage: forkd rollback <SANDBOX> <TAG>

For more information, try '--help'.

"#]]
    );
    Ok(())
}

#[test]
fn what_contradicts_itself_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["kill", "--all", "i"])?,
        str![[r#"
exit: 2
--- stderr
error: the argument '--all' cannot be used with '[SANDBOX]...'

Usage: forkd kill --all [SANDBOX]...

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot", "image", "--from", "i"])?,
        str![[r#"
exit: 2
--- stderr
error: the argument '[IMAGE]' cannot be used with '--from <SANDBOX>'

Usage: forkd snapshot <IMAGE>

For more information, try '--help'.

"#]]
    );
    Ok(())
}

#[test]
fn values_that_are_none_are_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["ls", "--address", "ftp://x"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value 'ftp://x' for '--address <ADDRESS>': expected unix:///path, http://host:port or https://host:port

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["fork", "base", "--ttl", "0"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value '0' for '--ttl <TIME>': expected seconds, or a time such as 90s, 10m or 2h

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["fork", "base", "--env", "A"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value 'A' for '--env <NAME=VALUE>': expected NAME=VALUE

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot", "image", "--warm-up", "ruby=1"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value 'ruby=1' for '--warm-up <LANGUAGE=CODE>': expected python, javascript, typescript, bash, r or java before the =

For more information, try '--help'.

"#]]
    );
    assert_data_eq!(
        home.run(&["snapshot", "image", "--memory", "much"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value 'much' for '--memory <SIZE>': expected a size such as 4G, 512M or 2048 (MiB)

For more information, try '--help'.

"#]]
    );
    Ok(())
}

#[test]
fn completions_and_manual_pages_are_generated() -> Result<(), Failure> {
    let home = Home::new()?;
    for shell in ["bash", "zsh", "fish"] {
        let script = home.stdout(&["completions", shell])?;
        assert!(script.contains("COMPLETE") && script.contains("forkd"), "{shell}: {script}");
    }
    let directory = home.path().join("man");
    assert_data_eq!(
        home.run(&["man", &directory.to_string_lossy()])?,
        str![[r#"
exit: 0
--- stderr
The manual pages are in HOME/man.

"#]]
    );
    for page in ["forkd.1", "forkd-run.1", "forkd-snapshot-ls.1"] {
        assert!(directory.join(page).is_file(), "{page}");
    }
    for (page, example) in
        [("forkd.1", "forkd fork warm"), ("forkd-snapshot-push.1", "forkd snapshot push warm ")]
    {
        let text = std::fs::read_to_string(directory.join(page))?;
        let (_, examples) = text.split_once(".SH EXAMPLES\n").ok_or(text.clone())?;
        assert!(examples.contains(example), "{page}: {text}");
    }
    assert!(!directory.join("forkd-build-guest.1").exists(), "a hidden command has no page");
    Ok(())
}
