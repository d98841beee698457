//! `forkd image ls`.

use forkd_api::library::ImageSummary;

use super::digits;
use crate::arguments::ImageLsOptions;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::moment::bytes;
use crate::table::{Side, Table, plain};

/// Of an id, this much is shown in tables.
const SHORT: usize = 12;

pub fn run(options: &ImageLsOptions) -> Result<Exit, CliError> {
    let images = library::images(&options.daemon)?;
    if options.output.json {
        print_json(&images)?;
    } else if options.quiet {
        print(&images.iter().map(|image| format!("{}\n", plain(digits(&image.id)))).collect::<String>())?;
    } else {
        print(&render(&images))?;
    }
    Ok(Exit::Success)
}

fn render(images: &[ImageSummary]) -> String {
    let mut table = Table::new([
        ("NAME", Side::Left),
        ("ID", Side::Left),
        ("ON DISK", Side::Right),
        ("SIZE", Side::Right),
        ("USER", Side::Left),
        ("LIBRARY", Side::Left),
    ]);
    for image in images {
        let nameless = ["-".to_owned()];
        let names = if image.names.is_empty() { &nameless[..] } else { &image.names[..] };
        for name in names {
            table.row([
                name.clone(),
                digits(&image.id).chars().take(SHORT).collect(),
                bytes(image.disk_bytes),
                bytes(image.size_bytes),
                image.default_user.clone(),
                if image.shared { "shared" } else { "own" }.into(),
            ]);
        }
    }
    table.render()
}
