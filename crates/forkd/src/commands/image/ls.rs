//! `forkd image ls`.

use forkd_image::images::Image;

use super::store;
use crate::arguments::LsOptions;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let images = store()?.list()?;
    if options.output.json {
        print_json(&images)?;
    } else {
        print(&render(&images))?;
    }
    Ok(Exit::Success)
}

fn render(images: &[Image]) -> String {
    let mut text = format!("{:<40} {:<12} {:>10} {:>10} USER\n", "NAME", "ID", "ON DISK", "SIZE");
    for image in images {
        let nameless = ["-".to_owned()];
        let names = if image.names.is_empty() { &nameless[..] } else { &image.names[..] };
        for name in names {
            text += &format!(
                "{name:<40} {:<12} {:>6} MiB {:>6} MiB {}\n",
                image.id().short(),
                image.disk >> 20,
                image.metadata.size >> 20,
                image.metadata.default_user,
            );
        }
    }
    text
}
