//! `forkd kernel ls`.

use forkd_api::library::Kernel;

use crate::arguments::KernelLsOptions;
use crate::commands::print_value;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::table::{Side, Table};

pub fn run(options: &KernelLsOptions) -> Result<Exit, CliError> {
    let kernels = library::kernels(&options.daemon)?;
    print_value(&options.output, &kernels, || render(&kernels))?;
    Ok(Exit::Success)
}

fn render(kernels: &[Kernel]) -> String {
    let mut table = Table::new([
        ("ID", Side::Left),
        ("VERSION", Side::Left),
        ("MODULES", Side::Right),
        ("LIBRARY", Side::Left),
        ("DEFAULT", Side::Left),
    ]);
    for kernel in kernels {
        table.row([
            kernel.name.clone(),
            kernel.version.clone(),
            kernel.modules.len().to_string(),
            if kernel.shared { "shared" } else { "own" }.into(),
            if kernel.default { "yes" } else { "" }.into(),
        ]);
    }
    table.render()
}
