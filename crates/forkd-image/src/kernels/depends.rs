//! Modules with what they stand on, in load order, not compressed.
//!
//! The order comes from `modules.dep` where depmod has written it. A package that was only unpacked has none; then each
//! module itself says what it needs, in its `.modinfo`: `depends=virtio,virtio_ring`.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::modules::{ModuleError, ModuleTree, module_name};

/// No module is larger; graphics drivers come near.
const MAX_MODULE: u64 = 64 << 20;
/// Directories below a kernel's modules.
const MAX_DEPTH: usize = 12;

#[derive(Debug, thiserror::Error)]
pub enum DependsError {
    #[error(transparent)]
    Modules(#[from] ModuleError),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the kernel has no module {name}, neither in {} nor built in", directory.display())]
    Missing { name: String, directory: PathBuf },
    #[error("the module {0} depends on itself")]
    Circle(String),
}

/// A module's name and its file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    pub content: Vec<u8>,
}

/// The modules to load, in order, and the names of those that are not there. A module that is needed and not there is an
/// error. What is built in needs no loading.
pub fn load(directory: &Path, wanted: &[(&str, bool)]) -> Result<(Vec<Module>, Vec<String>), DependsError> {
    let tree = Tree::open(directory)?;
    let built_in = tree.built_in()?;
    let mut names = Vec::new();
    let mut missing = Vec::new();
    for (name, is_needed) in wanted {
        if tree.has(name) {
            names.push(*name);
        } else if built_in.iter().all(|built_in| built_in != name) {
            if *is_needed {
                return Err(DependsError::Missing { name: (*name).into(), directory: directory.into() });
            }
            missing.push((*name).to_owned());
        }
    }
    let mut modules = Vec::new();
    for path in tree.order(&names)? {
        let name = module_name(&path).unwrap_or_default();
        modules.push(Module { name, content: read(&path)? });
    }
    Ok((modules, missing))
}

/// A directory of modules, with or without depmod's list.
enum Tree {
    Listed { root: PathBuf, tree: ModuleTree },
    Unlisted { root: PathBuf, files: HashMap<String, PathBuf> },
}

impl Tree {
    fn open(root: &Path) -> Result<Tree, DependsError> {
        if root.join("modules.dep").is_file() {
            return Ok(Tree::Listed { root: root.into(), tree: ModuleTree::open(root)? });
        }
        let mut files = HashMap::new();
        walk(root, 0, &mut files)?;
        Ok(Tree::Unlisted { root: root.into(), files })
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Tree::Listed { tree, .. } => tree.has(name),
            Tree::Unlisted { files, .. } => files.contains_key(name),
        }
    }

    fn built_in(&self) -> Result<Vec<String>, DependsError> {
        let (Tree::Listed { root, .. } | Tree::Unlisted { root, .. }) = self;
        let path = root.join("modules.builtin");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(|line| module_name(Path::new(line))).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(DependsError::Read { path, source }),
        }
    }

    fn order(&self, names: &[&str]) -> Result<Vec<PathBuf>, DependsError> {
        match self {
            Tree::Listed { tree, .. } => Ok(tree.load_order(names)?),
            Tree::Unlisted { root, files } => {
                let mut order = Vec::new();
                for name in names {
                    visit(name, root, files, &mut order, &mut Vec::new())?;
                }
                Ok(order)
            }
        }
    }
}

/// Adds what a module stands on, then the module.
fn visit(
    name: &str,
    root: &Path,
    files: &HashMap<String, PathBuf>,
    order: &mut Vec<PathBuf>,
    above: &mut Vec<String>,
) -> Result<(), DependsError> {
    if above.iter().any(|other| other == name) {
        return Err(DependsError::Circle(name.into()));
    }
    let path =
        files.get(name).ok_or_else(|| DependsError::Missing { name: name.into(), directory: root.into() })?;
    if order.contains(path) {
        return Ok(());
    }
    above.push(name.into());
    for dependency in dependencies(&read(path)?) {
        visit(&dependency, root, files, order, above)?;
    }
    above.pop();
    order.push(path.clone());
    Ok(())
}

/// What a module says that it needs.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    let mut strings = module.split(|byte| *byte == 0);
    let Some(value) = strings.find_map(|text| text.strip_prefix(KEY)) else { return Vec::new() };
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

fn walk(directory: &Path, depth: usize, files: &mut HashMap<String, PathBuf>) -> Result<(), DependsError> {
    let failed = |source| DependsError::Read { path: directory.into(), source };
    if depth > MAX_DEPTH {
        return Ok(());
    }
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            walk(&entry.path(), depth + 1, files)?;
        } else if kind.is_file()
            && let Some(name) = module_name(&entry.path())
        {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// A module's ELF file. Distributions compress them, and not every kernel can unpack what it loads.
fn read(path: &Path) -> Result<Vec<u8>, DependsError> {
    let read = || {
        let file = fs::read(path)?;
        let decoder: Box<dyn Read + '_> = match &file[..] {
            [0x1f, 0x8b, ..] => Box::new(flate2::read::GzDecoder::new(&file[..])),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Box::new(liblzma::read::XzDecoder::new(&file[..])),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(&file[..])?),
            _ => return Ok(file),
        };
        let mut content = Vec::new();
        let count = decoder.take(MAX_MODULE + 1).read_to_end(&mut content)?;
        if count as u64 > MAX_MODULE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
    };
    read().map_err(|source| DependsError::Read { path: path.into(), source })
}
