//! `forkd kernel add`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use forkd_api::library::{AddKernel, ImportKernel, Kernel, KernelSource};
use forkd_client::{Client, ClientError};
use forkd_machine::Progress as _;
use forkd_source::archive::exactly;

use super::show;
use crate::arguments::KernelAddOptions;
use crate::commands::say;
use crate::copy::written;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::progress::Progress;
use crate::table::plain;

/// The daemon's answer does not repeat the version.
#[derive(Debug, thiserror::Error)]
#[error("cannot add kernel {version}")]
struct VersionError {
    version: String,
    source: ClientError,
}

pub fn run(options: &KernelAddOptions) -> Result<Exit, CliError> {
    let kernel = library::change(&options.daemon, async |client, progress| match &options.path {
        Some(kernel) => send(client, kernel, options, progress).await,
        None => {
            let source = if options.host { KernelSource::Host } else { KernelSource::Package };
            let wanted = AddKernel { source, version: options.version.clone(), default: options.default };
            let added = client.add_kernel(&wanted, |told| progress.told(&told)).await;
            added.map_err(|error| match &options.version {
                Some(version) if error.is_not_found() => {
                    CliError::of_verb(VersionError { version: version.clone(), source: error })
                }
                _ => error.into(),
            })
        }
    })?;
    if !kernel.missing.is_empty() {
        say(&format!("forkd: warning: this kernel lacks {}", plain(&kernel.missing.join(", "))));
    }
    show(&kernel, &options.output)?;
    Ok(Exit::Success)
}

async fn send(
    client: &Client,
    kernel: &Path,
    options: &KernelAddOptions,
    progress: &Progress,
) -> Result<Kernel, CliError> {
    // What is not there is said before anything is sent.
    for path in [Some(kernel), options.modules.as_deref()].into_iter().flatten() {
        fs::metadata(path).map_err(|source| CliError::Send { path: path.into(), source })?;
    }
    let (file, modules) = (kernel.to_owned(), options.modules.clone());
    progress.step(&format!("sending {}", kernel.display()));
    let archive = written(move |pieces| pack(&file, modules.as_deref(), pieces));
    let wanted = ImportKernel { default: options.default };
    client.import_kernel(wanted, archive, |told| progress.told(&told)).await.map_err(|error| match error {
        ClientError::Upload(source) => CliError::Send { path: kernel.into(), source },
        error => error.into(),
    })
}

/// Writes an archive of a kernel and its modules, as the API wants it: files and directories only. A directory of modules has
/// links to the sources beside them.
fn pack(kernel: &Path, modules: Option<&Path>, to: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    append(&mut archive, kernel, Path::new("kernel"), &fs::metadata(kernel)?)?;
    if let Some(modules) = modules {
        append(&mut archive, modules, Path::new("modules"), &fs::metadata(modules)?)?;
    }
    archive.into_inner()?.flush()
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    name: &Path,
    metadata: &fs::Metadata,
) -> io::Result<()> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    if metadata.is_file() {
        header.set_size(metadata.len());
        let file = File::open(path).map_err(at)?;
        archive.append_data(&mut header, name, exactly(file, metadata.len()))?;
    } else if metadata.is_dir() {
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        archive.append_data(&mut header, name, io::empty())?;
        for entry in fs::read_dir(path).map_err(at)? {
            let entry = entry.map_err(at)?;
            append(archive, &entry.path(), &name.join(entry.file_name()), &entry.metadata().map_err(at)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_goes_with_its_modules_and_without_links() {
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join("vmlinuz"), "kernel").unwrap();
        fs::create_dir_all(here.path().join("6.1/kernel")).unwrap();
        fs::write(here.path().join("6.1/kernel/a.ko"), "module").unwrap();
        std::os::unix::fs::symlink("/usr/src", here.path().join("6.1/build")).unwrap();
        let mut bytes = Vec::new();
        pack(&here.path().join("vmlinuz"), Some(&here.path().join("6.1")), &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().trim_end_matches('/').to_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["kernel", "modules", "modules/kernel", "modules/kernel/a.ko"]);
        assert!(pack(&here.path().join("none"), None, io::sink()).is_err());
    }
}
