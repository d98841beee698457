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
    let mut run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/schema/run"));
    run.arg(url).env("FORKD_SCHEMA_EXAMPLES", scale::count(15, 300).to_string());
    if !scale::is_soak() && std::env::var_os("FORKD_SEED").is_none() {
        // What is new is looked for in `make soak`: here the same change gets the same requests.
        run.env("FORKD_SEED", "1");
    }
    let run = run.output()?;
    assert!(run.status.success(), "{}\n{}", binaries::transcript(&run), world.log());
    Ok(())
}
