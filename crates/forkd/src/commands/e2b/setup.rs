//! `forkd e2b setup`: the template that E2B's clients take if nothing else is said.

use forkd_api::code::Language;
use forkd_api::snapshot::{CreateSnapshot, Snapshot, WarmUp};

use crate::arguments::{DaemonOptions, E2bSetupOptions, Output, SnapshotShape};
use crate::commands::{asynchronously, branch, image, say, snapshot};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

/// The template of the code interpreter. The daemon takes it for `base`, too, unless there is one of that name.
pub const TAG: &str = "code-interpreter-v1";
const IMAGE: &str = "forkd-e2b:latest";
const PACKAGES: [&str; 13] = [
    "python3",
    "python3-pip",
    "python3-venv",
    "python3-numpy",
    "python3-pandas",
    "python3-matplotlib",
    "nodejs",
    "git",
    "curl",
    "ca-certificates",
    "iproute2",
    "procps",
    "sudo",
];
/// Plots need room.
const MEMORY_MIB: u64 = 1024;
const WARM_UP: &str = "for _name in ('numpy', 'pandas', 'matplotlib.pyplot'):\n    \
                       try:\n        __import__(_name)\n    except ImportError:\n        pass\ndel _name";

pub fn run(options: &E2bSetupOptions) -> Result<Exit, CliError> {
    let snapshot = find_or_make(options)?;
    say(&format!("{TAG} is ready; programs find it after: eval \"$(forkd e2b env)\""));
    branch::show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

/// Sees to it that there is the template, of the usual image.
pub fn ensure(daemon: &DaemonOptions) -> Result<(), CliError> {
    let (daemon, output) = (daemon.clone(), Output { json: false });
    find_or_make(&E2bSetupOptions { image: None, shape: SnapshotShape::default(), daemon, output }).map(drop)
}

fn find_or_make(options: &E2bSetupOptions) -> Result<Snapshot, CliError> {
    let found = asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        match client.snapshot(TAG).await {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    })?;
    match found {
        Some(snapshot) => Ok(snapshot),
        None => make(options),
    }
}

fn make(options: &E2bSetupOptions) -> Result<Snapshot, CliError> {
    let image = match &options.image {
        Some(image) => image.clone(),
        None => {
            image::debian::ensure(&options.daemon, IMAGE, &PACKAGES)?;
            IMAGE.to_owned()
        }
    };
    asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        let of_image = snapshot::make::of_image(&image, &options.shape);
        let wanted = CreateSnapshot {
            tag: Some(TAG.to_owned()),
            memory_mib: of_image.memory_mib.or(Some(MEMORY_MIB)),
            e2b: true,
            warm_up: vec![WarmUp { language: Language::Python, code: WARM_UP.to_owned() }],
            ..of_image
        };
        snapshot::make::make(&client, &wanted).await
    })
}
