//! Over TCP, who one is.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::world::World;

#[test]
fn a_token_is_needed_good_and_good_enough() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", world.address()?);
    let secret = world.stdout(&["token", "create", "reader", "--scope", "read"])?;
    let with = |arguments: &[&str], token: Option<&str>| -> Result<String, Failure> {
        let mut command = world.command(arguments);
        command.env("FORKD_ADDRESS", &address);
        if let Some(token) = token {
            command.env("FORKD_TOKEN", token);
        }
        Ok(outcome(&command.output()?, world.path()))
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
forkd: this is not a token
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
forkd: this is not a token
hint: FORKD_TOKEN or --token-file gives a token; forkd token create makes one

"#]]
    );
    Ok(())
}
