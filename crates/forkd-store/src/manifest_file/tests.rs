//! Tests of manifests as files: what is sealed is read, and nothing else.

use super::*;
use crate::testing::{cpu, reseal, seal_text};
use proptest::prelude::*;

fn entry(size: u64) -> FileEntry {
    FileEntry { size, digest: Digest::of(&size.to_le_bytes()) }
}

fn full() -> Manifest {
    let region = |address, length| Region { address, length };
    Manifest {
        parent: None,
        created_unix_ms: 1_760_000_000_000,
        cpu: cpu(&["avx2", "sse4_2"]),
        layout: Layout::new(vec![region(0, 0x3000), region(0x1_0000_0000, 0x2000)]).unwrap(),
        about: About::from_iter([("image".to_owned(), "debian".into())]),
        disk_layers: vec![LayerEntry { digest: Digest::of(b"disk"), size: 1 << 30 }],
        state: entry(1000),
        memory: entry(0x1000),
        content: Content::Framed { map: entry(PageMap::HEADER as u64 + 48) },
    }
}

fn diff() -> Manifest {
    Manifest { parent: Some(Digest::of(b"parent")), ..full() }
}

#[test]
fn what_was_sealed_is_read_and_its_last_field_is_its_digest() {
    for manifest in [full(), diff()] {
        let (sealed, file) = manifest.seal().unwrap();
        assert_eq!(Manifest::parse(&file).unwrap(), sealed);
        assert_eq!(parse(&file).unwrap().local, None);
        let json: serde_json::Value = serde_json::from_slice(&file).unwrap();
        assert_eq!(json["digest"], sealed.digest.to_string());
    }
}

/// A manifest as this version writes it, which is read for good. Another format comes with another file.
#[test]
fn manifests_of_this_version_are_read_for_good() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/records/manifest-2.json");
    if std::env::var_os("FORKD_WRITE_RECORDS").is_some() {
        std::fs::write(path, diff().seal().unwrap().1).unwrap();
    }
    let parsed = Manifest::parse(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(parsed.manifest, diff());
}

#[test]
fn memory_of_an_older_format_is_not_written() {
    let old = Manifest { content: Content::Sparse, memory: entry(0x5000), ..full() };
    assert!(matches!(old.seal(), Err(ManifestError::OldContent)));
}

#[test]
fn every_flipped_bit_and_every_truncation_is_refused() {
    for manifest in [full(), diff()] {
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
    let forged = |old, new| Manifest::parse(&reseal(&diff().seal().unwrap().1, old, new)).unwrap_err();
    let message = |old, new| forged(old, new).to_string();
    assert_eq!(message("\"version\": 2", "\"version\": 3"), "format version 3, expected 1 or 2");
    assert_eq!(
        message("forkd snapshot", "something else"),
        "the format is \"something else\", expected \"forkd snapshot\""
    );
    assert_eq!(message("\"page_size\": 4096", "\"page_size\": 65536"), "pages of 65536 bytes, expected 4096");
    assert_eq!(
        message("\"memory_size\": 20480", "\"memory_size\": 20481"),
        "20481 bytes of memory, but the regions have 20480"
    );
    assert_eq!(
        message("\"size\": 4096", "\"size\": 4097"),
        "memory.bin of 4097 bytes, expected whole pages and at most 20480"
    );
    assert!(message("\"size\": 4096", "\"size\": 24576").starts_with("memory.bin of 24576 bytes"));
    assert!(message("\"size\": 1000", "\"size\": 95").starts_with("state.bin of 95 bytes"));
    assert!(message("\"size\": 1000", "\"size\": 99999999999").starts_with("state.bin of"));
    assert!(message("\"size\": 160", "\"size\": 111").starts_with("memory.map of 111 bytes"));
    // Five pages have at most five runs and one frame.
    assert_eq!(message("\"size\": 160", "\"size\": 225"), "memory.map of 225 bytes, expected 112 to 224");
    assert_eq!(message("sse4_2", "aaa"), "CPU feature 1 does not sort behind the one before it");
    assert!(message("sse4_2", "sse 4").starts_with("CPU feature 1 is not"));
    assert!(message("AuthenticAMD", "Authentic AMD").starts_with("the CPU vendor is not"));
    assert!(matches!(forged("12288", "12289"), ManifestError::Layout(_)));
    for (old, new) in [
        ("\"parent\": \"", "\"parent\": \"x"),
        ("\"parent\"", "\"tag\": \"base\", \"parent\""),
        ("\"created_unix_ms\": 1760000000000", "\"created_unix_ms\": -1"),
        ("\"created_unix_ms\": 1760000000000", "\"created_unix_ms\": 1e400"),
        ("state.bin", "../state.bin"),
        ("\"memory.map\"", "\"memory.more\""),
    ] {
        assert!(matches!(forged(old, new), ManifestError::Syntax(_)), "{new}");
    }
}

#[test]
fn a_manifest_that_is_too_large_is_not_even_hashed() {
    let (_, mut file) = full().seal().unwrap();
    file.resize(2 << 20, b' ');
    assert!(matches!(Manifest::parse(&file), Err(ManifestError::TooLarge { .. })));
    let mut many = full();
    many.cpu.features = (0..5000).map(|i| format!("{i:05}")).collect();
    assert!(matches!(many.seal(), Err(ManifestError::FeatureCount { found: 5000 })));
}

#[test]
fn the_largest_manifest_fits() {
    let mut large = diff();
    large.cpu.features = (0..4096).map(|i| format!("{i:064}")).collect();
    large.disk_layers = vec![LayerEntry { digest: Digest::of(b""), size: u64::MAX }; 1024];
    let (_, file) = large.seal().unwrap();
    assert!(Manifest::parse(&file).is_ok());
}

#[test]
fn deep_json_is_an_error() {
    let body = [b"{\"format\": ".to_vec(), vec![b'['; 500_000]].concat();
    assert!(matches!(Manifest::parse(&seal_text(&body)), Err(ManifestError::Syntax(_))));
}

/// The fuzzer begins with a manifest of each kind and version. `FORKD_WRITE_SEEDS=1` writes those of this version anew.
#[test]
fn the_fuzzer_s_seeds_are_good_manifests() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/manifest");
    for (name, manifest) in [("full-2", full()), ("diff-2", diff())] {
        let (sealed, file) = manifest.seal().unwrap();
        let seed = seeds.join(name);
        if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&seeds).unwrap();
            std::fs::write(&seed, &file).unwrap();
        }
        assert_eq!(Manifest::parse(&std::fs::read(&seed).unwrap()).unwrap(), sealed, "{name}");
    }
    for name in ["full", "diff"] {
        assert!(parse(&std::fs::read(seeds.join(name)).unwrap()).unwrap().local.is_some());
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Manifest::parse(&bytes);
        let _ = Manifest::parse(&seal_text(&bytes));
    }
}
