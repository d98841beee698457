//! Recipes: directories with a page (README.md) and a forkd.toml. Those of `recipes/` are part of this program.
//!
//! A word without a slash names one of these. A build of one writes its files to `recipes/NAME` in forkd's home, where its Dockerfile
//! and its code are found, and where users find the program that shows its use. A path names a directory of the user's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forkd_host::home;

use crate::error::CliError;

/// The page of a recipe.
pub const PAGE: &str = "README.md";
/// What describes its images and snapshots.
pub const FILE: &str = forkd_source::recipe::FILE;
/// No page is longer.
const MAX_PAGE: u64 = 1 << 20;

/// A recipe that comes with forkd.
#[derive(Debug)]
pub struct Included {
    pub name: &'static str,
    /// Paths in its directory, and what is in them.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! included {
    ($($name:literal: [$($file:literal),* $(,)?],)*) => {
        &[$(Included {
            name: $name,
            files: &[$(($file, include_str!(concat!("../../../recipes/", $name, "/", $file)))),*],
        }),*]
    };
}

/// A test compares this with the directory.
const INCLUDED: &[Included] = included! {
    "code-interpreter": ["README.md", "forkd.toml", "use.py", "warm.py"],
    "coding-agent": [
        "README.md",
        "forkd.toml",
        "image/Dockerfile",
        "image/Makefile",
        "image/daycount/__init__.py",
        "image/daycount/days.c",
        "image/tests/test_daycount.py",
        "use.py",
    ],
    "jupyter-kernel": ["README.md", "forkd.toml", "use.py", "warm.py"],
    "nodejs": ["README.md", "forkd.toml", "use.py", "warm.js"],
    "postgres-fixture": ["README.md", "forkd.toml", "use.py"],
    "python-numpy": ["README.md", "forkd.toml", "use.py"],
};

/// All that come with forkd, by name.
pub fn included() -> &'static [Included] {
    INCLUDED
}

impl Included {
    fn file(&self, path: &str) -> &'static str {
        self.files.iter().find(|(name, _)| *name == path).map_or("", |(_, text)| text)
    }

    /// The first sentence of its page.
    pub fn summary(&self) -> &'static str {
        summary(self.file(PAGE))
    }

    /// Where a build writes its files.
    pub fn directory(&self) -> Result<PathBuf, CliError> {
        Ok(home::directory()?.join("recipes").join(self.name))
    }

    /// Writes its files, unless they are there as they are here.
    fn place(&self) -> Result<PathBuf, CliError> {
        let directory = self.directory()?;
        for (name, text) in self.files {
            let path = directory.join(name);
            replace(&path, text).map_err(|source| CliError::Save { path, source })?;
        }
        Ok(directory)
    }
}

/// What a user has named.
#[derive(Debug)]
pub enum Recipe {
    Included(&'static Included),
    Directory(PathBuf),
}

impl Recipe {
    pub fn find(word: &str) -> Result<Recipe, CliError> {
        if word.contains('/') || word == "." || word == ".." {
            return Ok(Recipe::Directory(word.into()));
        }
        let found = INCLUDED.iter().find(|recipe| recipe.name == word);
        found.map(Recipe::Included).ok_or_else(|| CliError::NoRecipe(word.to_owned()))
    }

    /// A directory with its files, which are written if it comes with forkd.
    pub fn directory(&self) -> Result<PathBuf, CliError> {
        match self {
            Recipe::Included(included) => included.place(),
            Recipe::Directory(directory) => Ok(directory.clone()),
        }
    }

    /// Where its files are, or would be.
    pub fn place(&self) -> Result<PathBuf, CliError> {
        match self {
            Recipe::Included(included) => included.directory(),
            Recipe::Directory(directory) => Ok(directory.clone()),
        }
    }

    /// A file of it as text, if it has this file.
    pub fn text(&self, name: &str) -> Result<Option<String>, CliError> {
        match self {
            Recipe::Included(included) => Ok(Some(included.file(name).to_owned())),
            Recipe::Directory(directory) => {
                let path = directory.join(name);
                match read(&path) {
                    Ok(text) => Ok(Some(text)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound && name == PAGE => Ok(None),
                    Err(source) => Err(CliError::Send { path, source }),
                }
            }
        }
    }
}

/// The paragraph below the title of a page, in one line.
pub fn summary(page: &str) -> &str {
    page.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default()
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_PAGE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_PAGE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

/// Replaces a file as a whole, so that a build that runs at the same time reads the one or the other.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    if read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let file = tempfile::NamedTempFile::new_in(directory)?;
    fs::write(file.path(), text)?;
    // Others read it too: their mode is that of other files.
    fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RECIPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes");

    fn files_below(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "__pycache__" {
                files_below(&path, found);
            } else if path.is_file() {
                found.insert(path.strip_prefix(RECIPES).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn all_files_of_the_directory_are_included() {
        let mut there = BTreeSet::new();
        files_below(Path::new(RECIPES), &mut there);
        // The index.
        assert!(there.remove(PAGE));
        let paths = INCLUDED
            .iter()
            .flat_map(|recipe| recipe.files.iter().map(move |(name, _)| format!("{}/{name}", recipe.name)));
        assert_eq!(paths.collect::<BTreeSet<_>>(), there);
        assert!(INCLUDED.is_sorted_by_key(|recipe| recipe.name));
    }

    #[test]
    fn each_can_be_read_and_builds_a_snapshot_of_its_name() {
        for recipe in INCLUDED {
            let path = Path::new(recipe.name).join(FILE);
            let chain = forkd_source::chain::parse(recipe.file(FILE), &path).unwrap();
            assert_eq!(chain.snapshots.last().unwrap().name, recipe.name);
            let page = recipe.file(PAGE);
            assert!(page.starts_with(&format!("# {}\n\n", recipe.name)), "{}", recipe.name);
            assert!((20..=100).contains(&recipe.summary().len()), "{}", recipe.summary());
            assert!(page.contains(&format!("forkd recipe build {}", recipe.name)), "{}", recipe.name);
        }
    }

    #[test]
    fn names_and_paths_are_told_apart() {
        assert!(matches!(Recipe::find("nodejs"), Ok(Recipe::Included(recipe)) if recipe.name == "nodejs"));
        for path in [".", "..", "./nodejs", "recipes/nodejs", "/nodejs"] {
            assert!(matches!(Recipe::find(path), Ok(Recipe::Directory(found)) if found == Path::new(path)));
        }
        assert!(matches!(Recipe::find("nodejs2"), Err(CliError::NoRecipe(_))));
    }

    #[test]
    fn files_are_replaced_if_they_differ() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        replace(&path, "one").unwrap();
        let first = fs::metadata(&path).unwrap();
        replace(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), first.modified().unwrap());
        replace(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
