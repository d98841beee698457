//! `forkd kill`.

use forkd_api::sandbox::ListSandboxes;
use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::{lines, print_value, with_daemon};
use crate::arguments::KillOptions;
use crate::error::{self, CliError};
use crate::exit::Exit;

/// How many are ended at the same time.
const AT_ONCE: usize = 16;

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

pub fn run(options: &KillOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let several = options.all || options.snapshot.is_some();
        let ids = match several {
            true => {
                let wanted = ListSandboxes { snapshot_tag: options.snapshot.clone(), ..Default::default() };
                client.sandboxes(&wanted).await?.into_iter().map(|sandbox| sandbox.id).collect()
            }
            false => options.sandboxes.clone(),
        };
        let (mut removed, mut exit) = (Vec::new(), Exit::Success);
        // Ends take the kernel some milliseconds each, and do not wait for one another.
        let ends = ids.into_iter().map(async |id: String| (client.remove_sandbox(&id).await, id));
        let mut ends = stream::iter(ends).buffered(AT_ONCE);
        while let Some((end, id)) = ends.next().await {
            match end {
                Ok(()) => removed.push(id),
                // It has ended since it was listed.
                Err(error) if several && error.is_not_found() => {}
                Err(error) => {
                    error::print(&error.into());
                    exit = Exit::Failure;
                }
            }
        }
        let answer = Removed { removed };
        print_value(&options.output, &answer, || lines(&answer.removed))?;
        Ok(exit)
    })
}
