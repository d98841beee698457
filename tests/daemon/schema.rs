//! No request that can be made of the OpenAPI document, and none beside it, gets an answer that contradicts it.

use std::process::Command;

use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::scale;

use crate::world::World;

#[test]
fn no_answer_contradicts_the_document() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0", "--max-sandboxes", "40"])?;
    let log = world.log();
    let address = log.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let url = format!("http://{}", address.ok_or("the daemon does not listen")?);
    let run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/run"))
        .arg(url)
        .env("FORKD_SCHEMA_EXAMPLES", scale::count(15, 300).to_string())
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}
