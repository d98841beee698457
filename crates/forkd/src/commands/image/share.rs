//! `forkd image share`.

use crate::arguments::ImageShareOptions;
use crate::commands::{print_json, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ImageShareOptions) -> Result<Exit, CliError> {
    let image = with_daemon(&options.daemon, async |client| {
        Ok(client.publish_image(&options.image, !options.off).await?)
    })?;
    if options.output.json {
        print_json(&image)?;
    } else if image.summary.public {
        say(&format!("Every project can make snapshots of {}.", options.image));
    } else {
        let projects = image.summary.projects.join(", ");
        say(&format!("Only these projects can make snapshots of {}: {projects}.", options.image));
    }
    Ok(Exit::Success)
}
