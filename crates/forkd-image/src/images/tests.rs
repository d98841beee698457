use std::process::Command;

use super::*;
use crate::archive::testing::{Item, Tar};
use crate::archive::{Limits, Whiteouts};
use crate::progress::Silent;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn layer() -> Vec<u8> {
    Tar::new()
        .item(Item { name: "./", kind: b'5', mode: 0o755, mtime: 7, ..Item::default() })
        .file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
        .item(Item {
            name: "home/user",
            kind: b'5',
            mode: 0o700,
            owner: Some((1000, 1000)),
            ..Item::default()
        })
        .item(Item { name: "bin/su", mode: 0o4755, content: b"su", ..Item::default() })
        .hard_link("bin/sudo", "bin/su")
        .symlink("sbin", "bin")
        .item(Item { name: "dev/null", kind: b'3', mode: 0o666, device: (1, 3), ..Item::default() })
        .item(Item { name: "pipe", kind: b'6', mode: 0o600, ..Item::default() })
        .pax(&[("SCHILY.xattr.user.note", b"kept")])
        .file("noted", b"x")
        .finish()
}

fn make(store: &ImageStore, layers: &[&[u8]], name: Option<&str>) -> Result<Image, ImageError> {
    let mut draft = Draft::new(store, Limits::default())?;
    for layer in layers {
        draft.layer(*layer, Whiteouts::Apply, None, &Silent)?;
    }
    let source = Source::Archive { file: "test.tar".into() };
    let name = name.map(|name| name.parse().unwrap());
    draft.finish(Finish { config: Config::default(), source, min_mib: None, name }, &Silent)
}

fn debugfs(image: &Image, request: &str) -> String {
    let output = Command::new("/usr/sbin/debugfs").args(["-R", request]).arg(image.base()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn others_than_root_are_told_at_once() {
    if is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let error = make(&ImageStore::new(home.path()), &[], None).unwrap_err();
    assert!(matches!(error, ImageError::NeedsRoot));
}

#[test]
fn what_was_in_the_layer_is_in_the_file_system() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let image = make(&store, &[&layer()], Some("test")).unwrap();
    assert_eq!(
        (&image.names[..], &image.metadata.default_user[..]),
        (&["test:latest".to_owned()][..], "user")
    );
    let su = debugfs(&image, "stat /bin/su");
    assert!(su.contains("Mode:  04755") && su.contains("Links: 2"), "{su}");
    assert_eq!(su, debugfs(&image, "stat /bin/sudo"));
    let user = debugfs(&image, "stat /home/user");
    assert!(user.contains("User:  1000   Group:  1000") && user.contains("Mode:  0700"), "{user}");
    assert!(debugfs(&image, "stat /dev/null").contains("Type: character special"));
    assert!(debugfs(&image, "stat /pipe").contains("Type: FIFO"));
    assert!(debugfs(&image, "stat /sbin").contains("Fast link dest: \"bin\""));
    assert!(debugfs(&image, "ea_get /noted user.note").contains("kept"));
    let check = Command::new("/usr/sbin/e2fsck").args(["-fn"]).arg(image.base()).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    assert!(image.disk < 24 << 20 && image.metadata.size > 1 << 30, "{image:?}");
}

#[test]
fn the_same_inputs_make_the_same_id_and_the_same_bytes() {
    if !is_root() {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = make(&ImageStore::new(one.path()), &[&layer()], None).unwrap();
    // Times that cannot be set differ by then.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let second = make(&ImageStore::new(two.path()), &[&layer()], None).unwrap();
    assert_eq!(first.id(), second.id());
    assert_eq!(first.metadata.digest, second.metadata.digest);
    let other =
        make(&ImageStore::new(two.path()), &[&layer(), &Tar::new().file("x", b"").finish()], None).unwrap();
    assert_ne!(other.id(), first.id());
}

#[test]
fn nothing_is_left_of_a_refused_archive() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let hostile = Tar::new().file("fine", b"").file("../out", b"").finish();
    let error = make(&store, &[&layer(), &hostile], Some("bad")).unwrap_err().to_string();
    assert!(error.contains("\"../out\" climbs out"), "{error}");
    assert_eq!(fs::read_dir(store.directory()).unwrap().count(), 0);

    let mut draft = Draft::new(&store, Limits::default()).unwrap();
    let expected = Some(Digest::of(b"other"));
    let error = draft.layer(&layer()[..], Whiteouts::Apply, expected, &Silent).unwrap_err();
    assert!(matches!(error, ImageError::WrongLayer { .. }));
    drop(draft);
    assert_eq!(fs::read_dir(store.directory()).unwrap().count(), 0);
}

#[test]
fn a_bomb_behind_the_end_of_the_archive_is_refused() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let limits = Limits { total: 1 << 20, entries: 10, ..Limits::default() };
    let mut draft = Draft::new(&store, limits).unwrap();
    let mut bytes = Tar::new().file("f", b"").finish();
    bytes.resize(8 << 20, 0);
    let bomb = zstd::encode_all(&bytes[..], 1).unwrap();
    assert!(draft.layer(&bomb[..], Whiteouts::Apply, None, &Silent).is_err());
}

#[test]
fn names_and_ids_find_and_remove() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    assert!(store.list().unwrap().is_empty());
    let image = make(&store, &[&layer()], Some("one:1")).unwrap();
    let same = make(&store, &[&layer()], Some("two")).unwrap();
    assert_eq!((same.id(), same.names.len(), store.list().unwrap().len()), (image.id(), 2, 1));
    for text in
        ["one:1", "two", "two:latest", &image.id().to_string(), &image.id().hex(), &image.id().hex()[..6]]
    {
        assert_eq!(store.find(text).unwrap().id(), image.id(), "{text}");
    }
    for text in ["three", "ab", "../one", "sha256:", ""] {
        assert!(matches!(store.find(text), Err(ImageError::Unknown(_))), "{text}");
        assert!(store.remove(text).is_err(), "{text}");
    }
    assert_eq!(store.remove("one:1").unwrap(), 0);
    assert_eq!(store.find("two").unwrap().names, ["two:latest"]);
    assert!(store.remove("two").unwrap() > 0);
    assert!(store.list().unwrap().is_empty());
    // By id, all names go.
    make(&store, &[&layer()], Some("one:1")).unwrap();
    make(&store, &[&layer()], Some("two")).unwrap();
    store.remove(&image.id().hex()[..8]).unwrap();
    assert!(store.find("two").is_err() && files::names(&store.directory().join(NAMES)).unwrap().is_empty());
}

#[test]
fn a_built_file_system_is_adopted() {
    let home = tempfile::tempdir().unwrap();
    let store = ImageStore::new(home.path());
    let base = home.path().join("disk");
    fs::write(&base, vec![1; 8192]).unwrap();
    let name: Name = "built".parse().unwrap();
    let key = Digest::of(b"steps");
    let built = BuiltImage {
        key,
        config: Config::default(),
        recipe: None,
        default_user: "root".into(),
        name: Some(name),
    };
    assert!(store.find_built(&built).unwrap().is_none());
    let image = store.adopt(&base, built.clone()).unwrap();
    assert!(!base.exists() && image.base().exists());
    assert_eq!(store.find("built").unwrap().metadata.source, Source::Build { key });
    assert_eq!(store.find_built(&built).unwrap().unwrap().id(), image.id());
    // What a parent needs, and how programs are started, make it another image.
    let recipe = Some(crate::recipe::Recipe { vcpus: Some(2), ..Default::default() });
    let with_recipe = BuiltImage { recipe: recipe.clone(), name: None, ..built.clone() };
    assert!(store.find_built(&with_recipe).unwrap().is_none());
    fs::write(&base, vec![1; 8192]).unwrap();
    let config = Config { user: Some("app".into()), ..Config::default() };
    let image = store.adopt(&base, BuiltImage { config, ..with_recipe }).unwrap();
    let found = store.get(image.id()).unwrap().unwrap();
    assert!(store.find_built(&built).unwrap().is_some());
    // Made anew with other contents, it is another image, and the first is as it was.
    let first = store.find_built(&built).unwrap().unwrap();
    let anew = |content: u8| {
        fs::write(&base, vec![content; 8192]).unwrap();
        store.adopt_anew(&base, built.clone()).unwrap().id()
    };
    let second = anew(2);
    assert_ne!(second, first.id());
    assert_eq!(store.find_built(&built).unwrap().unwrap().id(), second);
    assert_eq!(store.find("built").unwrap().id(), second);
    assert_eq!(fs::read(first.base()).unwrap()[0], 1);
    // Made again with the first contents, the first is used again.
    assert_eq!((anew(1), store.find_built(&built).unwrap().unwrap().id()), (first.id(), first.id()));
    assert_eq!(anew(2), second);
    assert_eq!((found.metadata.recipe, &found.metadata.default_user[..]), (recipe, "app"));
}

/// A store with an image that is only described, under a name.
fn described(library: &Path, content: &[u8], name: &str) -> ImageStore {
    let store = ImageStore::new(library);
    let file = library.join("disk");
    fs::write(&file, content).unwrap();
    let built = BuiltImage {
        key: Digest::of(content),
        config: Config::default(),
        recipe: None,
        default_user: "root".into(),
        name: Some(name.parse().unwrap()),
    };
    store.adopt(&file, built).unwrap();
    store
}

fn everything(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(everything(&path));
        }
        found.insert(path);
    }
    found
}

#[test]
fn a_shared_library_is_seen_and_never_changed() {
    let (own, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    described(shared.path(), b"one", "one");
    let host = described(shared.path(), b"two", "two");
    let before = everything(shared.path());
    let store = described(own.path(), b"three", "two").with_shared(shared.path());

    // The store's own meaning of a name wins; the other image is still there, by its id.
    let [one, two] = ["one", "two"].map(|name| store.find(name).unwrap());
    assert!(one.shared && !two.shared);
    let hidden = host.find("two").unwrap().id();
    let by_id = store.find(&hidden.hex()).unwrap();
    assert!(by_id.shared && by_id.names.is_empty(), "{by_id:?}");
    let listed: Vec<_> =
        store.list().unwrap().into_iter().map(|it| (it.names.join(" "), it.shared)).collect();
    let expected = [("one:latest", true), ("two:latest", false), ("", true)];
    assert_eq!(listed, expected.map(|(names, shared)| (names.to_owned(), shared)));

    // What is shared stays, whatever it is called; a name of the store's own for it goes.
    for text in ["one", &one.id().hex(), &hidden.hex()] {
        assert!(matches!(store.remove(text), Err(ImageError::Shared(name)) if name == *text), "{text}");
    }
    store.name(&"mine".parse().unwrap(), one.id()).unwrap();
    assert_eq!(store.get(one.id()).unwrap().unwrap().names, ["mine:latest", "one:latest"]);
    assert_eq!(store.remove("mine").unwrap(), 0);
    assert_eq!(store.get(one.id()).unwrap().unwrap().names, ["one:latest"]);
    assert!(store.remove("two").unwrap() > 0);
    // And now the shared one of that name is seen.
    assert_eq!(store.find("two").unwrap().id(), hidden);
    assert_eq!(everything(shared.path()), before);
}

#[test]
fn an_image_in_both_libraries_is_the_store_s_own() {
    let (own, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    described(shared.path(), b"same", "theirs");
    let store = described(own.path(), b"same", "mine").with_shared(shared.path());
    let image = store.find("theirs").unwrap();
    assert!(!image.shared && image.names == ["mine:latest", "theirs:latest"], "{image:?}");
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(matches!(store.remove("theirs"), Err(ImageError::Shared(_))));
    assert!(store.remove(&image.id().hex()).unwrap() > 0);
    let image = store.find("theirs").unwrap();
    assert!(image.shared && image.names == ["theirs:latest"]);
}
