//! Registries that are busy, ask for a password or hang in the middle of a transfer. The transfer continues if it can; otherwise it fails
//! with the reason, sets no tag, and keeps the frames and blobs that are complete.

use super::*;

/// The base64 of "me:secret".
const PASSWORD: &str = "bWU6c2VjcmV0";

fn with_password(registry: &TestRegistry, password: &str) -> Repository {
    let credentials = Credentials { username: "me".into(), password: password.into() };
    let mut repository = Repository::new(&format!("{}/a:v1", registry.address), Some(&credentials)).unwrap();
    repository.transport.retry = RetryPolicy { first: Duration::from_millis(1), ..RetryPolicy::default() };
    repository
}

/// Answers one request with 429.
fn busy(seconds: &'static str) -> Faults {
    Faults { answers: vec![(429, Some(seconds))], ..Faults::default() }
}

/// Refuses requests without the password.
fn wants_password() -> Faults {
    Faults { password: Some(PASSWORD), ..Faults::default() }
}

/// Breaks one download after this number of bytes, then continues with other faults.
fn broken_download(bytes: usize, then: Faults) -> Faults {
    Faults { break_downloads: vec![bytes], then: Some(Box::new(then)), ..Faults::default() }
}

/// Takes one blob, breaks the upload of the next one, then continues with other faults.
fn broken_upload(then: Faults) -> Faults {
    Faults { uploads_left: Some(1), then: Some(Box::new(then)), ..Faults::default() }
}

/// Faults that end a transfer, with the client that they are for and the error.
fn refusals(registry: &TestRegistry) -> [(Repository, Faults, &'static str); 3] {
    let anonymous = || repository(registry, "a:v1");
    [
        (anonymous(), busy("7200"), "the registry is busy and asks to wait 7200 s"),
        (anonymous(), wants_password(), "the registry wants other credentials"),
        (with_password(registry, "other"), wants_password(), "the registry wants other credentials"),
    ]
}

/// Compressed bytes of the first frame.
fn first_frame(pushed: &Pushed) -> usize {
    pushed.streams[0].table.blobs()[0].frames()[0].compressed as usize
}

#[test]
fn a_fetch_continues_after_429_and_after_401() {
    let registry = TestRegistry::start();
    let bytes = noise(9 << 20);
    let frame = first_frame(&push_memory(&repository(&registry, "a:v1"), &bytes));
    for then in [busy("0"), wants_password()] {
        registry.set(Faults::default());
        let repository = with_password(&registry, "secret");
        let artifact = repository.open(&first_variant, &Silent).unwrap();
        registry.take_log();
        registry.set(broken_download(frame * 3 / 2, then));
        let got = Memory::default();
        let fetched = repository.fetch(&artifact.streams()[0], &nothing, &got, &Silent).unwrap();
        assert_eq!(fetched.raw, 9 << 20);
        assert!(got.take() == bytes);
        let log = registry.take_log();
        let rest = format!("bytes={frame}-");
        let asked: Vec<_> = log.iter().filter(|line| line.contains("/blobs/")).collect();
        assert!(asked.len() == 3 && asked[1..].iter().all(|line| line.contains(&rest)), "{log:?}");
    }
}

#[test]
fn a_refused_fetch_keeps_its_complete_frames() {
    let registry = TestRegistry::start();
    let bytes = noise(9 << 20);
    let frame = first_frame(&push_memory(&repository(&registry, "a:v1"), &bytes));
    for (repository, then, says) in refusals(&registry) {
        let artifact = repository.open(&first_variant, &Silent).unwrap();
        let stream = &artifact.streams()[0];
        registry.set(broken_download(frame * 3 / 2, then));
        let got = Memory::default();
        let error = repository.fetch(stream, &nothing, &got, &Silent).unwrap_err();
        let FetchError::Source { source: SourceError::Registry(error), .. } = error else {
            panic!("{error}")
        };
        assert!(error.to_string().contains(says), "{error}");
        registry.set(Faults::default());
        let have = crate::present_frames(&stream.table, &*got.0.lock().unwrap(), &|| false);
        assert_eq!(have, [true, false, false, false, false]);
        let has = |frame: u64| have[usize::try_from(frame).unwrap()];
        let fetched = repository.fetch(stream, &has, &got, &Silent).unwrap();
        assert_eq!(fetched.raw, (9 << 20) - FRAME_SIZE);
        assert!(got.take() == bytes);
    }
}

#[test]
fn a_push_continues_after_429_and_after_401() {
    let (memory, state) = (noise(9 << 20), noise(5 << 20));
    let streams = [outgoing(Role::Memory, &memory), outgoing(Role::State, &state)];
    for then in [busy("0"), wants_password()] {
        let registry = TestRegistry::start();
        let repository = with_password(&registry, "secret");
        registry.set(broken_upload(then));
        let pushed = push(&repository, &streams, &PushOptions::default()).unwrap();
        let sizes = pushed.streams.iter().map(|stream| stream.table.compressed_size());
        assert_eq!((pushed.sent, pushed.present), (sizes.sum::<u64>(), 0));
        assert!(pull(&repository).unwrap() == memory);
    }
}

#[test]
fn a_refused_push_sets_no_tag_and_the_next_one_continues() {
    let (memory, state) = (noise(9 << 20), noise(5 << 20));
    let streams = [outgoing(Role::Memory, &memory), outgoing(Role::State, &state)];
    for number in 0..3 {
        let registry = TestRegistry::start();
        let (repository, then, says) = refusals(&registry).into_iter().nth(number).unwrap();
        registry.set(broken_upload(then));
        let error = push(&repository, &streams, &PushOptions::default()).unwrap_err();
        let PushError::Registry { what, source } = error else { panic!("{error}") };
        assert!(what.starts_with("blob sha256:") && source.to_string().contains(says), "{what}: {source}");
        assert_eq!(registry.manifest("a", "v1"), None);
        let there = registry.stored_bytes("a");
        assert!(there > 0, "one blob was taken");
        registry.set(Faults::default());
        let pushed = push(&repository, &streams, &PushOptions::default()).unwrap();
        assert_eq!(pushed.present, there);
        assert!(pull(&repository).unwrap() == memory);
    }
}

#[test]
fn a_push_to_a_registry_that_hangs_fails() {
    let registry = TestRegistry::start();
    let mut repository = repository(&registry, "a:v1");
    repository.transport.retry.attempts = 1;
    // Compressed, this is more than the buffers of a socket hold.
    let bytes = noise(60 << 20);
    let hangs = Faults { hang: true, ..Faults::default() };
    let reads_nothing = Faults { stall_uploads: true, ..Faults::default() };
    for (faults, method) in [(hangs, "HEAD "), (reads_nothing, "PUT ")] {
        registry.set(faults);
        let error = push(&repository, &[outgoing(Role::Memory, &bytes)], &PushOptions::default());
        let Err(PushError::Registry { source, .. }) = error else { panic!("{error:?}") };
        assert!(
            matches!(&source, RegistryError::Stalled { request, .. } if request.starts_with(method)),
            "{source}"
        );
        assert_eq!(registry.manifest("a", "v1"), None);
    }
    registry.set(Faults::default());
    push_memory(&repository, &bytes);
    assert!(pull(&repository).unwrap() == bytes);
}
