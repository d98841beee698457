//! Paths as clients write them: absolute, relative to where the user works, or from `~`.

use std::path::{Component, Path, PathBuf};

use crate::users::User;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path contains a NUL byte")]
    Nul,
    #[error("'{0}': ~ can only stand for the user's own home directory")]
    ForeignHome(String),
}

/// Makes a path absolute and takes `.` and `..` out of it by their names, as E2B's agent does: symbolic links are not looked at.
pub fn resolve(path: &str, user: &User, workdir: Option<&Path>) -> Result<PathBuf, PathError> {
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    let base = workdir.unwrap_or(&user.home);
    let joined = match path.strip_prefix('~') {
        Some("") => user.home.clone(),
        Some(rest) => {
            let rest = rest.strip_prefix('/').ok_or_else(|| PathError::ForeignHome(path.to_owned()))?;
            user.home.join(rest.trim_start_matches('/'))
        }
        None => base.join(path),
    };
    Ok(clean(&joined))
}

fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

/// A path for people and JSON. Names that are not UTF-8 are shown with replacement characters.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user() -> User {
        User { name: "user".into(), uid: 1000, gid: 1000, home: "/home/user".into(), groups: vec![1000] }
    }

    #[test]
    fn from_root_home_and_workdir() {
        let at_home = |path| text(&resolve(path, &user(), None).unwrap());
        assert_eq!(at_home("/a//b/./c/../d/"), "/a/b/d");
        assert_eq!(at_home("x/y"), "/home/user/x/y");
        assert_eq!(at_home(""), "/home/user");
        assert_eq!(at_home("~"), "/home/user");
        assert_eq!(at_home("~//x"), "/home/user/x");
        assert_eq!(at_home("/../../.."), "/");
        let at_work = |path| text(&resolve(path, &user(), Some(Path::new("/srv"))).unwrap());
        assert_eq!(
            (at_work("x"), at_work("~/x"), at_work("")),
            ("/srv/x".into(), "/home/user/x".into(), "/srv".into())
        );
        assert_eq!(resolve("~root/x", &user(), None), Err(PathError::ForeignHome("~root/x".into())));
        assert_eq!(resolve("a\0b", &user(), None), Err(PathError::Nul));
    }

    proptest! {
        #[test]
        fn whatever_comes_out_is_absolute_and_clean(path in "[a~./\u{e9}]{0,20}") {
            if let Ok(resolved) = resolve(&path, &user(), None) {
                prop_assert!(resolved.is_absolute());
                prop_assert!(resolved.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_))));
                let again = resolve(&text(&resolved), &user(), None).unwrap();
                prop_assert_eq!(again, resolved);
            }
        }
    }
}
