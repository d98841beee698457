//! `manifest.json`: JSON to look at, sealed by its last field.
//!
//! ```text
//! {
//!   "format": "forkd snapshot",
//!   "version": 1,
//!   "tag": "base-numpy",
//!   "kind": "diff",                                          or "full", then parent is null and memory.map is not listed
//!   "parent": { "tag": "base", "digest": "…" },
//!   "created_unix_ms": 1760000000000,
//!   "cpu_features": ["avx2", …],
//!   "page_size": 4096,
//!   "memory_size": 536870912,                                the sum of the regions
//!   "regions": [{ "address": 0, "length": 536870912 }],
//!   "files": { "state.bin": { "size": …, "digest": "…" }, "memory.bin": { … }, "memory.map": { … } },
//!   "about": { … },                                          the owner's own words
//!   "disk_layers": [{ "id": "…", "digest": "…", "size": … }],    of all disks, one after another
//!   "digest": "…"                                            blake3 of every byte up to and including the ] above
//! }
//! ```
//!
//! The last field always has the same place, counted from the end, so it is compared before anything is decoded: a flipped
//! bit is told from a newer format, and JSON from an attacker is at least JSON that someone meant to write. The same digest
//! names the snapshot in its children's manifests.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layout::{Layout, PAGE_BYTES, Region};
use crate::manifest::{
    About, Content, DiskLayer, FileEntry, Link, MAX_MANIFEST, Manifest, ManifestError, SealedManifest,
    check_features, check_layers,
};
use crate::page_map::PageMap;
use crate::state::{MAX_STATE, StateHeader};
use crate::tag::Tag;

const FORMAT: &str = "forkd snapshot";
const VERSION: u32 = 1;

/// What stands before and behind the digest at the end of the file.
const SEAL: (&[u8], &[u8]) = (b",\n  \"digest\": \"", b"\"\n}\n");
/// What the JSON ends with where the seal is not yet on it.
const CLOSE: &[u8] = b"\n}";
const DIGITS: usize = 2 * Digest::LENGTH;

/// The fields as they stand in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: u32,
    tag: Tag,
    kind: Kind,
    parent: Option<Link>,
    created_unix_ms: u64,
    cpu_features: Vec<String>,
    page_size: u64,
    memory_size: u64,
    regions: Vec<Region>,
    files: Files,
    #[serde(default)]
    about: About,
    disk_layers: Vec<DiskLayer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Full,
    Diff,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    #[serde(rename = "state.bin")]
    state: FileEntry,
    #[serde(rename = "memory.bin")]
    memory: FileEntry,
    #[serde(rename = "memory.map", default, skip_serializing_if = "Option::is_none")]
    map: Option<FileEntry>,
}

/// What every version has, and is looked at before the rest.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}

impl Manifest {
    /// Writes the manifest and seals it.
    pub fn seal(self) -> Result<(SealedManifest, Vec<u8>), ManifestError> {
        let fields = Fields::from(&self);
        check(&fields)?;
        let mut file = serde_json::to_vec_pretty(&fields).map_err(ManifestError::Syntax)?;
        file.truncate(file.len() - CLOSE.len());
        let digest = Digest::of(&file);
        file.extend_from_slice(SEAL.0);
        file.extend_from_slice(digest.to_string().as_bytes());
        file.extend_from_slice(SEAL.1);
        check_size(&file)?;
        let sealed = SealedManifest { manifest: self, digest };
        Ok((sealed, file))
    }

    /// Checks a whole `manifest.json`.
    pub fn parse(file: &[u8]) -> Result<SealedManifest, ManifestError> {
        check_size(file)?;
        let (body, expected) = unseal(file).ok_or(ManifestError::Unsealed)?;
        let digest = Digest::of(body);
        if digest != expected {
            return Err(ManifestError::Digest { found: digest, expected });
        }
        let json = [body, CLOSE].concat();
        let version: Version = serde_json::from_slice(&json).map_err(ManifestError::Syntax)?;
        if version.format != FORMAT {
            return Err(ManifestError::Format {
                found: version.format.chars().take(80).collect(),
                expected: FORMAT,
            });
        }
        if version.version != VERSION {
            return Err(ManifestError::Version { found: version.version, expected: VERSION });
        }
        let fields: Fields = serde_json::from_slice(&json).map_err(ManifestError::Syntax)?;
        check(&fields)?;
        let manifest = Manifest::try_from(fields)?;
        Ok(SealedManifest { manifest, digest })
    }
}

fn check_size(file: &[u8]) -> Result<(), ManifestError> {
    let found = file.len() as u64;
    if found > MAX_MANIFEST {
        return Err(ManifestError::TooLarge { found });
    }
    Ok(())
}

/// Splits a file into what is sealed and the digest.
fn unseal(file: &[u8]) -> Option<(&[u8], Digest)> {
    let rest = file.strip_suffix(SEAL.1)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let body = rest.strip_suffix(SEAL.0)?;
    let digest = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((body, digest))
}

/// Checks what the types of the fields do not say.
fn check(fields: &Fields) -> Result<(), ManifestError> {
    check_features(&fields.cpu_features)?;
    check_layers(&fields.disk_layers)?;
    if fields.page_size != PAGE_BYTES {
        return Err(ManifestError::PageSize { found: fields.page_size, expected: PAGE_BYTES });
    }
    let memory = Layout::new(fields.regions.clone())?.size();
    if fields.memory_size != memory {
        return Err(ManifestError::MemorySize { found: fields.memory_size, expected: memory });
    }
    check_file_sizes(fields, memory)
}

fn check_file_sizes(fields: &Fields, memory: u64) -> Result<(), ManifestError> {
    let size = |file, found, valid, expected: String| match valid {
        true => Ok(()),
        false => Err(ManifestError::FileSize { file, found, expected }),
    };
    let (state, least) = (fields.files.state.size, StateHeader::LENGTH as u64);
    let valid = (least..=MAX_STATE).contains(&state);
    size("state.bin", state, valid, format!("{least} to {MAX_STATE}"))?;
    let found = fields.files.memory.size;
    match fields.kind {
        Kind::Full => size("memory.bin", found, found == memory, format!("{memory}"))?,
        Kind::Diff => {
            let valid = found <= memory && found.is_multiple_of(PAGE_BYTES);
            size("memory.bin", found, valid, format!("whole pages and at most {memory}"))?;
        }
    }
    if let Some(map) = &fields.files.map {
        let (least, most) = (PageMap::HEADER as u64, PageMap::MAX_LENGTH);
        let valid = (least..=most).contains(&map.size);
        size("memory.map", map.size, valid, format!("{least} to {most}"))?;
    }
    Ok(())
}

impl TryFrom<Fields> for Manifest {
    type Error = ManifestError;

    fn try_from(fields: Fields) -> Result<Manifest, ManifestError> {
        let wrong = |kind, what, expected| Err(ManifestError::Kind { kind, what, expected });
        let content = match (fields.kind, fields.parent, fields.files.map) {
            (Kind::Full, None, None) => Content::Full,
            (Kind::Diff, Some(parent), Some(map)) => Content::Diff { parent, map },
            (Kind::Full, Some(_), _) => return wrong("full", "a parent", "none"),
            (Kind::Full, None, Some(_)) => return wrong("full", "a memory.map", "none"),
            (Kind::Diff, None, _) => return wrong("diff", "no parent", "one"),
            (Kind::Diff, Some(_), None) => return wrong("diff", "no memory.map", "one"),
        };
        Ok(Manifest {
            tag: fields.tag,
            created_unix_ms: fields.created_unix_ms,
            cpu_features: fields.cpu_features,
            layout: Layout::new(fields.regions)?,
            about: fields.about,
            disk_layers: fields.disk_layers,
            state: fields.files.state,
            memory: fields.files.memory,
            content,
        })
    }
}

impl From<&Manifest> for Fields {
    fn from(manifest: &Manifest) -> Fields {
        let (kind, parent, map) = match &manifest.content {
            Content::Full => (Kind::Full, None, None),
            Content::Diff { parent, map } => (Kind::Diff, Some(parent.clone()), Some(*map)),
        };
        Fields {
            format: FORMAT.into(),
            version: VERSION,
            tag: manifest.tag.clone(),
            kind,
            parent,
            created_unix_ms: manifest.created_unix_ms,
            cpu_features: manifest.cpu_features.clone(),
            page_size: PAGE_BYTES,
            memory_size: manifest.layout.size(),
            regions: manifest.layout.regions().to_vec(),
            files: Files { state: manifest.state, memory: manifest.memory, map },
            about: manifest.about.clone(),
            disk_layers: manifest.disk_layers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(size: u64) -> FileEntry {
        FileEntry { size, digest: Digest::of(&size.to_le_bytes()) }
    }

    fn manifest(content: Content) -> Manifest {
        let region = |address, length| Region { address, length };
        let memory = if content == Content::Full { 0x5000 } else { 0x1000 };
        Manifest {
            tag: "base".parse().unwrap(),
            created_unix_ms: 1_760_000_000_000,
            cpu_features: vec!["avx2".into(), "sse4_2".into()],
            layout: Layout::new(vec![region(0, 0x3000), region(0x1_0000_0000, 0x2000)]).unwrap(),
            about: About::from_iter([("image".to_owned(), "debian".into())]),
            disk_layers: vec![DiskLayer {
                id: "debian-12".parse().unwrap(),
                digest: Digest::of(b"disk"),
                size: 1 << 30,
            }],
            state: entry(1000),
            memory: entry(memory),
            content,
        }
    }

    fn diff() -> Manifest {
        let parent = Link { tag: "parent".parse().unwrap(), digest: Digest::of(b"parent") };
        let map = entry(PageMap::HEADER as u64 + 16);
        manifest(Content::Diff { parent, map })
    }

    /// The manifest with a piece of its text replaced, sealed as an attacker would.
    fn forged(manifest: Manifest, old: &str, new: &str) -> ManifestError {
        let (_, file) = manifest.seal().unwrap();
        let (body, _) = unseal(&file).unwrap();
        let body = std::str::from_utf8(body).unwrap();
        assert!(body.contains(old), "{old} is not in {body}");
        let body = body.replacen(old, new, 1);
        Manifest::parse(&sealed(body.as_bytes())).unwrap_err()
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        let digest = Digest::of(body).to_string();
        [body, SEAL.0, digest.as_bytes(), SEAL.1].concat()
    }

    #[test]
    fn what_was_sealed_is_read_and_its_last_field_is_its_digest() {
        for manifest in [manifest(Content::Full), diff()] {
            let (sealed, file) = manifest.seal().unwrap();
            assert_eq!(Manifest::parse(&file).unwrap(), sealed);
            let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
            assert_eq!(json["digest"], sealed.digest.to_string());
        }
    }

    /// A manifest as the first version wrote it, which is read for good. Another format comes with another file.
    #[test]
    fn manifests_of_every_version_are_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/records/manifest-1.json");
        if std::env::var_os("FORKD_WRITE_RECORDS").is_some() {
            std::fs::write(path, diff().seal().unwrap().1).unwrap();
        }
        let parsed = Manifest::parse(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(parsed.manifest, diff());
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        for manifest in [manifest(Content::Full), diff()] {
            let (_, good) = manifest.seal().unwrap();
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Manifest::parse(&bad).is_err(), "bit {bit}");
            }
            for length in 0..good.len() {
                assert!(matches!(Manifest::parse(&good[..length]), Err(ManifestError::Unsealed)));
            }
            assert!(Manifest::parse(&[&good[..], b"\n"].concat()).is_err());
        }
    }

    #[test]
    fn every_field_is_checked() {
        let full = || manifest(Content::Full);
        let message = |manifest, old, new| forged(manifest, old, new).to_string();
        assert_eq!(message(full(), "\"version\": 1", "\"version\": 2"), "format version 2, expected 1");
        assert_eq!(
            message(full(), "forkd snapshot", "something else"),
            "the format is \"something else\", expected \"forkd snapshot\""
        );
        assert_eq!(message(full(), ": 4096", ": 65536"), "pages of 65536 bytes, expected 4096");
        assert_eq!(
            message(full(), "\"memory_size\": 20480", "\"memory_size\": 20481"),
            "20481 bytes of memory, but the regions have 20480"
        );
        assert_eq!(
            message(full(), "\"size\": 20480", "\"size\": 16384"),
            "memory.bin of 16384 bytes, expected 20480"
        );
        assert_eq!(
            message(diff(), "\"size\": 4096", "\"size\": 4097"),
            "memory.bin of 4097 bytes, expected whole pages and at most 20480"
        );
        assert!(message(full(), "\"size\": 1000", "\"size\": 95").starts_with("state.bin of 95 bytes"));
        assert!(message(full(), "\"size\": 1000", "\"size\": 99999999999").starts_with("state.bin of"));
        assert!(message(diff(), "\"size\": 128", "\"size\": 111").starts_with("memory.map of 111 bytes"));
        assert_eq!(message(diff(), "diff", "full"), "memory.bin of 4096 bytes, expected 20480");
        assert_eq!(message(full(), "full", "diff"), "a diff snapshot with no parent, expected one");
        assert_eq!(message(full(), "sse4_2", "aaa"), "CPU feature 1 does not sort behind the one before it");
        assert!(message(full(), "sse4_2", "sse 4").starts_with("CPU feature 1 is not"));
        assert!(matches!(forged(full(), "12288", "12289"), ManifestError::Layout(_)));
        for (old, new) in [
            ("\"base\"", "\"../base\""),
            ("\"debian-12\"", "\".hidden\""),
            ("\"tag\"", "\"more\": 1, \"tag\""),
            ("\"tag\": \"base\"", "\"tag\": \"base\", \"tag\": \"base\""),
            ("\"created_unix_ms\": 1760000000000", "\"created_unix_ms\": -1"),
            ("\"created_unix_ms\": 1760000000000", "\"created_unix_ms\": 1e400"),
            ("state.bin", "../state.bin"),
        ] {
            assert!(matches!(forged(full(), old, new), ManifestError::Syntax(_)), "{new}");
        }
    }

    #[test]
    fn a_manifest_that_is_too_large_is_not_even_hashed() {
        let (_, mut file) = manifest(Content::Full).seal().unwrap();
        file.resize(2 << 20, b' ');
        assert!(matches!(Manifest::parse(&file), Err(ManifestError::TooLarge { .. })));
        let mut many = manifest(Content::Full);
        many.cpu_features = (0..5000).map(|i| format!("{i:05}")).collect();
        assert!(matches!(many.seal(), Err(ManifestError::FeatureCount { found: 5000 })));
    }

    #[test]
    fn the_largest_manifest_fits() {
        let mut large = diff();
        large.cpu_features = (0..4096).map(|i| format!("{i:064}")).collect();
        let layer = |i| DiskLayer {
            id: format!("{i:064}").parse().unwrap(),
            digest: Digest::of(b""),
            size: u64::MAX,
        };
        large.disk_layers = (0..1024).map(layer).collect();
        let (_, file) = large.seal().unwrap();
        assert!(Manifest::parse(&file).is_ok());
    }

    #[test]
    fn deep_json_is_an_error() {
        let body = [b"{\"format\": ".to_vec(), vec![b'['; 500_000]].concat();
        assert!(matches!(Manifest::parse(&sealed(&body)), Err(ManifestError::Syntax(_))));
    }

    /// The fuzzer begins with a manifest of each kind. `FORKD_WRITE_SEEDS=1` writes them anew.
    #[test]
    fn the_fuzzer_s_seeds_are_good_manifests() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/manifest");
        for (name, manifest) in [("full", manifest(Content::Full)), ("diff", diff())] {
            let (sealed, file) = manifest.seal().unwrap();
            let seed = seeds.join(name);
            if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(&seeds).unwrap();
                std::fs::write(&seed, &file).unwrap();
            }
            assert_eq!(Manifest::parse(&std::fs::read(&seed).unwrap()).unwrap(), sealed, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Manifest::parse(&bytes);
            let _ = Manifest::parse(&sealed(&bytes));
        }
    }
}
