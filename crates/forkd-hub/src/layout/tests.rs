//! Layouts of forkd, of other tools, damaged and hostile ones.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Mutex;

use forkd_source::digest::Digest;
use proptest::prelude::*;

use super::*;
use crate::artifact::{OpenError, first_variant};
use crate::config::About;
use crate::fetch::FetchError;
use crate::manifest::Annotations;
use crate::outgoing::{Outgoing, Snapshot};
use crate::progress::{Progress, Silent};
use crate::role::Role;
use crate::testing::{Memory, noise};

const LIMIT: u64 = 1 << 30;

fn written(memory: &[u8], tag: Option<&str>) -> (Vec<u8>, Written) {
    let state = noise(1000);
    let stream = |role, source| Outgoing { role, name: "base", source, known: None, remembered: None };
    let streams = [stream(Role::Memory, &memory), stream(Role::State, &state), stream(Role::DiskMap, &state)];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &Annotations::new() };
    let mut tar = Vec::new();
    let written = write(&mut tar, snapshot, tag, &Silent).unwrap();
    (tar, written)
}

fn unpack(tar: &[u8], directory: &Path) -> Result<Layout, LayoutError> {
    Layout::unpack(tar, directory, LIMIT, &Silent)
}

/// The entries of an archive: name and content.
fn entries(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    });
    entries.collect()
}

fn archive(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        // The setter refuses what the tests are about.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        if kind.is_symlink() || kind.is_hard_link() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        archive.append(&header, *content).unwrap();
    }
    archive.into_inner().unwrap()
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn a_snapshot_travels_in_a_file() {
    let memory = noise((65 << 20) + 3);
    let (tar, done) = written(&memory, Some("v1"));
    assert!(tar == written(&memory, Some("v1")).0, "equal snapshots are equal files");
    let names: Vec<String> = entries(&tar).into_iter().map(|(name, _)| name).collect();
    assert_eq!((names[0].as_str(), names[names.len() - 1].as_str()), ("oci-layout", "index.json"));
    // Two of memory, one for both streams with the same bytes, config and manifest.
    assert_eq!(names.len(), 2 + 5);

    let directory = tempfile::tempdir().unwrap();
    let layout = unpack(&tar, directory.path()).unwrap();
    let artifact = layout.open(&first_variant).unwrap();
    assert_eq!((artifact.digest(), artifact.streams()), (done.digest, &done.streams[..]));
    assert_eq!(artifact.compressed_size(), done.compressed);
    for (stream, bytes) in artifact.streams().iter().zip([&memory, &noise(1000), &noise(1000)]) {
        let got = Memory::default();
        layout.fetch(stream, &|_| false, &got, &Silent).unwrap();
        assert!(got.take() == *bytes);
    }
    let fetched = layout.fetch(&artifact.streams()[0], &|frame| frame < 30, &Memory::default(), &Silent);
    assert_eq!(fetched.unwrap().raw, (5 << 20) + 3);
    drop(layout);
    assert!(is_empty(directory.path()), "its files go with it");
}

#[derive(Default)]
struct Told(Mutex<Vec<u64>>);

impl Progress for Told {
    fn done(&self, bytes: u64) {
        self.0.lock().unwrap().push(bytes);
    }
}

#[test]
fn unpacking_reports_the_bytes_of_blobs() {
    let (tar, done) = written(&noise(3 << 20), None);
    let directory = tempfile::tempdir().unwrap();
    let told = Told::default();
    Layout::unpack(&tar[..], directory.path(), LIMIT, &told).unwrap();
    let told = told.0.into_inner().unwrap();
    let last = *told.last().unwrap();
    assert!(told.is_sorted() && told.len() > 5, "{told:?}");
    assert!(last > done.compressed && last < tar.len() as u64, "{last} of {}", tar.len());
}

#[test]
fn archives_of_other_tools_are_accepted() {
    let (tar, done) = written(&noise(5000), None);
    let mut parts = entries(&tar);
    parts.reverse();
    let directory = (tar::EntryType::Directory, &[][..]);
    for prefix in ["", "./"] {
        let named: Vec<_> =
            parts.iter().map(|(name, content)| (format!("{prefix}{name}"), content)).collect();
        let folders = ["", "blobs/", "blobs/sha256/"].map(|name| format!("./{name}"));
        let folders = folders.iter().map(|name| (name.as_str(), directory.0, directory.1));
        let files =
            named.iter().map(|(name, content)| (name.as_str(), tar::EntryType::Regular, content.as_slice()));
        // A blob that is there twice is the same twice.
        let twice = files.clone().nth(1);
        let all: Vec<_> = folders.chain(files).chain(twice).collect();
        let to = tempfile::tempdir().unwrap();
        let layout = unpack(&archive(&all), to.path()).unwrap();
        assert_eq!(layout.open(&first_variant).unwrap().digest(), done.digest);
    }
}

#[test]
fn what_is_not_part_of_a_layout_is_refused_by_name() {
    let to = tempfile::tempdir().unwrap();
    let (tar, _) = written(&noise(5000), None);
    let good = entries(&tar);
    let hex = "0".repeat(64);
    let refused = |name: &str, kind: tar::EntryType, content: &[u8], says: &str| {
        let files = good.iter().map(|(name, content)| (name.as_str(), tar::EntryType::Regular, &content[..]));
        let all: Vec<_> = files.chain([(name, kind, content)]).collect();
        let error = unpack(&archive(&all), to.path()).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(is_empty(to.path()), "{name}: nothing is left");
    };
    use tar::EntryType as Kind;
    refused("manifest.json", Kind::Regular, b"[]", "\"manifest.json\" is not part of a layout");
    refused("../evil", Kind::Regular, b"x", "climbs out");
    refused("blobs/sha256/../../../evil", Kind::Regular, b"x", "climbs out");
    refused(&format!("blobs/sha512/{hex}"), Kind::Regular, b"x", "is not part of a layout");
    refused(&format!("blobs/sha256/{hex}/x"), Kind::Regular, b"x", "is not part of a layout");
    refused("blobs/sha256/ABCDEF", Kind::Regular, b"x", "is not part of a layout");
    refused(&format!("blobs/sha256/{}", "A".repeat(64)), Kind::Regular, b"x", "is not part of a layout");
    refused(&format!("blobs/sha256/{hex}"), Kind::Regular, b"x", "is damaged");
    refused(&format!("blobs/sha256/{hex}"), Kind::Symlink, b"", "is not part of a layout");
    refused(&format!("blobs/sha256/{hex}"), Kind::Link, b"", "is not part of a layout");
    refused(&format!("blobs/sha256/{hex}"), Kind::Fifo, b"", "is not part of a layout");
    refused("blobs/sha256", Kind::Symlink, b"", "is not part of a layout");
    refused("index.json", Kind::Regular, b"{}", "occurs twice");
    let large = vec![b' '; 5 << 20];
    refused("index.json", Kind::Regular, &large, "has 5242880 bytes, expected at most");

    let error = Layout::unpack(&tar[..], to.path(), 2000, &Silent).unwrap_err().to_string();
    assert!(error.contains("2000"), "{error}");
    let without = |left_out: &str| {
        let kept = good.iter().filter(|(name, _)| name != left_out);
        let kept: Vec<_> = kept.map(|(name, content)| (name.as_str(), Kind::Regular, &content[..])).collect();
        unpack(&archive(&kept), to.path())
    };
    assert!(matches!(without("index.json"), Err(LayoutError::Missing("index.json"))));
    assert!(matches!(without("oci-layout"), Err(LayoutError::Missing("oci-layout"))));
    // A blob that the index or the manifest names is not there.
    for (name, _) in good.iter().filter(|(name, _)| name.starts_with("blobs/")) {
        let layout = without(name).unwrap();
        match layout.open(&first_variant) {
            Err(error) => assert!(matches!(error, OpenError::Read { .. }), "{error}"),
            Ok(artifact) => {
                let fetch = |stream| layout.fetch(stream, &|_| false, &Memory::default(), &Silent);
                let error = artifact.streams().iter().find_map(|stream| fetch(stream).err()).unwrap();
                assert!(matches!(error, FetchError::Source { .. }), "{error}");
            }
        }
    }
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Cancelled;

impl Progress for Cancelled {
    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_full_disk_and_a_cancelled_operation_are_told() {
    let bytes = noise(100);
    let streams = [Outgoing { role: Role::State, name: "a", source: &bytes, known: None, remembered: None }];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &Annotations::new() };
    let error = write(Full, snapshot, None, &Silent).unwrap_err();
    assert!(error.to_string().contains("oci-layout"), "{error}");
    assert!(matches!(write(Vec::new(), snapshot, None, &Cancelled), Err(WriteError::Cancelled)));
    let (tar, _) = written(&bytes, None);
    let to = tempfile::tempdir().unwrap();
    let unpacked = Layout::unpack(&tar[..], to.path(), LIMIT, &Cancelled);
    assert!(matches!(unpacked, Err(LayoutError::Cancelled)) && is_empty(to.path()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is read, nothing is written outside, nothing is left, and what opens is what was sent.
    #[test]
    fn damaged_archives_are_refused_or_harmless(
        cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        is_cut in any::<bool>(),
    ) {
        let memory = noise(20_000);
        let (mut tar, done) = written(&memory, None);
        for (at, byte) in &flips {
            let at = at.index(tar.len());
            tar[at] = *byte;
        }
        if is_cut {
            tar.truncate(cut.index(tar.len()));
        }
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        if let Ok(layout) = unpack(&tar, &inner)
            && let Ok(artifact) = layout.open(&first_variant)
        {
            prop_assert_eq!(artifact.digest(), done.digest);
            let got = Memory::default();
            if layout.fetch(&artifact.streams()[0], &|_| false, &got, &Silent).is_ok() {
                prop_assert!(got.take() == memory);
            }
        }
        prop_assert!(is_empty(&inner));
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }

    #[test]
    fn hostile_names_never_leave_the_directory(name in "[a-z./\\\\\\x00-]{1,90}", kind in 0u8..8) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let tar = archive(&[(&name, tar::EntryType::new(b'0' + kind), b"")]);
        prop_assert!(unpack(&tar, &inner).is_err());
        prop_assert!(is_empty(&inner));
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }
}

/// A layout whose config was changed and whose digests are right again, as a hostile sender would make it.
fn resealed(tar: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut parts = entries(tar);
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let mut index = json(&parts.last().unwrap().1);
    let count = parts.len();
    let mut manifest = json(&parts[count - 2].1);
    let mut replace = |place: usize, bytes: Vec<u8>, descriptor: &mut serde_json::Value| {
        let digest = Digest::of(&bytes);
        descriptor["digest"] = digest.to_string().into();
        descriptor["size"] = bytes.len().into();
        parts[place] = (format!("{BLOBS}/{}", digest.hex()), bytes);
    };
    let mut config = entries(tar).swap_remove(count - 3).1;
    change(&mut config);
    replace(count - 3, config, &mut manifest["config"]);
    replace(count - 2, manifest.to_string().into_bytes(), &mut index["manifests"][0]);
    parts[count - 1].1 = index.to_string().into_bytes();
    let parts = parts.iter().map(|(name, content)| (name.as_str(), tar::EntryType::Regular, &content[..]));
    archive(&parts.collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Right digests do not make a config right: it is refused, or what it describes is fetched or refused.
    #[test]
    fn a_hostile_config_is_refused_or_harmless(
        flips in prop::collection::vec((any::<prop::sample::Index>(), "[0-9a-zA-Z\",:{}\\[\\]+/=.-]"), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (tar, _) = written(&noise(9000), None);
        let tar = resealed(&tar, |config| {
            for (at, byte) in &flips {
                let at = at.index(config.len());
                config[at] = byte.as_bytes()[0];
            }
            if let Some(cut) = cut {
                config.truncate(cut.index(config.len()));
            }
        });
        let to = tempfile::tempdir().unwrap();
        let layout = unpack(&tar, to.path()).unwrap();
        if let Ok(artifact) = layout.open(&first_variant) {
            for stream in artifact.streams() {
                let _ = layout.fetch(stream, &|_| false, &Memory::default(), &Silent);
            }
        }
    }
}

#[test]
fn the_digest_of_a_blob_is_its_name() {
    let (tar, _) = written(&noise(10), None);
    for (name, content) in entries(&tar) {
        if let Some(hex) = name.strip_prefix("blobs/sha256/") {
            assert_eq!(Digest::of(&content).hex(), hex);
        }
    }
}
