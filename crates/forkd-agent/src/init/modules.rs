//! Kernel modules from the initial RAM disk: `/modules/NN-name.ko`, in the order of their names.
//!
//! The image builder has put them into the order of their dependencies and unpacked them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::listing;

const DIRECTORY: &str = "/modules";

#[derive(Debug, thiserror::Error)]
#[error("cannot load the module {}: {source}", path.display())]
pub struct ModuleError {
    path: PathBuf,
    source: io::Error,
}

pub fn load_all() -> Result<(), ModuleError> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| ModuleError { path, source }
    };
    for path in list(Path::new(DIRECTORY)).map_err(fail(Path::new(DIRECTORY)))? {
        let file = File::open(&path).map_err(fail(&path))?;
        match rustix::system::finit_module(&file, c"", 0) {
            // In the kernel already, or built into it.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(fail(&path)(error.into())),
        }
    }
    Ok(())
}

/// Numbers first, so that `2-` comes before `10-`.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = listing::paths(directory)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "ko"));
    found.sort_by_cached_key(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number: Option<u32> = name.split_once('-').and_then(|(number, _)| number.parse().ok());
        (number.unwrap_or(u32::MAX), name)
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_in_the_order_of_their_numbers() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["10-b.ko", "2-a.ko", "02-c.ko", "z.ko", "README", "3-d.ko.xz"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let names: Vec<_> = list(directory.path())
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["02-c.ko", "2-a.ko", "10-b.ko", "z.ko"]);
        assert!(list(&directory.path().join("none")).unwrap().is_empty());
    }
}
