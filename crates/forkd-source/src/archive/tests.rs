//! Archives that try to get out, to fill the disk or to confuse; and honest ones that must survive whole.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::testing::{Item, Tar};
use super::*;
use crate::progress::Silent;

/// A tree in a directory whose other contents tell whether anything got out.
struct Staging {
    outer: tempfile::TempDir,
    tree: Tree,
    used: Used,
}

impl Staging {
    fn new() -> Staging {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("secret"), "secret").unwrap();
        let tree = Tree::create(&outer.path().join("root")).unwrap();
        Staging { outer, tree, used: Used::default() }
    }

    fn apply(&mut self, tar: Tar) -> Result<(), ArchiveError> {
        self.apply_bytes(&tar.finish(), &Limits::default())
    }

    fn apply_bytes(&mut self, bytes: &[u8], limits: &Limits) -> Result<(), ArchiveError> {
        let result = apply(&mut self.tree, bytes, Whiteouts::Apply, limits, &mut self.used, &Silent);
        self.check();
        result
    }

    /// Nothing beside the tree came, went or changed.
    fn check(&self) {
        let mut names: Vec<_> =
            fs::read_dir(self.outer.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["root", "secret"]);
        let secret = self.outer.path().join("secret");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(fs::metadata(&secret).unwrap().nlink(), 1);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.tree.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }
}

/// The entry and the problem that an archive is refused for.
fn refused(tar: Tar) -> (String, Problem) {
    refused_within(&tar.finish(), &Limits::default())
}

fn refused_within(bytes: &[u8], limits: &Limits) -> (String, Problem) {
    match Staging::new().apply_bytes(bytes, limits) {
        Err(ArchiveError::Refused { entry, problem }) => (entry, problem),
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn paths_that_climb_are_refused() {
    for name in ["../secret", "a/../../secret", "/../secret", "./../secret", "a/.."] {
        assert_eq!(refused(Tar::new().file(name, b"x")), (name.into(), Problem::ClimbsOut));
    }
    let (_, problem) = refused(Tar::new().pax(&[("path", b"../secret")]).file("fine", b"x"));
    assert_eq!(problem, Problem::ClimbsOut);
    let long = Tar::new().item(Item { name: "l", kind: b'L', content: b"../secret\0", ..Item::default() });
    assert_eq!(refused(long.file("fine", b"x")).1, Problem::ClimbsOut);
}

#[test]
fn links_on_the_way_do_not_lead_out() {
    for target in ["..", "../..", "/", "/etc", "a/../..", "/proc/self/root"] {
        let tar = Tar::new().directory("a").symlink("link", target).file("link/secret", b"x");
        assert_eq!(refused(tar), ("link/secret".into(), Problem::ThroughLink), "{target}");
    }
    // Two links, each harmless alone.
    let tar =
        Tar::new().directory("a").symlink("a/up", "..").symlink("out", "a/up/..").file("out/secret", b"x");
    assert_eq!(refused(tar).1, Problem::ThroughLink);
    // A link to itself, one that dangles, and a file.
    assert_eq!(refused(Tar::new().symlink("l", "l").file("l/x", b"")).1, Problem::ThroughLink);
    assert_eq!(refused(Tar::new().symlink("l", "none").file("l/x", b"")).1, Problem::ThroughLink);
    assert_eq!(refused(Tar::new().file("f", b"").file("f/x", b"")).1, Problem::NotADirectory);
    // Directories and whiteouts go the same way.
    assert_eq!(refused(Tar::new().symlink("l", "..").directory("l/new")).1, Problem::ThroughLink);
    assert_eq!(refused(Tar::new().symlink("l", "..").file("l/.wh.secret", b"")).1, Problem::ThroughLink);
    assert_eq!(refused(Tar::new().symlink("l", "..").file("l/.wh..wh..opq", b"")).1, Problem::ThroughLink);
}

#[test]
fn a_link_that_stays_inside_is_followed_on_the_way_and_replaced_at_the_end() {
    let mut staging = Staging::new();
    staging.apply(Tar::new().directory("usr/lib").symlink("lib", "usr/lib").file("lib/a", b"a")).unwrap();
    assert_eq!(staging.text("usr/lib/a"), "a");
    staging.apply(Tar::new().file("target", b"old").symlink("link", "target").file("link", b"new")).unwrap();
    assert_eq!((staging.text("target"), staging.text("link")), ("old".into(), "new".into()));
    // A directory takes the place of a link and does not change what the link meant.
    staging.apply(Tar::new().directory("lib")).unwrap();
    assert!(fs::symlink_metadata(staging.path("lib")).unwrap().is_dir() && staging.has("usr/lib/a"));
}

#[test]
fn a_file_is_never_written_through_a_link() {
    let mut staging = Staging::new();
    staging.apply(Tar::new().symlink("secret", "../secret").file("secret", b"mine")).unwrap();
    assert_eq!(staging.text("secret"), "mine");
    // Nor are owner, mode and time given through one.
    staging.apply(Tar::new().symlink("l", "../secret")).unwrap();
    staging
        .apply(Tar::new().item(Item {
            name: "l",
            kind: b'2',
            link: "../secret",
            mode: 0o777,
            mtime: 5,
            ..Item::default()
        }))
        .unwrap();
    assert_ne!(fs::metadata(staging.outer.path().join("secret")).unwrap().mtime(), 5);
}

#[test]
fn hard_links_reach_only_what_is_inside() {
    assert_eq!(refused(Tar::new().hard_link("h", "../secret")).1, Problem::ClimbsOut);
    let missing = |name: &str| Problem::LinkMissing(name.into());
    assert_eq!(refused(Tar::new().hard_link("h", "/etc/passwd")), ("h".into(), missing("etc/passwd")));
    assert_eq!(refused(Tar::new().symlink("up", "..").hard_link("h", "up/secret")).1, Problem::ThroughLink);
    assert_eq!(
        refused(Tar::new().directory("d").hard_link("h", "d")).1,
        Problem::LinkToDirectory("d".into())
    );
    assert_eq!(refused(Tar::new().hard_link("h", "./")).1, missing(""));
    assert_eq!(refused(Tar::new().hard_link("h", "")).1, Problem::BadHeader("a link to nothing"));
    // The target goes away with the directory that the link replaces.
    assert_eq!(refused(Tar::new().file("d/f", b"").hard_link("d", "d/f")).1, missing("d/f"));
    // A hard link to a symlink is one to the link, not through it.
    let mut staging = Staging::new();
    staging.apply(Tar::new().symlink("s", "../secret").hard_link("h", "s").hard_link("s", "s")).unwrap();
    assert_eq!(fs::read_link(staging.path("h")).unwrap(), Path::new("../secret"));
}

#[test]
fn odd_types_and_headers_are_refused() {
    let odd = |kind| refused(Tar::new().item(Item { name: "odd", kind, ..Item::default() })).1;
    assert_eq!(odd(b'M'), Problem::OddType('M'));
    assert_eq!(odd(b'V'), Problem::OddType('V'));
    assert_eq!(odd(b'S'), Problem::Sparse);
    assert_eq!(refused(Tar::new().pax(&[("GNU.sparse.major", b"1")]).file("f", b"")).1, Problem::Sparse);
    assert_eq!(
        refused(Tar::new().pax(&[("size", b"0")]).file("f", b"xyz")).1,
        Problem::BadHeader("two sizes")
    );
    let huge = Tar::new().pax(&[("size", b"99999999999999")]).file("f", b"xyz");
    assert!(matches!(refused(huge).1, Problem::FileTooLarge(_)));
    assert_eq!(
        refused(Tar::new().pax(&[("uid", b"4294967295")]).file("f", b"")).1,
        Problem::BadHeader("its owner")
    );
    assert_eq!(
        refused(Tar::new().pax(&[]).pax(&[]).file("f", b"")).1,
        Problem::BadHeader("it is described twice")
    );
    let global = Tar::new().item(Item { name: "g", kind: b'g', content: b"9 path=x\n", ..Item::default() });
    assert_eq!(refused(global).1, Problem::BadHeader("global pax records other than comments"));
    assert_eq!(refused(Tar::new().pax(&[("path", b"a\0b")]).file("f", b"")).1, Problem::BadName);
    assert_eq!(refused(Tar::new().pax(&[("linkpath", b"a\0b")]).symlink("f", "x")).1, Problem::BadName);
    assert_eq!(refused(Tar::new().file("./", b"x")).1, Problem::BadName);
    for bad in [".wh.", ".wh..", ".wh..."] {
        assert_eq!(
            refused(Tar::new().file(&format!("d/{bad}"), b"").file("d/x", b"")).1,
            Problem::BadName,
            "{bad}"
        );
    }
}

#[test]
fn broken_archives_are_refused() {
    let mut staging = Staging::new();
    let good = Tar::new().file("f", &[7; 5000]).finish();
    for length in [1, 511, 700, 5000] {
        assert!(staging.apply_bytes(&good[..length], &Limits::default()).is_err(), "{length}");
    }
    let mut flipped = good.clone();
    flipped[0] = b'g';
    let error = staging.apply_bytes(&flipped, &Limits::default()).unwrap_err();
    assert!(matches!(error, ArchiveError::Read { .. }), "{error}");
    let described = Tar::new().pax(&[("path", b"x")]).unfinished();
    assert!(staging.apply_bytes(&described, &Limits::default()).is_err());
}

#[test]
fn bombs_are_refused() {
    let limits = Limits { total: 100, file: 60, entries: 5, path: 40, depth: 3 };
    let refused = |tar: Tar| refused_within(&tar.finish(), &limits).1;
    assert_eq!(refused(Tar::new().file("f", &[0; 61])), Problem::FileTooLarge(60));
    assert_eq!(refused(Tar::new().file("f", &[0; 60]).file("g", &[0; 41])), Problem::TotalTooLarge(100));
    let many = (0..6).fold(Tar::new(), |tar, number| tar.file(&format!("f{number}"), b""));
    assert_eq!(refused(many), Problem::TooManyEntries(5));
    assert_eq!(refused(Tar::new().file(&"p/".repeat(30), b"x")), Problem::PathTooLong);
    assert_eq!(refused(Tar::new().directory("a/b/c/d")), Problem::TooDeep);
    assert_eq!(refused(Tar::new().symlink("s", &"x".repeat(41))), Problem::PathTooLong);
    // An extension header that claims a gigabyte is refused before it is read.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_size(1 << 30);
    header.set_cksum();
    assert_eq!(refused_within(header.as_bytes(), &limits).1, Problem::PathTooLong);
}

#[test]
fn links_do_not_get_around_the_limit_on_nesting() {
    let limits = Limits { depth: 10, ..Limits::default() };
    let tar = Tar::new().directory("a/b/c/d/e/f").symlink("deep", "a/b/c/d/e/f").directory("deep/g/h/i/j/k");
    assert_eq!(refused_within(&tar.finish(), &limits).1, Problem::TooDeep);
    let limits = Limits { path: 100, ..Limits::default() };
    let long = "x".repeat(60);
    let tar = Tar::new().directory(&long).symlink("s", &long).file(&format!("s/{long}"), b"");
    assert_eq!(refused_within(&tar.finish(), &limits).1, Problem::PathTooLong);
}

#[test]
fn limits_hold_over_all_layers() {
    let limits = Limits { total: 100, ..Limits::default() };
    let mut staging = Staging::new();
    let layer = Tar::new().file("f", &[0; 60]).finish();
    staging.apply_bytes(&layer, &limits).unwrap();
    assert!(staging.apply_bytes(&layer, &limits).is_err());
}

#[test]
fn whiteouts_take_from_lower_layers_only() {
    let mut staging = Staging::new();
    staging
        .apply(
            Tar::new()
                .file("d/a", b"1")
                .file("d/b", b"1")
                .file("d/sub/x", b"1")
                .file("e/f", b"1")
                .symlink("gone", "/x"),
        )
        .unwrap();
    staging
        .apply(
            Tar::new()
                .file(".wh.gone", b"")
                .file("d/.wh.a", b"")
                .file("d/sub/.wh.none", b"")
                .file("no/.wh.x", b""),
        )
        .unwrap();
    assert!(!staging.has("d/a") && staging.has("d/b") && !staging.has("gone") && !staging.has("no"));
    // Opaque, once before and once after what the layer brings.
    staging.apply(Tar::new().file("d/.wh..wh..opq", b"").file("d/new", b"2")).unwrap();
    assert!(!staging.has("d/b") && !staging.has("d/sub") && staging.text("d/new") == "2");
    staging
        .apply(Tar::new().file("e/sub/kept", b"3").file("e/.wh..wh..opq", b"").file("d/.wh..wh.aufs", b""))
        .unwrap();
    assert!(!staging.has("e/f") && staging.text("e/sub/kept") == "3" && staging.has("d/new"));
    // A mark for a name that the same layer brings means the one below.
    staging.apply(Tar::new().file("e/sub/other", b"4").file("e/.wh.sub", b"")).unwrap();
    assert!(staging.has("e/sub/other") && !staging.has("e/sub/kept"));
    // No mark is left as a file.
    assert!(!staging.has("e/.wh.sub") && !staging.has("d/.wh..wh..opq"));
}

#[test]
fn an_opaque_mark_removes_a_lower_name_of_a_file_that_is_linked_anew() {
    let mut staging = Staging::new();
    staging.apply(Tar::new().file("d/old", b"1")).unwrap();
    staging.apply(Tar::new().hard_link("d/new", "d/old").file("d/.wh..wh..opq", b"")).unwrap();
    assert!(!staging.has("d/old") && staging.text("d/new") == "1");
}

#[test]
fn in_a_plain_archive_a_mark_is_a_name() {
    let mut staging = Staging::new();
    let bytes = Tar::new().file(".wh.x", b"1").finish();
    apply(&mut staging.tree, &bytes[..], Whiteouts::Keep, &Limits::default(), &mut staging.used, &Silent)
        .unwrap();
    assert!(staging.has(".wh.x"));
}

#[test]
fn everything_that_a_file_is_survives() {
    let mut staging = Staging::new();
    let owner = if is_root() { Some((1000, 100)) } else { None };
    let long = format!("dir/{}", "n".repeat(150));
    staging
        .apply(
            Tar::new()
                .item(Item { name: "./", kind: b'5', mode: 0o755, mtime: 11, ..Item::default() })
                .item(Item { name: "dir/", kind: b'5', mode: 0o1777, mtime: 22, owner, ..Item::default() })
                .item(Item {
                    name: "dir/tool",
                    mode: 0o4755,
                    mtime: 33,
                    owner,
                    content: b"#!",
                    ..Item::default()
                })
                .hard_link("dir/same", "dir/tool")
                .symlink("dir/link", "/nowhere/at/all")
                .item(Item { name: "dir/pipe", kind: b'6', mode: 0o620, ..Item::default() })
                .pax(&[("path", long.as_bytes()), ("mtime", b"44.5"), ("SCHILY.xattr.user.note", b"a\nb\0c")])
                .file("short", b"long name"),
        )
        .unwrap();
    staging.tree.finish().unwrap();
    let stat = |path: &str| fs::symlink_metadata(staging.path(path)).unwrap();
    assert_eq!(stat("dir/tool").permissions().mode() & 0o7777, 0o4755);
    assert_eq!((stat("dir/tool").mtime(), stat("dir").mtime(), stat("").mtime()), (33, 22, 11));
    assert_eq!(stat("dir").permissions().mode() & 0o7777, 0o1777);
    assert_eq!((stat("dir/same").ino(), stat("dir/tool").nlink()), (stat("dir/tool").ino(), 2));
    assert_eq!(fs::read_link(staging.path("dir/link")).unwrap(), Path::new("/nowhere/at/all"));
    assert!(stat("dir/pipe").file_type().is_fifo() && stat("dir/pipe").permissions().mode() & 0o777 == 0o620);
    assert_eq!((stat(&long).mtime(), stat(&long).mtime_nsec()), (44, 500_000_000));
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(staging.path(&long), "user.note", &mut value).unwrap();
    assert_eq!(&value[..length], b"a\nb\0c");
    if let Some(owner) = owner {
        assert_eq!((stat("dir/tool").uid(), stat("dir/tool").gid()), owner);
    }
}

#[test]
fn devices_and_capabilities_survive_for_root() {
    if !is_root() {
        return;
    }
    // Version 2, one permitted capability: net_bind_service. The number has a newline inside.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0];
    let mut staging = Staging::new();
    staging
        .apply(
            Tar::new()
                .item(Item { name: "dev/null", kind: b'3', mode: 0o666, device: (1, 3), ..Item::default() })
                .item(Item { name: "dev/loop0", kind: b'4', mode: 0o660, device: (7, 0), ..Item::default() })
                .pax(&[("SCHILY.xattr.security.capability", &capability)])
                .item(Item { name: "ping", mode: 0o755, owner: Some((0, 0)), ..Item::default() }),
        )
        .unwrap();
    let null = fs::metadata(staging.path("dev/null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == rustix::fs::makedev(1, 3));
    assert_eq!(null.permissions().mode() & 0o777, 0o666);
    assert!(fs::metadata(staging.path("dev/loop0")).unwrap().file_type().is_block_device());
    let mut value = [0; 32];
    let length = rustix::fs::getxattr(staging.path("ping"), "security.capability", &mut value).unwrap();
    assert_eq!(&value[..length], capability);
}

#[test]
fn an_attribute_that_cannot_be_set_is_named() {
    let tar = Tar::new().pax(&[("SCHILY.xattr.nonsense", b"x")]).file("f", b"");
    assert_eq!(refused(tar), ("f".into(), Problem::Attribute("nonsense".into())));
}

#[test]
fn contents_count_linked_files_once() {
    let mut staging = Staging::new();
    staging.apply(Tar::new().file("d/a", &[1; 5000]).hard_link("d/b", "d/a").symlink("s", "x")).unwrap();
    let contents = staging.tree.finish().unwrap();
    assert_eq!(contents.inodes, 4);
    assert!(contents.bytes >= 8192, "{contents:?}");
}

#[test]
fn a_file_is_read_as_the_guest_sees_it() {
    let mut staging = Staging::new();
    staging
        .apply(
            Tar::new()
                .file("usr/lib/os", b"yes")
                .symlink("etc/os", "/usr/lib/os")
                .symlink("out", "../secret"),
        )
        .unwrap();
    assert_eq!(staging.tree.read("/etc/os", 100).unwrap().unwrap(), b"yes");
    assert_eq!(staging.tree.read("/etc/os", 2).unwrap(), None);
    assert_eq!(staging.tree.read("out", 100).unwrap(), None);
    assert_eq!(staging.tree.read("usr", 100).unwrap(), None);
}

/// The fuzzer begins with archives that are unpacked without complaint. `FORKD_WRITE_SEEDS=1` writes them anew.
#[test]
fn the_fuzzer_s_seeds_are_good_archives() {
    let me = Some((0, 0));
    let item = |name, kind, link| Item { name, kind, link, owner: me, mode: 0o755, ..Item::default() };
    let links = Tar::new()
        .item(item("usr/lib", b'5', ""))
        .item(item("lib", b'2', "usr/lib"))
        .item(Item { content: b"x", ..item("lib/a", b'0', "") })
        .item(item("b", b'1', "usr/lib/a"))
        .item(item("usr/.wh.lib", b'0', ""))
        .item(item("usr/.wh..wh..opq", b'0', ""));
    let names = Tar::new()
        .item(item("long", b'5', ""))
        .pax(&[("path", b"long/name"), ("mtime", b"12.5"), ("SCHILY.xattr.user.note", b"v")])
        .item(item("short", b'0', ""))
        .item(Item { name: "l", kind: b'L', content: b"another/name\0", ..Item::default() })
        .item(item("short", b'0', ""));
    let names = names.finish();
    let gzip = {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&names).unwrap();
        encoder.finish().unwrap()
    };
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/archive");
    for (name, bytes) in [("links", links.finish()), ("names", names), ("gzip", gzip)] {
        let seed = seeds.join(name);
        if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
            fs::create_dir_all(&seeds).unwrap();
            fs::write(&seed, &bytes).unwrap();
        }
        let mut archive = Vec::new();
        std::io::Read::read_to_end(&mut decompressed(fs::File::open(&seed).unwrap()).unwrap(), &mut archive)
            .unwrap();
        let mut staging = Staging::new();
        let result = staging.apply_bytes(&archive, &Limits::default());
        // Only root can give files to root.
        assert!(result.is_ok() || !is_root(), "{name}: {result:?}");
    }
}

#[test]
fn cancelling_ends_it() {
    struct Cancelled;
    impl crate::progress::Progress for Cancelled {
        fn step(&self, _: &str) {}
        fn detail(&self, _: &str) {}
        fn warn(&self, _: &str) {}
        fn is_cancelled(&self) -> bool {
            true
        }
    }
    let mut staging = Staging::new();
    let bytes = Tar::new().file("f", b"").finish();
    let result = apply(
        &mut staging.tree,
        &bytes[..],
        Whiteouts::Apply,
        &Limits::default(),
        &mut staging.used,
        &Cancelled,
    );
    assert!(matches!(result, Err(ArchiveError::Cancelled)) && !staging.has("f"));
}

/// Names and targets out of few parts, so that entries meet.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof!["a", "b", "link", "\\.\\.", "\\.", "", "\\.wh\\.a", "\\.wh\\.\\.wh\\.\\.opq"];
    proptest::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_sequence_of_entries_gets_out(items in proptest::collection::vec((name(), name(), 0u8..5), 1..12)) {
        let mut staging = Staging::new();
        for (name, link, kind) in &items {
            let tar = match kind {
                0 => Tar::new().file(name, b"x"),
                1 => Tar::new().directory(name),
                2 => Tar::new().symlink(name, link),
                3 => Tar::new().hard_link(name, link),
                _ => Tar::new().symlink(name, &format!("/{link}")),
            };
            // Each may fail; the check for what got out is in `apply`.
            let _ = staging.apply(tar);
        }
        staging.tree.finish().unwrap();
    }

    #[test]
    fn damaged_archives_do_not_panic(flips in proptest::collection::vec((0usize..4000, any::<u8>()), 1..6)) {
        let mut bytes = Tar::new().directory("d").pax(&[("path", b"d/f")]).file("f", b"x").symlink("l", "d").hard_link("h", "d/f").finish();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = Staging::new().apply_bytes(&bytes, &Limits { total: 1 << 20, ..Limits::default() });
    }
}
