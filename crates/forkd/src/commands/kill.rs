//! `forkd kill`.

use forkd_api::sandbox::ListSandboxes;
use serde::Serialize;

use super::{lines, print_value, with_daemon};
use crate::arguments::KillOptions;
use crate::error::{self, CliError};
use crate::exit::Exit;

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
        for id in ids {
            match client.remove_sandbox(&id).await {
                Ok(()) => removed.push(id),
                // Gone by itself since it was listed.
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
