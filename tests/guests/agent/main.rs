//! `agent-guest LIBRARY IMAGE TEST …`, started by an end-to-end test on a KVM host: a real image under the engine, with the
//! agent as its PID 1. What was measured goes to stdout, one JSON object a line.

mod boots;
mod children;
mod client;
mod container;
mod pressure;
mod world;

use forkd_tests::measure::raise_descriptor_limit;

use world::{Failure, World};

const USAGE: &str =
    "usage: agent-guest LIBRARY IMAGE boots | children COUNT | pressure MEBIBYTES PROCESSES | container";

fn main() -> Result<(), Failure> {
    raise_descriptor_limit();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [library, image, ref test @ ..] => {
            let world = World::open(library, image)?;
            runtime.block_on(async {
                match *test {
                    ["boots"] => boots::test(&world).await,
                    ["children", count] => children::test(&world, count.parse()?).await,
                    ["pressure", mebibytes, processes] => {
                        pressure::test(&world, mebibytes.parse()?, processes.parse()?).await
                    }
                    ["container"] => container::test(&world).await,
                    _ => Err(USAGE.into()),
                }
            })
        }
        _ => Err(USAGE.into()),
    }
}
