//! Build contexts that came as archives: unpacked with suspicion, and nothing of the host is read through them.

use std::io::Read;
use std::path::{Path, PathBuf};

use forkd_image::Progress;
use forkd_image::archive::{ArchiveError, Limits, unpack};
use forkd_image::builds::{BuildCache, BuildCacheError, StepDraft};
use forkd_image::dockerfile::{Context, ContextError, Dockerfile, ParseError, parse};
use forkd_image::recipe::{self, Recipe, RecipeError};
use forkd_source::context::MAX_DOCKERFILE;

/// What a build context may hold.
pub const CONTEXT_LIMITS: Limits =
    Limits { total: 16 << 30, file: 8 << 30, entries: 1_000_000, path: 4095, depth: 200 };

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("{0} is not UTF-8")]
    NotText(String),
    #[error(transparent)]
    Parse(#[from] ParseError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    Cache(#[from] BuildCacheError),
}

/// A build context in a directory that is removed with this value.
#[derive(Debug)]
pub struct UnpackedContext {
    pub context: Context,
    pub dockerfile: Dockerfile,
    pub recipe: Recipe,
    /// The context has it open.
    pub directory: StepDraft,
}

impl UnpackedContext {
    /// Unpacks a tar archive, compressed or not. `path` is that of the Dockerfile inside; forkd.toml is beside it. `apart` is a
    /// directory that is no part of the context.
    pub fn new(
        cache: &BuildCache,
        archive: impl Read,
        path: &str,
        apart: Option<&str>,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<UnpackedContext, UnpackError> {
        let directory = cache.draft()?;
        progress.step("unpacking the build context");
        let tree = unpack(&directory.path().join("context"), archive, limits, progress)?;
        let mut context = Context::open(tree.path())?;
        if let Some(apart) = apart {
            context.leave_out(apart);
        }
        let text = |path: &str| {
            let text = context.read(path, MAX_DOCKERFILE)?;
            String::from_utf8(text).map_err(|_| UnpackError::NotText(path.to_owned()))
        };
        let dockerfile = parse(&text(path)?)?;
        let beside = beside(path);
        let recipe = match text(&beside) {
            Ok(text) => Recipe::parse(&text, Path::new(&beside))?,
            Err(UnpackError::Context(ContextError::Missing(_))) => Recipe::default(),
            Err(error) => return Err(error),
        };
        Ok(UnpackedContext { context, dockerfile, recipe, directory })
    }
}

/// Where forkd.toml is.
fn beside(dockerfile: &str) -> String {
    let path: PathBuf = Path::new(dockerfile).parent().unwrap_or(Path::new("")).join(recipe::FILE);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_image::Silent;
    use std::fs;

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_uid(rustix::process::getuid().as_raw().into());
            header.set_gid(rustix::process::getgid().as_raw().into());
            header.set_size(0);
            if kind.is_symlink() {
                archive.append_link(&mut header, path, content).unwrap();
            } else {
                header.set_size(content.len() as u64);
                // Also names that a polite writer refuses.
                header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
                header.set_cksum();
                archive.append(&header, content.as_bytes()).unwrap();
            }
        }
        archive.into_inner().unwrap()
    }

    const FILE: tar::EntryType = tar::EntryType::Regular;
    const LINK: tar::EntryType = tar::EntryType::Symlink;

    #[test]
    fn a_context_comes_with_its_dockerfile_and_recipe_and_goes_as_a_whole() {
        let library = tempfile::tempdir().unwrap();
        let cache = BuildCache::new(library.path());
        let files = [
            ("app/Dockerfile", FILE, "FROM scratch\nCOPY a /\n"),
            ("app/forkd.toml", FILE, "vcpus = 3\n"),
            ("a", FILE, "x"),
        ];
        let bytes = archive(&files);
        let unpacked =
            UnpackedContext::new(&cache, &bytes[..], "app/Dockerfile", None, &CONTEXT_LIMITS, &Silent)
                .unwrap();
        assert_eq!((unpacked.recipe.vcpus, unpacked.dockerfile.stages.len()), (Some(3), 1));
        assert_eq!(unpacked.context.read("a", 10).unwrap(), b"x");
        assert!(unpacked.context.has("app/Dockerfile"));
        let apart =
            UnpackedContext::new(&cache, &bytes[..], "app/Dockerfile", Some("app"), &CONTEXT_LIMITS, &Silent);
        let apart = apart.unwrap();
        assert_eq!(apart.recipe.vcpus, Some(3));
        assert!(apart.context.has("a") && !apart.context.has("app") && !apart.context.has("app/Dockerfile"));
        drop(apart);
        drop(unpacked);
        assert_eq!(fs::read_dir(library.path().join("builds")).unwrap().count(), 0);
    }

    #[test]
    fn what_leads_out_or_is_too_much_is_refused_and_leaves_nothing() {
        let library = tempfile::tempdir().unwrap();
        let cache = BuildCache::new(library.path());
        let dockerfile = ("Dockerfile", FILE, "FROM scratch\n");
        let few = Limits { entries: 2, ..CONTEXT_LIMITS };
        let small = Limits { total: 20, ..CONTEXT_LIMITS };
        for (entries, path, limits, says) in [
            (&[dockerfile, ("../a", FILE, "x")][..], "Dockerfile", CONTEXT_LIMITS, "climbs out"),
            (&[("Dockerfile", LINK, "/etc/passwd")], "Dockerfile", CONTEXT_LIMITS, "leads out"),
            (&[dockerfile], "../Dockerfile", CONTEXT_LIMITS, "leads out"),
            (&[dockerfile], "/etc/passwd", CONTEXT_LIMITS, "leads out"),
            (&[dockerfile, ("forkd.toml", LINK, "/etc/passwd")], "Dockerfile", CONTEXT_LIMITS, "leads out"),
            (&[dockerfile], "other", CONTEXT_LIMITS, "is not in the build context"),
            (&[dockerfile, ("forkd.toml", FILE, "x")], "Dockerfile", CONTEXT_LIMITS, "cannot parse"),
            (&[("Dockerfile", FILE, "EXPOSE")], "Dockerfile", CONTEXT_LIMITS, "cannot parse"),
            (&[dockerfile, ("a", FILE, ""), ("b", FILE, "")], "Dockerfile", few, "more than 2 entries"),
            (&[dockerfile, ("a", FILE, "0123456789")], "Dockerfile", small, "more than 20 bytes"),
        ] {
            let error = UnpackedContext::new(&cache, &archive(entries)[..], path, None, &limits, &Silent);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(says), "{entries:?}: {error}");
            assert_eq!(fs::read_dir(library.path().join("builds")).unwrap().count(), 0);
        }
    }
}
