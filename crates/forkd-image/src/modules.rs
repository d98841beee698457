//! Kernel modules in the order that loads them: dependencies first.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The modules of one kernel, `lib/modules/VERSION` of a root file system.
#[derive(Debug)]
pub struct ModuleTree {
    root: PathBuf,
    /// Name to path below `root` and direct and indirect dependencies, as depmod wrote them.
    modules: HashMap<String, (PathBuf, Vec<PathBuf>)>,
}

/// A module was asked for that the kernel does not have, or its list of modules cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the kernel has no module {name} ({} does not list it)", list.display())]
    Missing { name: String, list: PathBuf },
}

impl ModuleTree {
    /// Reads `modules.dep` in `root`.
    pub fn open(root: &Path) -> Result<ModuleTree, ModuleError> {
        let path = root.join("modules.dep");
        let list = fs::read_to_string(&path).map_err(|source| ModuleError::Read { path, source })?;
        let modules = list
            .lines()
            .filter_map(|line| {
                let (module, dependencies) = line.split_once(':')?;
                let module = PathBuf::from(module);
                let dependencies = dependencies.split_whitespace().map(PathBuf::from).collect();
                Some((module_name(&module)?, (module, dependencies)))
            })
            .collect();
        Ok(ModuleTree { root: root.into(), modules })
    }

    /// Whether the kernel has this module as a file.
    pub fn has(&self, name: &str) -> bool {
        self.modules.contains_key(&name.replace('-', "_"))
    }

    /// The files to load, in order, so that all of `names` are in the kernel.
    pub fn load_order(&self, names: &[&str]) -> Result<Vec<PathBuf>, ModuleError> {
        let mut order: Vec<PathBuf> = Vec::new();
        for name in names {
            let (module, dependencies) = self.modules.get(&name.replace('-', "_")).ok_or_else(|| {
                ModuleError::Missing { name: (*name).into(), list: self.root.join("modules.dep") }
            })?;
            // depmod lists a module's nearest dependency first and the one that everything stands on last.
            for path in dependencies.iter().rev().chain([module]) {
                let path = self.root.join(path);
                if !order.contains(&path) {
                    order.push(path);
                }
            }
        }
        Ok(order)
    }
}

/// `kernel/fs/ext4/ext4.ko.xz` is `ext4`; the kernel does not tell `-` from `_`.
pub(crate) fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    Some(file.split_once(".ko")?.0.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(list: &str) -> (tempfile::TempDir, ModuleTree) {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("modules.dep"), list).unwrap();
        let tree = ModuleTree::open(root.path()).unwrap();
        (root, tree)
    }

    fn names(paths: &[PathBuf]) -> Vec<String> {
        paths.iter().filter_map(|path| module_name(path)).collect()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let (_root, tree) = tree(
            "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n\
             kernel/fs/jbd2/jbd2.ko:\n\
             kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko\n\
             kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
             kernel/arch/x86/kvm/kvm-amd.ko.xz:\n",
        );
        let order = tree.load_order(&["jbd2", "virtio_blk", "ext4", "kvm-amd"]).unwrap();
        assert_eq!(
            names(&order),
            ["jbd2", "virtio", "virtio_ring", "virtio_blk", "mbcache", "crc16", "ext4", "kvm_amd"]
        );
    }

    #[test]
    fn a_missing_module_is_named() {
        let (_root, tree) = tree("kernel/fs/ext4/ext4.ko:\n");
        let error = tree.load_order(&["ext4", "zfs"]).unwrap_err().to_string();
        assert!(error.starts_with("the kernel has no module zfs"), "{error}");
    }
}
