//! Images in `forkd.toml`: what the snapshots of the file are made of (`chain.rs`).
//!
//! ```toml
//! [image.base]
//! debian = ["python3", "git"]  # packages beyond Debian's smallest system
//! suite = "bookworm"           # the default
//!
//! [image.project]
//! dockerfile = "Dockerfile"    # relative to the file's directory
//! context = "image"            # the build context [default: the file's directory]
//! from = "base"                # another image of the file, which the Dockerfile begins with: ARG BASE, FROM ${BASE}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::chain::{NAME_RULE, Problem, is_name, shown};
use crate::digest::{Digest, Hasher};

/// The most tables of one file.
const MAX_IMAGES: usize = 64;
const MAX_PACKAGES: usize = 512;
const SUITE: &str = "bookworm";

/// An image to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageStep {
    pub name: String,
    pub contents: ImageContents,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageContents {
    /// A Debian system with these packages, which are sorted.
    Debian { suite: String, include: Vec<String> },
    /// Paths are relative to the file's directory; `base` is another image of the file.
    Dockerfile { dockerfile: PathBuf, context: PathBuf, base: Option<String> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageTable {
    debian: Option<Vec<String>>,
    suite: Option<String>,
    dockerfile: Option<PathBuf>,
    context: Option<PathBuf>,
    from: Option<String>,
}

impl ImageStep {
    /// The name of the library that an image of a Dockerfile gets: its own, and a key of what it is made of.
    pub fn built_name(&self, key: Digest) -> String {
        format!("{}:{}", self.name, key.short())
    }

    fn base(&self) -> Option<&str> {
        match &self.contents {
            ImageContents::Dockerfile { base, .. } => base.as_deref(),
            ImageContents::Debian { .. } => None,
        }
    }
}

/// The name of the library that a Debian image gets. Files with the same packages share an image.
pub fn debian_name(suite: &str, include: &[String]) -> String {
    let hasher = Hasher::new("forkd.toml debian").part(suite.as_bytes());
    let key = include.iter().fold(hasher, |hasher, package| hasher.part(package.as_bytes())).finish();
    format!("forkd-debian:{suite}-{}", key.short())
}

/// Checks all tables. Bases come before what is based on them.
pub(crate) fn check_all(tables: BTreeMap<String, ImageTable>) -> Result<Vec<ImageStep>, Problem> {
    if tables.len() > MAX_IMAGES {
        return Err((
            "image".into(),
            format!("expected at most {MAX_IMAGES} tables, found {}", tables.len()),
        ));
    }
    let names: BTreeSet<String> = tables.keys().cloned().collect();
    let check = |(name, table): (String, ImageTable)| {
        let below = format!("image.{}", shown(&name));
        check(name, table, &names).map_err(|(key, problem)| match key {
            "" => (below, problem),
            key => (format!("{below}.{key}"), problem),
        })
    };
    sorted(tables.into_iter().map(check).collect::<Result<_, _>>()?)
}

fn check(
    name: String,
    table: ImageTable,
    names: &BTreeSet<String>,
) -> Result<ImageStep, (&'static str, String)> {
    if !is_name(&name) {
        return Err(("", format!("invalid image name: {NAME_RULE}")));
    }
    let ImageTable { debian, suite, dockerfile, context, from } = table;
    let contents = match (debian, dockerfile) {
        (Some(packages), None) => {
            let of_dockerfiles = [("context", context.is_some()), ("from", from.is_some())];
            if let Some((key, _)) = of_dockerfiles.into_iter().find(|(_, is_given)| *is_given) {
                return Err((key, "only valid with dockerfile".into()));
            }
            of_debian(suite, packages)?
        }
        (None, Some(dockerfile)) => {
            if suite.is_some() {
                return Err(("suite", "only valid with debian".into()));
            }
            if let Some(from) = from.as_ref().filter(|from| !names.contains(*from)) {
                return Err(("from", format!("there is no table [image.{}]", shown(from))));
            }
            ImageContents::Dockerfile {
                dockerfile: below("dockerfile", dockerfile)?,
                context: context.map_or(Ok(PathBuf::new()), |context| below("context", context))?,
                base: from,
            }
        }
        _ => return Err(("", "give either debian (a list of packages) or dockerfile (a path)".into())),
    };
    Ok(ImageStep { name, contents })
}

fn of_debian(suite: Option<String>, packages: Vec<String>) -> Result<ImageContents, (&'static str, String)> {
    let suite = suite.unwrap_or_else(|| SUITE.into());
    if !is_word(&suite, b"-.") {
        return Err(("suite", format!("{:?} is not a suite: use a name such as bookworm", shown(&suite))));
    }
    if packages.len() > MAX_PACKAGES {
        return Err((
            "debian",
            format!("expected at most {MAX_PACKAGES} packages, found {}", packages.len()),
        ));
    }
    if let Some(package) = packages.iter().find(|package| !is_word(package, b"-+.:")) {
        return Err(("debian", format!("{:?} is not the name of a package", shown(package))));
    }
    let include: BTreeSet<String> = packages.into_iter().collect();
    Ok(ImageContents::Debian { suite, include: include.into_iter().collect() })
}

fn is_word(text: &str, more: &[u8]) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=80).contains(&text.len())
        && text.bytes().take(1).all(plain)
        && text.bytes().all(|byte| plain(byte) || more.contains(&byte))
}

/// A file may be anybody's: what it sends to the daemon is beside it or below.
fn below(key: &'static str, path: PathBuf) -> Result<PathBuf, (&'static str, String)> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    match path != Path::new("") && path.components().all(is_plain) {
        true => Ok(path),
        false => Err((key, format!("{path:?} is not a path below the file's directory"))),
    }
}

/// These images of the file and those that they are based on, in the same order.
pub(crate) fn with_bases(images: Vec<ImageStep>, mut wanted: BTreeSet<String>) -> Vec<ImageStep> {
    let mut kept = Vec::new();
    for image in images.into_iter().rev() {
        if wanted.contains(&image.name) {
            wanted.extend(image.base().map(str::to_owned));
            kept.push(image);
        }
    }
    kept.reverse();
    kept
}

/// Bases before what is based on them, else by name.
fn sorted(images: Vec<ImageStep>) -> Result<Vec<ImageStep>, Problem> {
    let (mut left, mut done) = (images, Vec::<ImageStep>::new());
    while let Some(first) = left.first() {
        let circular = format!("image.{}.from", first.name);
        let is_ready = |image: &ImageStep| {
            image.base().is_none_or(|base| done.iter().any(|other: &ImageStep| other.name == base))
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(is_ready);
        if ready.is_empty() {
            return Err((
                circular,
                "the images are based on each other in a cycle; one must have no from".into(),
            ));
        }
        done.extend(ready);
        left = rest;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Chain, parse};

    fn images(tables: &str) -> Result<Vec<ImageStep>, String> {
        let text = format!("{tables}\n[snapshot.s]\nfrom = \"x\"\n");
        let Chain { images, .. } =
            parse(&text, Path::new("forkd.toml")).map_err(|error| error.to_string())?;
        Ok(images)
    }

    #[test]
    fn images_have_packages_or_dockerfiles() {
        let text = "[image.a]\nfrom = \"b\"\ndockerfile = \"D\"\ncontext = \"c\"\n\
                    [image.b]\ndebian = [\"git\", \"g++\", \"git\"]\n[image.c]\nsuite = \"trixie\"\ndebian = []";
        let found = images(text).unwrap();
        let names: Vec<&str> = found.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["b", "c", "a"]);
        let debian = |suite: &str, include: &[&str]| ImageContents::Debian {
            suite: suite.into(),
            include: include.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(found[0].contents, debian("bookworm", &["g++", "git"]));
        assert_eq!(found[1].contents, debian("trixie", &[]));
        let dockerfile =
            ImageContents::Dockerfile { dockerfile: "D".into(), context: "c".into(), base: Some("b".into()) };
        assert_eq!(found[2].contents, dockerfile);
        let name = found[2].built_name(Digest::of(b""));
        assert_eq!(name, "a:e3b0c44298fc");
        assert!(name.parse::<crate::name::Name>().is_ok());
    }

    #[test]
    fn names_of_debian_images_are_made_of_what_is_in_them() {
        let name = |suite: &str, include: &[&str]| {
            debian_name(suite, &include.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(name("bookworm", &["a"]).starts_with("forkd-debian:bookworm-"));
        assert_eq!(name("bookworm", &["a"]), name("bookworm", &["a"]));
        assert_ne!(name("bookworm", &["ab"]), name("bookworm", &["a", "b"]));
        assert!(name("bookworm", &["a"]).parse::<crate::name::Name>().is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        for (tables, message) in [
            ("[image.a]", "forkd.toml: image.a: give either debian"),
            ("[image.a]\ndebian = []\ndockerfile = \"D\"", "image.a: give either debian"),
            ("[image.A]\ndebian = []", "image.A: invalid image name: use 1 to 64"),
            ("[image.a]\ndebian = [\"-x\"]", "image.a.debian: \"-x\" is not the name of a package"),
            ("[image.a]\ndebian = [\"?essential\"]", "is not the name of a package"),
            ("[image.a]\ndebian = []\nsuite = \"/etc\"", "image.a.suite: \"/etc\" is not a suite"),
            ("[image.a]\ndebian = []\nfrom = \"b\"", "image.a.from: only valid with dockerfile"),
            ("[image.a]\ndebian = []\ncontext = \"b\"", "image.a.context: only valid with dockerfile"),
            ("[image.a]\ndockerfile = \"D\"\nsuite = \"sid\"", "image.a.suite: only valid with debian"),
            ("[image.a]\ndockerfile = \"D\"\nfrom = \"b\"", "image.a.from: there is no table [image.b]"),
            ("[image.a]\ndockerfile = \"../D\"", "image.a.dockerfile: \"../D\" is not a path below"),
            ("[image.a]\ndockerfile = \"/D\"", "image.a.dockerfile: \"/D\" is not a path below"),
            ("[image.a]\ndockerfile = \"\"", "image.a.dockerfile: \"\" is not a path below"),
            ("[image.a]\ndockerfile = \"D\"\ncontext = \"..\"", "image.a.context: \"..\" is not a path"),
            (
                "[image.a]\ndockerfile = \"D\"\nfrom = \"a\"",
                "image.a.from: the images are based on each other in a cycle",
            ),
            (
                "[image.a]\ndockerfile = \"D\"\nfrom = \"b\"\n[image.b]\ndockerfile = \"D\"\nfrom = \"a\"",
                "image.a.from: the images are based on each other in a cycle",
            ),
            ("[image.a]\ndebain = []", "unknown field `debain`"),
        ] {
            let error = images(tables).unwrap_err();
            assert!(error.contains(message), "{tables:?}: {error}");
        }
        let many: String = (0..=MAX_IMAGES).map(|n| format!("[image.i{n}]\ndebian = []\n")).collect();
        assert!(images(&many).unwrap_err().contains("image: expected at most 64 tables, found 65"));
    }
}
