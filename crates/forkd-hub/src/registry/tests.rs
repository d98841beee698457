//! Transfers to and from a registry that can be made to fail.

mod refusals;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::retry::RetryPolicy;
use super::*;
use crate::artifact::{SourceError, Variant, first_variant};
use crate::config::About;
use crate::manifest::{Annotations, MANIFEST_TYPE};
use crate::outgoing::Outgoing;
use crate::role::Role;
use crate::table::FrameTable;
use crate::testing::registry::{Faults, TestRegistry};
use crate::testing::{Memory, Unreadable, noise};
use crate::{FRAME_SIZE, PackError, Silent};

fn nothing(_: u64) -> bool {
    false
}

fn repository(registry: &TestRegistry, name: &str) -> Repository {
    let mut repository = Repository::new(&format!("{}/{name}", registry.address), None).unwrap();
    repository.transport.retry = RetryPolicy { first: Duration::from_millis(1), ..RetryPolicy::default() };
    repository
}

fn outgoing<'a>(role: Role, source: &'a dyn crate::ByteSource) -> Outgoing<'a> {
    Outgoing { role, name: "base", source, known: None, remembered: None }
}

fn push(
    repository: &Repository,
    streams: &[Outgoing<'_>],
    options: &PushOptions,
) -> Result<Pushed, PushError> {
    let about: About = [("cpu".to_owned(), "x86-64-v3".into())].into_iter().collect();
    let annotations: Annotations = [("dev.forkd.cpu".to_owned(), "v3".to_owned())].into_iter().collect();
    repository.push(Snapshot { streams, about: &about, annotations: &annotations }, options, &Silent)
}

fn push_memory(repository: &Repository, bytes: &[u8]) -> Pushed {
    push(repository, &[outgoing(Role::Memory, &bytes)], &PushOptions::default()).unwrap()
}

fn pull(repository: &Repository) -> Result<Vec<u8>, FetchError> {
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let memory = Memory::default();
    repository.fetch(&artifact.streams()[0], &nothing, &memory, &Silent).map(|_| memory.take())
}

#[test]
fn a_snapshot_of_several_blobs_comes_back() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "team/snapshot:v1");
    let (memory, state, empty) = (noise((66 << 20) + 5), noise(3000), Vec::new());
    let streams = [
        outgoing(Role::Memory, &memory),
        outgoing(Role::State, &state),
        outgoing(Role::Prefetch, &empty),
        // The same bytes as another stream: they are sent once.
        outgoing(Role::DiskMap, &state),
    ];
    let pushed = push(&repository, &streams, &PushOptions::default()).unwrap();
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    assert_eq!(artifact.digest(), pushed.digest);
    assert_eq!(artifact.streams(), pushed.streams);
    assert_eq!(artifact.about()["cpu"], "x86-64-v3");
    assert_eq!(artifact.raw_size(), (66 << 20) + 5 + 6000);
    assert_eq!(artifact.compressed_size(), pushed.sent);
    assert_eq!(artifact.stream(Role::Memory, "base").unwrap().table.blobs().len(), 2);
    for (stream, bytes) in artifact.streams().iter().zip([&memory, &state, &empty, &state]) {
        let got = Memory::default();
        let fetched = repository.fetch(stream, &nothing, &got, &Silent).unwrap();
        assert_eq!(fetched.raw, bytes.len() as u64);
        assert!(got.take() == *bytes, "{:?}", stream.role);
    }
    assert_eq!(repository.resolve(&Silent).unwrap(), pushed.digest);
}

#[test]
fn the_tag_is_set_last() {
    let registry = TestRegistry::start();
    push_memory(&repository(&registry, "a:v1"), &noise(5 << 20));
    let log = registry.take_log();
    let position = |what: &str| log.iter().position(|line| line.contains(what)).unwrap();
    let last_blob = log.iter().rposition(|line| line.contains("/blobs/")).unwrap();
    assert!(last_blob < position("PUT /v2/a/manifests/sha256:"), "{log:?}");
    assert_eq!(position("PUT /v2/a/manifests/v1"), log.len() - 1);
}

#[test]
fn a_second_push_sends_and_reads_nothing() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise((5 << 20) + 1);
    let first = push_memory(&repository, &bytes);
    let again = push_memory(&repository, &bytes);
    assert_eq!((again.sent, again.present), (0, first.sent));

    let table: FrameTable =
        serde_json::from_str(&serde_json::to_string(&first.streams[0].table).unwrap()).unwrap();
    let known: Vec<_> = table.frame_digests().collect();
    let unreadable = Unreadable(bytes.len() as u64);
    let remembered =
        Outgoing { known: Some(&known), remembered: Some(&table), ..outgoing(Role::Memory, &unreadable) };
    let third = push(&repository, &[remembered], &PushOptions::default()).unwrap();
    assert_eq!((third.sent, third.digest), (0, first.digest));

    // A blob that is gone is made again.
    registry.remove_blob("a", table.blobs()[0].digest());
    let lost = Outgoing { source: &bytes, ..remembered };
    assert_eq!(push(&repository, &[lost], &PushOptions::default()).unwrap().sent, first.sent);
    registry.remove_blob("a", table.blobs()[0].digest());
    let error = push(&repository, &[remembered], &PushOptions::default()).unwrap_err();
    assert!(matches!(error, PushError::Pack { source: PackError::Read { .. }, .. }), "{error}");
}

#[test]
fn blobs_of_another_zstd_are_used_as_long_as_they_are_there() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(3 << 20);
    // What another version would have made of the same bytes.
    let frames: Vec<Vec<u8>> =
        bytes.chunks(2 << 20).map(|raw| zstd::bulk::compress(raw, 1).unwrap()).collect();
    let digest = registry.put_blob("a", &frames.concat());
    let entries = frames.iter().zip(bytes.chunks(2 << 20)).map(|(compressed, raw)| crate::Frame {
        compressed: u32::try_from(compressed.len()).unwrap(),
        digest: blake3::hash(raw),
    });
    let blob = crate::Blob { digest, size: frames.concat().len() as u64, frames: entries.collect() };
    let table = FrameTable::new(3 << 20, vec![blob]).unwrap();
    let known: Vec<_> = table.frame_digests().collect();
    let stream = Outgoing { known: Some(&known), remembered: Some(&table), ..outgoing(Role::Memory, &bytes) };
    // Twice the same stream: both must be right when the blob has to be made again.
    let streams = [stream, Outgoing { name: "other", ..stream }];
    let pushed = push(&repository, &streams, &PushOptions::default()).unwrap();
    assert_eq!(pushed.sent, 0);
    assert_eq!(pushed.streams[0].table, table);
    assert!(pull(&repository).unwrap() == bytes);

    registry.remove_blob("a", digest);
    let pushed = push(&repository, &streams, &PushOptions::default()).unwrap();
    assert!(
        pushed.sent > 0 && pushed.streams.iter().all(|stream| stream.table.blobs()[0].digest() != digest)
    );
    assert!(pull(&repository).unwrap() == bytes);
}

#[test]
fn blobs_are_mounted_from_other_repositories() {
    let registry = TestRegistry::start();
    let bytes = noise(3 << 20);
    let first = push_memory(&repository(&registry, "parent:v1"), &bytes);
    let options = PushOptions { mount_from: vec!["empty".into(), "parent".into()], ..PushOptions::default() };
    let child =
        push(&repository(&registry, "child:v1"), &[outgoing(Role::Memory, &bytes)], &options).unwrap();
    assert_eq!((child.sent, child.mounted), (0, first.sent));
    assert!(pull(&repository(&registry, "child:v1")).unwrap() == bytes);

    for name in ["", "../secret", "a//b", "a/", "A", "a?x", "127.0.0.1:1/a"] {
        let options = PushOptions { mount_from: vec![name.into()], ..PushOptions::default() };
        let error =
            push(&repository(&registry, "x:v1"), &[outgoing(Role::Memory, &bytes)], &options).unwrap_err();
        assert!(matches!(error, PushError::MountFrom { .. }), "{name}: {error}");
    }

    registry.set(Faults { refuse_mounts: true, ..Faults::default() });
    let other =
        push(&repository(&registry, "other:v1"), &[outgoing(Role::Memory, &bytes)], &options).unwrap();
    assert_eq!((other.sent, other.mounted), (first.sent, 0));
    assert!(
        registry.take_log().iter().any(|line| line.starts_with("DELETE ")),
        "the upload is not left open"
    );
}

/// A mount that the registry refuses is an upload.
#[test]
fn refused_mounts_are_uploaded() {
    let registry = TestRegistry::start();
    let bytes = noise(1 << 20);
    let first = push_memory(&repository(&registry, "parent:v1"), &bytes);
    let options = PushOptions { mount_from: vec!["parent".into()], ..PushOptions::default() };
    for status in [400, 401, 403, 404, 405, 501] {
        registry.set(Faults { mount_status: Some(status), ..Faults::default() });
        let child = repository(&registry, &format!("child{status}:v1"));
        let pushed = push(&child, &[outgoing(Role::Memory, &bytes)], &options).unwrap();
        assert_eq!((pushed.sent, pushed.mounted), (first.sent, 0), "{status}");
        assert!(pull(&child).unwrap() == bytes, "{status}");
    }
    // A registry that is overloaded would not take the blob either.
    registry.set(Faults { mount_status: Some(503), ..Faults::default() });
    let error = push(&repository(&registry, "other:v1"), &[outgoing(Role::Memory, &bytes)], &options);
    assert!(matches!(error, Err(PushError::Registry { .. })), "{error:?}");
}

#[test]
fn broken_downloads_continue_after_the_last_whole_frame() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(9 << 20);
    let pushed = push_memory(&repository, &bytes);
    let frame = pushed.streams[0].table.blobs()[0].frames()[0].compressed as usize;
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    registry.take_log();
    for ignore_ranges in [false, true] {
        // The last is used first: one frame and a half, then less than a frame twice, then two frames.
        let cuts =
            if ignore_ranges { vec![frame * 3 + 7, frame + 1] } else { vec![frame * 2, 9, 0, frame * 3 / 2] };
        registry.set(Faults { break_downloads: cuts, ignore_ranges, ..Faults::default() });
        let got = Memory::default();
        let fetched = repository.fetch(&artifact.streams()[0], &nothing, &got, &Silent).unwrap();
        assert_eq!(fetched.raw, 9 << 20);
        assert!(got.take() == bytes);
        let log = registry.take_log();
        assert!(log[1].contains(&format!("bytes={frame}-")), "{log:?}");
        assert_eq!(log.len(), if ignore_ranges { 3 } else { 5 }, "{log:?}");
    }
}

#[test]
fn stalled_downloads_are_given_up_and_continue() {
    let registry = TestRegistry::start();
    let mut repository = repository(&registry, "a:v1");
    let bytes = noise(9 << 20);
    let pushed = push_memory(&repository, &bytes);
    let frame = pushed.streams[0].table.blobs()[0].frames()[0].compressed as usize;
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    registry.take_log();
    let stall =
        || registry.set(Faults { break_downloads: vec![frame * 3 / 2], stall: true, ..Faults::default() });
    stall();
    let got = Memory::default();
    repository.fetch(&artifact.streams()[0], &nothing, &got, &Silent).unwrap();
    assert!(got.take() == bytes);
    let log = registry.take_log();
    assert!(log.len() == 2 && log[1].contains(&format!("bytes={frame}-")), "{log:?}");
    stall();
    repository.transport.retry.attempts = 1;
    let error = repository.fetch(&artifact.streams()[0], &nothing, &Memory::default(), &Silent).unwrap_err();
    let FetchError::Source { source: SourceError::Registry(error), .. } = error else { panic!("{error}") };
    assert!(matches!(error, RegistryError::Stalled { .. }), "{error}");
}

#[test]
fn lengths_that_are_not_true_are_found_out() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(5 << 20);
    push_memory(&repository, &bytes);
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let fetch = |faults: Faults| {
        registry.set(faults);
        let got = Memory::default();
        repository.fetch(&artifact.streams()[0], &nothing, &got, &Silent).map(|_| got.take())
    };
    // What comes behind the part that was asked for is not looked at.
    assert!(fetch(Faults { longer: 1000, ..Faults::default() }).unwrap() == bytes);
    for shorter in [1, 1000, 4 << 20] {
        let error = fetch(Faults { shorter, ..Faults::default() }).unwrap_err();
        assert!(matches!(error, FetchError::Source { .. }), "{error}");
    }
    assert!(fetch(Faults::default()).unwrap() == bytes);
}

#[test]
fn only_missing_frames_are_fetched() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(11 << 20);
    push_memory(&repository, &bytes);
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    for ignore_ranges in [false, true] {
        registry.set(Faults { ignore_ranges, ..Faults::default() });
        registry.take_log();
        let got = Memory::default();
        let have = |frame: u64| frame == 0 || frame == 3;
        let fetched = repository.fetch(&artifact.streams()[0], &have, &got, &Silent).unwrap();
        assert_eq!(fetched.raw, (11 << 20) - 2 * FRAME_SIZE);
        let got = got.take();
        for (frame, (got, sent)) in (0..).zip(got.chunks(2 << 20).zip(bytes.chunks(2 << 20))) {
            assert!(
                if have(frame) { got.iter().all(|byte| *byte == 0) } else { got == sent },
                "frame {frame}"
            );
        }
        assert_eq!(registry.take_log().len(), 2, "one request for each run of frames");
    }
    let got = Memory::default();
    assert_eq!(
        repository.fetch(&artifact.streams()[0], &|_| true, &got, &Silent).unwrap(),
        Fetched::default()
    );
}

/// Bytes that ranges in a log of requests ask for, of blobs of these sizes.
fn asked_bytes(log: &[String], streams: &[Stream]) -> u64 {
    let sizes = streams.iter().flat_map(|stream| stream.table.blobs());
    let sizes: std::collections::BTreeMap<_, _> =
        sizes.map(|blob| (blob.digest().to_string(), blob.size())).collect();
    let asked = log.iter().filter_map(|line| {
        let (blob, range) = line.strip_prefix("GET ")?.split_once("/blobs/")?.1.split_at(71);
        match range.strip_prefix(" bytes=").and_then(|range| range.split_once('-')) {
            Some((first, last)) => Some(last.parse::<u64>().ok()? - first.parse::<u64>().ok()? + 1),
            None => sizes.get(blob).copied(),
        }
    });
    asked.sum()
}

/// A fetch of two streams that fails leaves whole frames, and the next one asks for the others only.
#[test]
fn a_fetch_continues_where_another_broke_off() {
    let registry = TestRegistry::start();
    let mut repository = repository(&registry, "a:v1");
    repository.transport.retry.attempts = 1;
    let (memory, disk) = (noise(70 << 20), noise(9 << 20));
    let streams = [outgoing(Role::Memory, &memory), outgoing(Role::Disk, &disk)];
    push(&repository, &streams, &PushOptions::default()).unwrap();
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    registry.take_log();
    let sinks = [Memory::default(), Memory::default()];
    let fetch = |have: &[Vec<bool>; 2]| {
        let have = have.each_ref().map(|have| |frame: u64| have[usize::try_from(frame).unwrap()]);
        let wanted: Vec<Wanted<'_>> = (artifact.streams().iter().zip(&sinks).zip(&have))
            .map(|((stream, sink), have)| Wanted { stream, have, sink })
            .collect();
        repository.fetch_all(&wanted, &Silent)
    };
    let present = || {
        let present = |(stream, sink): (&Stream, &Memory)| {
            crate::present_frames(&stream.table, &*sink.0.lock().unwrap(), &|| false)
        };
        let mut present = artifact.streams().iter().zip(&sinks).map(present);
        [present.next().unwrap(), present.next().unwrap()]
    };
    // All three blobs break off: the last one of the first stream, the one of the second, the large one.
    registry.set(Faults { break_downloads: vec![20 << 20, 20 << 20, 20 << 20], ..Faults::default() });
    let error = fetch(&present()).unwrap_err();
    assert!(matches!(error, FetchError::Source { .. }), "{error}");
    let have = present();
    let there = have.iter().flatten().filter(|have| **have).count();
    assert!((9..40).contains(&there), "{have:?}");
    registry.set(Faults::default());
    registry.take_log();
    let fetched = fetch(&have).unwrap();
    let missing = have.iter().flatten().filter(|have| !**have).count() as u64;
    assert!(fetched.raw <= missing * FRAME_SIZE && fetched.raw > (missing - 2) * FRAME_SIZE, "{fetched:?}");
    assert_eq!(asked_bytes(&registry.take_log(), artifact.streams()), fetched.compressed);
    assert!(present().iter().flatten().all(|have| *have));
    assert!(sinks.map(Memory::take) == [memory, disk]);
}

/// A blob that is there is not sent again.
#[test]
fn a_push_continues_where_another_broke_off() {
    let registry = TestRegistry::start();
    let mut repository = repository(&registry, "a:v1");
    repository.transport.retry.attempts = 1;
    let memory = noise(200 << 20);
    // Two of four blobs are taken.
    registry.set(Faults { uploads_left: Some(2), ..Faults::default() });
    push(&repository, &[outgoing(Role::Memory, &memory)], &PushOptions::default()).unwrap_err();
    registry.set(Faults::default());
    let sent = |log: Vec<String>| log.iter().filter(|line| line.starts_with("PUT /v2/a/blobs/")).count();
    let before = registry.stored_bytes("a");
    registry.take_log();
    let pushed = push_memory(&repository, &memory);
    assert!(before > 0 && pushed.present >= before, "{before} of {pushed:?}");
    assert_eq!(pushed.sent + pushed.present, pushed.streams[0].table.compressed_size());
    assert!(sent(registry.take_log()) <= 3, "the blobs that are missing, and the config");
    assert!(pull(&self::repository(&registry, "a:v1")).unwrap() == memory);
}

#[test]
fn a_busy_registry_is_asked_again() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(3 << 20);
    registry.set(Faults {
        answers: vec![(503, None), (429, Some("0")), (500, None), (502, None)],
        break_uploads: 2,
        ..Faults::default()
    });
    push_memory(&repository, &bytes);
    registry.set(Faults { answers: vec![(504, None), (429, None)], ..Faults::default() });
    assert!(pull(&repository).unwrap() == bytes);

    registry.set(Faults { answers: vec![(503, None); 100], ..Faults::default() });
    let error = repository.open(&first_variant, &Silent).unwrap_err();
    let OpenError::Read { source: SourceError::Registry(error), .. } = error else { panic!("{error}") };
    assert!(error.to_string().ends_with("answered 503: TOOMANYREQUESTS: slow down"), "{error}");
    registry.set(Faults { answers: vec![(429, Some("7200"))], ..Faults::default() });
    assert!(unresolved(&repository).to_string().contains("wait 7200 s"));
}

fn unresolved(repository: &Repository) -> RegistryError {
    match repository.resolve(&Silent).unwrap_err() {
        OpenError::Read { source: SourceError::Registry(error), .. } => error,
        error => panic!("{error}"),
    }
}

/// Between a check of a tag's digest and the fetch, the tag may have been moved.
#[test]
fn what_is_opened_by_digest_is_that_whatever_the_tag_names() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    push_memory(&repository, &noise(100));
    let first = repository.resolve(&Silent).unwrap();
    push_memory(&repository, &noise(200));
    let second = repository.resolve(&Silent).unwrap();
    assert_ne!(first, second);
    let artifact = repository.open_digest(first, &first_variant, &Silent).unwrap();
    assert_eq!((artifact.digest(), artifact.raw_size()), (first, 100));
    // A registry that answers a digest with something else.
    let lie = registry.manifest("a", &second.to_string()).unwrap();
    registry.put_manifest("a", &first.to_string(), MANIFEST_TYPE, &lie);
    let by_digest = Repository::new(&format!("{}/a@{first}", registry.address), None).unwrap();
    for error in [
        repository.open_digest(first, &first_variant, &Silent).unwrap_err(),
        by_digest.resolve(&Silent).unwrap_err(),
    ] {
        assert!(matches!(error, OpenError::Digest { what: "manifest", .. }), "{error}");
    }
}

#[test]
fn a_lie_in_a_blob_never_reaches_the_sink() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(2 << 20);
    let pushed = push_memory(&repository, &bytes);
    let blob = pushed.streams[0].table.blobs()[0].digest();
    registry.set(Faults { lie: Some(blob), ..Faults::default() });
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let got = Memory::default();
    let error = repository.fetch(&artifact.streams()[0], &nothing, &got, &Silent).unwrap_err();
    assert!(matches!(error, FetchError::Frame { digest, .. } if digest == blob), "{error}");
    assert!(got.take().is_empty());
}

/// Frames that decompress to the right bytes, in a blob that is not the one that was named.
#[test]
fn a_whole_blob_is_checked_as_a_whole() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(2 << 20);
    let pushed = push_memory(&repository, &bytes);
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let mut stream = artifact.streams()[0].clone();
    let other = zstd::bulk::compress(&bytes, 1).unwrap();
    let wrong = crate::Blob {
        digest: registry.put_blob("a", &other),
        size: other.len() as u64,
        frames: vec![crate::Frame {
            compressed: u32::try_from(other.len()).unwrap(),
            digest: blake3::hash(&bytes),
        }],
    };
    // The registry serves these bytes under the name of the other blob.
    stream.table =
        FrameTable::new(2 << 20, vec![crate::Blob { digest: Digest::of(b"named"), ..wrong }]).unwrap();
    registry.put_blob_as("a", Digest::of(b"named"), &other);
    let error = repository.fetch(&stream, &nothing, &Memory::default(), &Silent).unwrap_err();
    assert!(matches!(error, FetchError::Digest { .. }), "{error}");
    assert_ne!(pushed.digest, Digest::of(b"named"));
}

#[test]
fn passwords_are_used_and_wrong_ones_are_refused() {
    let registry = TestRegistry::start();
    // "me:secret"
    registry.set(Faults { password: Some("bWU6c2VjcmV0"), ..Faults::default() });
    let with = |password: &str| {
        let credentials = Credentials { username: "me".into(), password: password.into() };
        Repository::new(&format!("{}/a:v1", registry.address), Some(&credentials)).unwrap()
    };
    let bytes = noise(100);
    push_memory(&with("secret"), &bytes);
    assert!(pull(&with("secret")).unwrap() == bytes);
    for wrong in [with("other"), repository(&registry, "a:v1")] {
        let error = unresolved(&wrong);
        assert!(matches!(error, RegistryError::Unauthorized { .. }), "{error}");
        let error = push(&wrong, &[outgoing(Role::State, &bytes)], &PushOptions::default()).unwrap_err();
        assert!(matches!(error, PushError::Registry { .. }), "{error}");
    }
}

#[test]
fn tokens_are_asked_for_and_renewed() {
    let registry = TestRegistry::start();
    // So few uses that they run out in the middle of everything.
    registry.set(Faults { token_uses: Some(2), ..Faults::default() });
    let credentials = Credentials { username: "me".into(), password: "secret".into() };
    let known = Repository::new(&format!("{}/a:v1", registry.address), Some(&credentials)).unwrap();
    let bytes = noise(5 << 20);
    push_memory(&known, &bytes);
    assert!(pull(&known).unwrap() == bytes);
    let options = PushOptions { mount_from: vec!["a".into()], ..PushOptions::default() };
    let child = Repository::new(&format!("{}/child:v1", registry.address), Some(&credentials)).unwrap();
    let pushed = push(&child, &[outgoing(Role::Memory, &bytes)], &options).unwrap();
    assert!(pushed.sent == 0 && pushed.mounted > 0, "{pushed:?}");

    // Without a password one may read here, and not write.
    let anonymous = repository(&registry, "a:v1");
    assert!(pull(&anonymous).unwrap() == bytes);
    let error = push(&anonymous, &[outgoing(Role::State, &noise(3))], &PushOptions::default()).unwrap_err();
    let PushError::Registry { source, .. } = error else { panic!("{error}") };
    assert!(matches!(source, RegistryError::Unauthorized { .. }), "{source}");
}

#[test]
fn a_token_service_is_untrusted_and_may_be_busy() {
    let registry = TestRegistry::start();
    let bytes = noise(100);
    push_memory(&repository(&registry, "a:v1"), &bytes);
    let credentials = Credentials { username: "me".into(), password: "secret".into() };
    let with = |faults: Faults| {
        registry.set(Faults { token_uses: Some(99), ..faults });
        let mut known = Repository::new(&format!("{}/a:v1", registry.address), Some(&credentials)).unwrap();
        known.transport.retry = RetryPolicy { first: Duration::from_millis(1), ..RetryPolicy::default() };
        known
    };
    let busy = with(Faults { token_answers: vec![429, 503], ..Faults::default() });
    assert!(pull(&busy).unwrap() == bytes);
    // A password goes nowhere without TLS, except on this host.
    let plain =
        unresolved(&with(Faults { token_realm: Some("http://auth.example/".into()), ..Faults::default() }));
    assert!(plain.to_string().contains("https"), "{plain}");
    let lost = unresolved(&with(Faults { token_answers: vec![404; 9], ..Faults::default() }));
    assert!(lost.to_string().contains("token service was not found"), "{lost}");
    let large = unresolved(&with(Faults { token_size: 2 << 20, ..Faults::default() }));
    assert!(matches!(large, RegistryError::TooLarge { .. }), "{large}");
}

#[test]
fn a_storage_cannot_ask_for_the_password() {
    let (registry, storage) = (TestRegistry::start(), TestRegistry::start());
    let address = format!("http://{}", storage.address);
    let bytes = noise(100);
    push_memory(&repository(&registry, "a:v1"), &bytes);
    push_memory(&repository(&storage, "a:v1"), &bytes);
    let credentials = Credentials { username: "me".into(), password: "secret".into() };
    let known = Repository::new(&format!("{}/a:v1", registry.address), Some(&credentials)).unwrap();
    registry.set(Faults { storage: Some(address.clone()), ..Faults::default() });
    assert!(pull(&known).unwrap() == bytes);
    storage.take_log();
    storage.set(Faults { token_uses: Some(99), ..Faults::default() });
    let error = known.open(&first_variant, &Silent).unwrap_err();
    assert!(matches!(error, OpenError::Read { .. }), "{error}");
    assert!(!storage.take_log().iter().any(|line| line.contains("/token")));
}

/// Pushes noise with an annotation, as a variant if it has a name.
fn push_variant(
    repository: &Repository,
    cpu: &str,
    seed: usize,
    variant: Option<&str>,
) -> Result<Pushed, PushError> {
    let bytes = noise(seed);
    let annotations = [("dev.forkd.cpu".to_owned(), cpu.to_owned())].into_iter().collect();
    let streams = [outgoing(Role::State, &bytes)];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &annotations };
    let options = PushOptions { variant: variant.map(str::to_owned), ..PushOptions::default() };
    repository.push(snapshot, &options, &Silent)
}

#[test]
fn one_tag_has_several_variants() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let select = |wanted: &'static str| {
        move |variants: &[Variant]| {
            let found = variants.iter().position(|variant| variant.annotations["dev.forkd.cpu"] == wanted);
            found.ok_or_else(|| format!("no {wanted}"))
        }
    };
    let open = |cpu| repository.open(&select(cpu), &Silent);
    // The first one makes the index; one that was pushed without a name is kept in it.
    let plain = push_variant(&repository, "v2", 50, None).unwrap();
    assert_eq!(plain.root, plain.digest);
    let v3 = push_variant(&repository, "v3", 51, Some("newer")).unwrap();
    let artifact = open("v3").unwrap();
    assert_eq!((artifact.digest(), artifact.root_digest()), (v3.digest, v3.root));
    assert_eq!(open("v2").unwrap().digest(), plain.digest);
    // The same name takes its place, another one comes behind it, and one that is listed is not listed twice.
    let again = push_variant(&repository, "v3", 52, Some("newer")).unwrap();
    assert_ne!(again.digest, v3.digest);
    assert_eq!(open("v3").unwrap().digest(), again.digest);
    let v4 = push_variant(&repository, "v4", 53, Some("newest")).unwrap();
    let twice = push_variant(&repository, "v4", 53, Some("newest")).unwrap();
    assert_eq!((twice.digest, twice.root, twice.sent), (v4.digest, v4.root, 0));
    let names = |variants: &[Variant]| -> Result<usize, String> {
        let names: Vec<_> = variants.iter().map(|variant| variant.name().unwrap_or("-")).collect();
        Err(names.join(" "))
    };
    let Err(OpenError::NoVariant { count: 3, reason }) = repository.open(&names, &Silent) else { panic!() };
    assert_eq!(reason, "- newer newest");
    let Err(OpenError::NoVariant { reason, .. }) = repository.open(&|_| Ok(9), &Silent) else { panic!() };
    assert_eq!(reason, "number 10 is not there");
    let error = open("v9").unwrap_err().to_string();
    assert_eq!(error, "none of the 3 variants of the snapshot fits this host: no v9");
    // Without a name, the tag is this one's alone.
    let alone = push_variant(&repository, "v2", 54, None).unwrap();
    assert_eq!(repository.open(&names, &Silent).unwrap().digest(), alone.digest);
}

#[test]
fn a_variant_is_added_to_snapshots_only() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    for name in ["", "A", "a b", "../a", &"a".repeat(64)] {
        let error = push_variant(&repository, "v2", 50, Some(name)).unwrap_err();
        assert!(matches!(error, PushError::VariantName { .. }), "{error}");
    }
    assert!(registry.manifest("a", "v1").is_none());
    let image = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[],
        "config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,
        "digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}}"#;
    for there in [image, "{}", "["] {
        registry.put_manifest("a", "v1", crate::manifest::MANIFEST_TYPE, there.as_bytes());
        let error = push_variant(&repository, "v2", 50, Some("one")).unwrap_err();
        assert!(matches!(error, PushError::NotASnapshot { .. }), "{error}");
        assert_eq!(registry.manifest("a", "v1").unwrap(), there.as_bytes(), "it is what it was");
    }
    let entry = |number: u32| {
        let digest = Digest::of(&number.to_le_bytes());
        serde_json::json!({"mediaType": crate::manifest::MANIFEST_TYPE, "digest": digest.to_string(), "size": 3})
    };
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": crate::manifest::INDEX_TYPE,
        "manifests": (0..256).map(entry).collect::<Vec<_>>()});
    registry.put_manifest("a", "v1", crate::manifest::INDEX_TYPE, index.to_string().as_bytes());
    let error = push_variant(&repository, "v2", 50, Some("one")).unwrap_err();
    assert!(matches!(error, PushError::TooManyVariants { .. }), "{error}");
}

#[test]
fn blobs_are_mounted_from_other_repositories_of_the_same_registry() {
    let registry = TestRegistry::start();
    let child = repository(&registry, "team/child:v1");
    let host = child.name().split('/').next().unwrap().to_owned();
    let names =
        [format!("{host}/team/base"), "elsewhere:5000/team/base".into(), child.name(), format!("{host}/a?b")];
    assert_eq!(child.mountable(&names), ["team/base"]);
}

#[test]
fn what_is_not_what_it_says_is_not_opened() {
    let registry = TestRegistry::start();
    let pushed = push_memory(&repository(&registry, "a:v1"), &noise(10));
    let manifest = registry.manifest("a", "v1").unwrap();
    let media_type = crate::manifest::MANIFEST_TYPE;

    // By digest, a registry cannot give another manifest.
    let by_digest = repository(&registry, &format!("a@{}", pushed.digest));
    assert_eq!(by_digest.open(&first_variant, &Silent).unwrap().digest(), pushed.digest);
    let changed = [&manifest[..], b" "].concat();
    registry.put_manifest("a", &pushed.digest.to_string(), media_type, &changed);
    assert!(matches!(by_digest.open(&first_variant, &Silent), Err(OpenError::Digest { .. })));
    let error = push(&by_digest, &[outgoing(Role::State, &noise(1))], &PushOptions::default()).unwrap_err();
    assert!(matches!(error, PushError::ToDigest { .. }));

    let opened = |bytes: &[u8]| {
        registry.put_manifest("a", "v2", media_type, bytes);
        repository(&registry, "a:v2").open(&first_variant, &Silent).map(drop)
    };
    opened(&manifest).unwrap();
    let text = String::from_utf8(manifest).unwrap();
    let size = serde_json::from_str::<serde_json::Value>(&text).unwrap()["config"]["size"].to_string();
    let larger = text.replacen(&format!("\"size\":{size}"), "\"size\":17000000", 1);
    assert!(matches!(opened(larger.as_bytes()), Err(OpenError::Size { what: "config", .. })));
    let longer = text.replacen(
        &format!("\"size\":{size}"),
        &format!("\"size\":{}", size.parse::<u64>().unwrap() + 1),
        1,
    );
    assert!(matches!(opened(longer.as_bytes()), Err(OpenError::Read { what: "config", .. })));
    let other = text.replace("vnd.forkd.snapshot.v1", "vnd.example.v1");
    assert!(matches!(opened(other.as_bytes()), Err(OpenError::Manifest(_))));
    assert!(matches!(opened(&vec![b' '; 5 << 20]), Err(OpenError::Read { .. })));
    // Layers and frame tables that do not agree, and a config with another digest.
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let layer = json["layers"].as_array_mut().unwrap().pop().unwrap();
    assert!(matches!(opened(json.to_string().as_bytes()), Err(OpenError::Manifest(_))));
    json["layers"] = vec![layer.clone(), layer, json["config"].clone()].into();
    assert!(matches!(opened(json.to_string().as_bytes()), Err(OpenError::Manifest(_))));
    let config = json["config"]["digest"].as_str().unwrap().parse().unwrap();
    let length = usize::try_from(json["config"]["size"].as_u64().unwrap()).unwrap();
    registry.put_blob_as("a", config, &vec![b' '; length]);
    assert!(matches!(opened(text.as_bytes()), Err(OpenError::Digest { what: "config", .. })));
}

/// A registry's documents with each byte flipped, one after the other: the snapshot is refused, or is the one that was pushed.
#[test]
fn each_byte_of_what_a_registry_says_may_lie() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(5000);
    let pushed = push_memory(&repository, &bytes);
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let manifest = registry.manifest("a", "v1").unwrap();
    let config: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let config: Digest = config["config"]["digest"].as_str().unwrap().parse().unwrap();
    let original = registry.blob("a", config).unwrap();
    let pulled = || {
        let artifact = repository.open(&first_variant, &Silent).ok()?;
        let memory = Memory::default();
        repository.fetch(&artifact.streams()[0], &nothing, &memory, &Silent).ok()?;
        Some((artifact, memory.take()))
    };
    assert_eq!(pulled().unwrap(), (artifact.clone(), bytes.clone()));
    let mut refused = 0;
    for at in 0..manifest.len() {
        let mut flipped = manifest.clone();
        flipped[at] ^= 1 << (at % 7);
        registry.put_manifest("a", "v1", MANIFEST_TYPE, &flipped);
        match pulled() {
            None => refused += 1,
            // What says nothing of the contents may say something else.
            Some((other, memory)) => {
                assert_eq!(
                    (other.streams(), other.about()),
                    (artifact.streams(), artifact.about()),
                    "byte {at}"
                );
                assert!(memory == bytes, "byte {at}");
            }
        }
        // By its digest it is never another one.
        registry.put_manifest("a", &pushed.digest.to_string(), MANIFEST_TYPE, &flipped);
        let opened = repository.open_digest(pushed.digest, &first_variant, &Silent);
        assert!(matches!(opened, Err(OpenError::Digest { .. })), "byte {at}");
    }
    assert!(refused > manifest.len() / 2, "{refused} of {}", manifest.len());
    registry.put_manifest("a", "v1", MANIFEST_TYPE, &manifest);
    for at in 0..original.len() {
        let mut flipped = original.clone();
        flipped[at] ^= 1 << (at % 7);
        registry.put_blob_as("a", config, &flipped);
        let opened = repository.open(&first_variant, &Silent);
        assert!(matches!(opened, Err(OpenError::Digest { what: "config", .. })), "byte {at} of the config");
    }
    registry.put_blob_as("a", config, &original);
    let blob = artifact.streams()[0].table.blobs()[0].digest();
    let original = registry.blob("a", blob).unwrap();
    // Every 16th: each of them is a whole fetch.
    for at in (0..original.len()).step_by(16) {
        let mut flipped = original.clone();
        flipped[at] ^= 1 << (at % 7);
        registry.put_blob_as("a", blob, &flipped);
        assert!(pulled().is_none(), "byte {at} of the blob");
    }
}

#[test]
fn tags_are_listed_page_by_page() {
    let registry = TestRegistry::start();
    for tag in ["v1", "v2", "v3", "v4", "v5"] {
        push_memory(&repository(&registry, &format!("a:{tag}")), &noise(10));
    }
    registry.set(Faults { page: Some(2), ..Faults::default() });
    assert_eq!(repository(&registry, "a").tags(&Silent).unwrap(), ["v1", "v2", "v3", "v4", "v5"]);
}

#[test]
fn a_list_says_what_tags_name() {
    let registry = TestRegistry::start();
    let pushed = push_memory(&repository(&registry, "a:v1"), &noise(3 << 20));
    let image = br#"{"schemaVersion":2,"config":{"mediaType":"application/vnd.example.image","size":7,"digest":"x"},
        "layers":[{"size":18446744073709551615},{"size":3}],"annotations":{"org.opencontainers.image.created":"2026\u001b"}}"#;
    registry.put_manifest("a", "v2", crate::manifest::MANIFEST_TYPE, image);
    registry.put_manifest("a", "v3", "text/plain", b"nothing of the kind");
    let options = PushOptions { variant: Some("one".into()), ..PushOptions::default() };
    push(&repository(&registry, "a:v4"), &[outgoing(Role::Memory, &noise(3 << 20))], &options).unwrap();
    let (listed, has_more) = repository(&registry, "a").list(10, &Silent).unwrap();
    assert!(!has_more);
    let kinds: Vec<_> =
        listed.iter().map(|tag| (tag.tag.as_str(), tag.is_snapshot, tag.kind.as_deref())).collect();
    let snapshot = Some(crate::ARTIFACT_TYPE);
    let expected = [
        ("v1", true, snapshot),
        ("v2", false, Some("application/vnd.example.image")),
        ("v3", false, None),
        ("v4", true, snapshot),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(listed[0].digest, pushed.digest);
    assert!(listed[0].size.unwrap() > pushed.sent);
    assert_eq!((listed[1].size, listed[1].created.as_deref()), (Some(u64::MAX), Some("2026")));
    assert_eq!((listed[2].size, listed[3].size), (None, None));
    let (listed, has_more) = repository(&registry, "a").list(2, &Silent).unwrap();
    assert_eq!((listed.len(), has_more), (2, true));
    registry.put_manifest("b", "..%2f", "text/plain", b"");
    let error = repository(&registry, "b").list(2, &Silent).unwrap_err();
    assert!(error.to_string().contains("not a tag"), "{error}");
    assert!(repository(&registry, "none").list(2, &Silent).unwrap().0.is_empty());
}

#[derive(Default)]
struct Watched {
    total: AtomicU64,
    done: AtomicU64,
    cancel_at: Option<u64>,
    is_cancelled: AtomicBool,
}

impl Progress for Watched {
    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn done(&self, bytes: u64) {
        assert!(self.done.fetch_max(bytes, Ordering::Relaxed) < bytes || self.cancel_at.is_some());
        if self.cancel_at.is_some_and(|at| bytes >= at) {
            self.is_cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

#[test]
fn progress_reaches_its_total_in_raw_bytes() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let bytes = noise(7 << 20);
    let watched = Watched::default();
    let streams = [outgoing(Role::Memory, &bytes)];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &Annotations::new() };
    registry.set(Faults { break_uploads: 1, ..Faults::default() });
    repository.push(snapshot, &PushOptions::default(), &watched).unwrap();
    assert_eq!((watched.total.into_inner(), watched.done.into_inner()), (7 << 20, 7 << 20));

    let artifact = repository.open(&first_variant, &Silent).unwrap();
    let watched = Watched::default();
    repository.fetch(&artifact.streams()[0], &|frame| frame == 1, &Memory::default(), &watched).unwrap();
    assert_eq!((watched.total.into_inner(), watched.done.into_inner()), (5 << 20, 5 << 20));
}

#[test]
fn a_transfer_ends_when_it_is_cancelled() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    push_memory(&repository, &noise(7 << 20));
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    registry.set(Faults { hang: true, ..Faults::default() });
    let cancelled = Watched { is_cancelled: AtomicBool::new(true), ..Watched::default() };
    let begun = Instant::now();
    let fetched = repository.fetch(&artifact.streams()[0], &nothing, &Memory::default(), &cancelled);
    assert!(matches!(fetched, Err(FetchError::Cancelled)));
    assert!(matches!(repository.open(&first_variant, &cancelled), Err(OpenError::Cancelled)));
    assert!(matches!(repository.tags(&cancelled), Err(RegistryError::Cancelled)));
    assert!(begun.elapsed() < Duration::from_secs(5));

    registry.set(Faults { break_downloads: vec![2 << 20], ..Faults::default() });
    let midway = Watched { cancel_at: Some(1), ..Watched::default() };
    let mut slow = self::repository(&registry, "a:v1");
    slow.transport.retry.first = Duration::from_secs(15);
    let fetched = slow.fetch(&artifact.streams()[0], &nothing, &Memory::default(), &midway);
    assert!(matches!(fetched, Err(FetchError::Cancelled)), "{fetched:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_registry_that_is_not_there_is_told_soon() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begun = Instant::now();
    let error = unresolved(&Repository::new(&format!("{address}/a:v1"), None).unwrap());
    assert!(error.to_string().contains(&format!("GET {address}/v2/a/manifests/v1 failed")), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// Several threads may use one repository, for instance to fetch two streams at the same time.
#[test]
fn two_streams_are_fetched_at_the_same_time() {
    let registry = TestRegistry::start();
    let repository = repository(&registry, "a:v1");
    let (memory, state) = (noise(9 << 20), noise(5 << 20));
    let streams = [outgoing(Role::Memory, &memory), outgoing(Role::State, &state)];
    push(&repository, &streams, &PushOptions::default()).unwrap();
    let artifact = repository.open(&first_variant, &Silent).unwrap();
    std::thread::scope(|scope| {
        for (stream, bytes) in artifact.streams().iter().zip([&memory, &state]) {
            let repository = &repository;
            scope.spawn(move || {
                let got = Memory::default();
                repository.fetch(stream, &nothing, &got, &Silent).unwrap();
                assert!(got.take() == *bytes);
            });
        }
    });
}

#[test]
fn references_are_checked() {
    for bad in ["", "127.0.0.1:1/UPPER", "a b", "127.0.0.1:1/a@sha256:12", "127.0.0.1:1/a@sha512:00"] {
        assert!(matches!(Repository::new(bad, None), Err(RegistryError::Reference { .. })), "{bad}");
    }
    let repository = Repository::new("127.0.0.1:1/team/a:v1", None).unwrap();
    assert_eq!(repository.name(), "127.0.0.1:1/team/a");
    assert_eq!(repository.short_name(), "a-v1");
    let by_digest = format!("127.0.0.1:1/team/a:v1@{}", Digest::of(b""));
    assert_eq!(Repository::new(&by_digest, None).unwrap().short_name(), "a");
    assert_eq!(format!("{repository:?}"), "Repository { reference: \"127.0.0.1:1/team/a:v1\", .. }");
}
