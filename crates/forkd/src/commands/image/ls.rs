//! `forkd image ls`.

use forkd_api::library::ImageSummary;

use super::digits;
use crate::arguments::ImageLsOptions;
use crate::commands::{lines, print_value, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::moment::bytes;
use crate::table::{Side, Table, plain};

/// Of an id, this much is shown in tables.
const SHORT: usize = 12;

pub fn run(options: &ImageLsOptions) -> Result<Exit, CliError> {
    let images = library::images(&options.daemon)?;
    print_value(&options.output, &images, || match options.quiet {
        true => lines(images.iter().map(|image| plain(digits(&image.id)))),
        false => render(&images),
    })?;
    Ok(Exit::Success)
}

/// `forkd images`.
pub fn short(options: &ImageLsOptions) -> Result<Exit, CliError> {
    say("note: forkd images used to list snapshots; these are listed by: forkd snapshot ls");
    run(options)
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
