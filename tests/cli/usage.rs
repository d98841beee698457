//! What makes no sense is refused before anybody is asked, with status 2.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::Home;

#[test]
fn a_verb_is_needed() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(home.run(&["no-such-verb"])?, str![]);
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(home.run(&["exec", "i"])?, str![]);
    assert_data_eq!(home.run(&["kill"])?, str![]);
    assert_data_eq!(home.run(&["snapshot"])?, str![]);
    assert_data_eq!(home.run(&["rollback", "i"])?, str![]);
    Ok(())
}

#[test]
fn what_contradicts_itself_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(home.run(&["kill", "--all", "i"])?, str![]);
    assert_data_eq!(home.run(&["snapshot", "image", "--from", "i"])?, str![]);
    Ok(())
}

#[test]
fn values_that_are_none_are_named() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(home.run(&["ls", "--address", "ftp://x"])?, str![]);
    assert_data_eq!(home.run(&["fork", "base", "--ttl", "0"])?, str![]);
    assert_data_eq!(home.run(&["fork", "base", "--env", "A"])?, str![]);
    assert_data_eq!(home.run(&["snapshot", "image", "--warm-up", "ruby=1"])?, str![]);
    assert_data_eq!(home.run(&["snapshot", "image", "--memory", "much"])?, str![]);
    Ok(())
}

#[test]
fn completions_and_manual_pages_are_generated() -> Result<(), Failure> {
    let home = Home::new()?;
    for shell in ["bash", "zsh", "fish"] {
        let script = home.stdout(&["completions", shell])?;
        assert!(script.contains("rollback") && script.contains("forkd"), "{shell}");
    }
    let directory = home.path().join("man");
    assert_data_eq!(home.run(&["man", &directory.to_string_lossy()])?, str![]);
    for page in ["forkd.1", "forkd-run.1", "forkd-snapshot-ls.1"] {
        assert!(directory.join(page).is_file(), "{page}");
    }
    Ok(())
}
