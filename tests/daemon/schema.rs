//! No request that can be made of the OpenAPI document, and none beside it, gets an answer that contradicts it.

use std::process::Command;

use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::scale;

use crate::world::World;

#[test]
fn no_answer_contradicts_the_document() -> Result<(), Failure> {
    let world = World::with(&["--listen", "127.0.0.1:0", "--max-sandboxes", "40"])?;
    let url = format!("http://{}", world.address()?);
    let run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/run"))
        .arg(url)
        .env("FORKD_SCHEMA_EXAMPLES", scale::count(15, 300).to_string())
        .output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}
