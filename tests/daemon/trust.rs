//! Snapshots in registries that are signed, and a daemon with a policy.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_api::error::ErrorCode;
use forkd_api::snapshot::{PushedSnapshot, ResolvedSnapshot, SnapshotSignature};
use forkd_hub::trust::SigningKey;
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::engine::process::Failure;
use forkd_tests::{binaries, oci_tools};
use serde_json::{Value, json};

use crate::world::World;

/// A registry with `base` of one daemon, and another daemon that may pull from it.
struct Hub {
    registry: DockerRegistry,
    from: World,
    to: World,
}

impl Hub {
    fn new() -> Result<Hub, Failure> {
        Ok(Hub { registry: DockerRegistry::start()?, from: World::new()?, to: World::new()? })
    }

    fn reference(&self) -> String {
        format!("{}/team/app:base", self.registry.address)
    }

    /// A key of the sender's, by its file.
    fn key(&self, name: &str) -> Result<String, Failure> {
        let path = self.from.home().join(name).display().to_string();
        self.from.forkd(&["snapshot", "key", "new", &path])?;
        Ok(path)
    }

    fn push(&self, options: &[&str]) -> Result<PushedSnapshot, Failure> {
        let reference = self.reference();
        let told =
            self.from.forkd(&[&["snapshot", "push", "base", &reference, "--json"], options].concat())?;
        Ok(serde_json::from_str(&told)?)
    }

    fn sign(&self, key: &str) -> Result<SnapshotSignature, Failure> {
        let told = self.from.forkd(&["snapshot", "sign", &self.reference(), "--key", key, "--json"])?;
        Ok(serde_json::from_str(&told)?)
    }

    fn policy_file(&self) -> PathBuf {
        self.to.home().join("snapshot-policy.toml")
    }

    fn write_policy(&self, pattern: &str, public: &Path) -> Result<(), Failure> {
        let pem = fs::read_to_string(public)?;
        let text = format!("[[repository]]\nmatch = {pattern:?}\nkeys = [\"\"\"\n{pem}\"\"\"]\n");
        Ok(fs::write(self.policy_file(), text)?)
    }

    fn pull(&self, tag: &str, options: &[&str]) -> Result<String, Failure> {
        let reference = self.reference();
        self.to.forkd(&[&["snapshot", "pull", &reference, "--tag", tag], options].concat())
    }

    /// Whether a pull is refused with all of these words; blobs of the snapshot are not asked for then.
    fn refuses(&self, more: Value, words: &[&str]) -> Result<(), Failure> {
        let before = self.registry.requests()?.len();
        let mut wanted = json!({ "reference": self.reference(), "tag": "refused" });
        wanted.as_object_mut().ok_or("no object")?.extend(more.as_object().cloned().unwrap_or_default());
        let said = self.to.refuses(ErrorCode::NotTrusted, "POST /v1/snapshots/pull", wanted)?;
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
        let its = self.blobs()?;
        let asked = self.registry.requests()?.split_off(before);
        let fetched = asked.iter().find(|request| its.iter().any(|blob| request.contains(blob)));
        assert_eq!(fetched, None, "{asked:?}");
        assert!(self.to.snapshot("refused").is_err());
        Ok(())
    }

    /// The digests of all blobs of what the tag names, with its config.
    fn blobs(&self) -> Result<Vec<String>, Failure> {
        let url = format!("http://{}/v2/team/app/manifests/base", self.registry.address);
        let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
        let manifest = std::process::Command::new("curl").args(["-sS", "-H", accept, &url]).output()?;
        let manifest: Value = serde_json::from_slice(&manifest.stdout)?;
        let layers = manifest["layers"].as_array().ok_or("no layers")?.iter();
        let digests = layers.chain([&manifest["config"]]).map(|blob| blob["digest"].as_str());
        digests.map(|digest| Ok(digest.ok_or("no digest")?.to_owned())).collect()
    }
}

fn public(key: &str) -> PathBuf {
    PathBuf::from(format!("{key}.pub"))
}

#[test]
fn a_policy_says_what_is_pulled() -> Result<(), Failure> {
    let hub = Hub::new()?;
    let [key, other, third] = [hub.key("team.key")?, hub.key("other.key")?, hub.key("third.key")?];
    let pattern = format!("{}/team/*", hub.registry.address);
    hub.write_policy(&pattern, &public(&key))?;
    let pushed = hub.push(&[])?;
    let (_, digest) = pushed.reference.split_once('@').ok_or("no digest")?;
    let repository = format!("{}/team/app", hub.registry.address);
    let rule = format!("the rule for {pattern:?}");
    hub.refuses(json!({}), &["is not signed", digest, &repository, &rule, "snapshot-policy.toml"])?;
    // By somebody else.
    assert!(hub.sign(&other)?.added);
    hub.refuses(json!({}), &["none of the signatures", "(1)", digest, &repository, &rule])?;
    // By the right one, beside it; pushing again sends nothing and signs nothing twice.
    let signed = hub.push(&["--sign-key", &key])?;
    assert_eq!(signed.reference, pushed.reference);
    assert!(!hub.sign(&key)?.added);
    hub.pull("pulled", &[])?;
    hub.to.fork("pulled", 1)?;
    // One more key, for one pull.
    let other_key = public(&other).display().to_string();
    hub.pull("both", &["--key", &other_key])?;
    let third_key = fs::read_to_string(public(&third))?;
    hub.refuses(json!({ "key": third_key }), &["none of the signatures", "the request requires"])?;

    // What the file says holds at once, and a file that says nothing refuses everything.
    for (text, says) in [("garbage", "cannot be used"), ("default = \"maybe\"", "cannot be used")] {
        fs::write(hub.policy_file(), text)?;
        hub.refuses(json!({}), &[says, "snapshot-policy.toml", "no snapshot is pulled"])?;
    }
    hub.write_policy("elsewhere.example/*", &public(&key))?;
    let before = hub.registry.requests()?.len();
    hub.refuses(json!({}), &["has no rule for", &repository])?;
    let asked = hub.registry.requests()?.split_off(before);
    assert!(asked.len() <= 1, "only by this test: {asked:?}");
    // Whoever accepts all still demands what the request does.
    fs::write(hub.policy_file(), "default = \"accept\"")?;
    hub.refuses(json!({ "key": fs::read_to_string(public(&third))? }), &["the request requires"])?;
    hub.pull("accepted", &[])?;
    fs::remove_file(hub.policy_file())?;
    hub.pull("without", &[])?;
    // A file has no repository.
    hub.write_policy("elsewhere.example/*", &public(&key))?;
    let file = hub.from.home().join("base.tar").display().to_string();
    hub.from.forkd(&["snapshot", "save", "base", "-o", &file])?;
    hub.to.forkd(&["snapshot", "load", &file, "--tag", "loaded"])?;
    Ok(())
}

#[test]
fn a_policy_that_was_asked_for_must_be_there() -> Result<(), Failure> {
    let mut hub = Hub::new()?;
    hub.push(&[])?;
    let path = hub.to.home().join("policy").display().to_string();
    hub.to.end(rustix::process::Signal::TERM)?;
    hub.to.start(&["--snapshot-policy", &path])?;
    assert!(hub.to.log().contains("invalid snapshot policy: pulls are refused"), "{}", hub.to.log());
    hub.refuses(json!({}), &["cannot read the snapshot policy", &path])?;
    fs::write(&path, "default = \"accept\"")?;
    hub.pull("pulled", &[])?;
    Ok(())
}

#[test]
fn only_signatures_are_stored() -> Result<(), Failure> {
    let hub = Hub::new()?;
    let pushed = hub.push(&[])?;
    let resolved = json!({ "reference": hub.reference() });
    let resolved: ResolvedSnapshot = hub.to.tell("POST /v1/snapshots/resolve", resolved)?.parsed(200)?;
    assert_eq!(format!("{}@{}", resolved.repository, resolved.digest), pushed.reference);
    let key = SigningKey::generate()?;
    let digest = resolved.digest.parse()?;
    let signature = key.sign_manifest(&resolved.repository, digest)?;
    let good = json!({
        "reference": pushed.reference, "payload": signature.payload(), "signature": signature.signature(),
        "key": key.public().to_pem(),
    });
    let with = |field: &str, value: Value| {
        let mut wanted = good.clone();
        wanted[field] = value;
        wanted
    };
    let another = key.sign_manifest(&resolved.repository, format!("sha256:{}", "0".repeat(64)).parse()?)?;
    let post = "POST /v1/snapshots/signatures";
    for (wanted, says) in [
        (with("reference", hub.reference().into()), "has no digest"),
        (with("payload", "{}".into()), "is not what cosign signs"),
        (with("payload", another.payload().into()), "is not what cosign signs"),
        (with("payload", "x".repeat(70_000).into()), "70000 bytes"),
        (with("signature", "?".into()), "not base64"),
        (with("signature", another.signature().into()), "does not match this payload"),
        (with("key", SigningKey::generate()?.public().to_pem().into()), "does not match this payload"),
        (with("key", "nonsense".into()), "-----BEGIN PUBLIC KEY-----"),
        (with("key", key.to_pem().into()), "invalid key"),
    ] {
        let said = hub.to.refuses(ErrorCode::Malformed, post, wanted)?;
        assert!(said.contains(says) && !said.contains(&key.to_pem()[30..60]), "{says}: {said}");
    }
    // Of nothing that is there.
    let missing = json!({
        "reference": format!("{}@{}", resolved.repository, another.digest()),
        "payload": another.payload(), "signature": another.signature(), "key": key.public().to_pem(),
    });
    hub.to.refuses(ErrorCode::UpstreamFailed, post, missing)?;
    let stored: SnapshotSignature = hub.to.tell(post, good.clone())?.parsed(201)?;
    assert_eq!((stored.key, stored.added), (key.public().fingerprint(), true));
    assert!(!hub.to.tell(post, good)?.parsed::<SnapshotSignature>(201)?.added);
    let none = json!({ "reference": format!("{}/none:x", hub.registry.address) });
    hub.to.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/resolve", none)?;
    Ok(())
}

/// Keys that are not what is wanted are refused before anything is sent, and none is written over.
#[test]
fn keys_are_refused_by_name() -> Result<(), Failure> {
    let hub = Hub::new()?;
    let key = hub.key("team.key")?;
    let fails = |arguments: &[&str], says: &str| -> Result<(), Failure> {
        let run = binaries::forkd(hub.from.home(), arguments).output()?;
        let said = binaries::transcript(&run);
        assert!(!run.status.success() && said.contains(says), "{said}");
        Ok(())
    };
    fails(&["snapshot", "key", "new", &key], "cannot write")?;
    let encrypted = hub.from.home().join("cosign.key").display().to_string();
    fs::write(
        &encrypted,
        "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\neA==\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n",
    )?;
    let reference = hub.reference();
    fails(
        &["snapshot", "push", "base", &reference, "--sign-key", &encrypted],
        "sign with cosign sign --key",
    )?;
    fails(&["snapshot", "sign", &reference, "--key", &format!("{key}.pub")], "\"PUBLIC KEY\"")?;
    fails(&["snapshot", "pull", &reference, "--key", &key], "\"PRIVATE KEY\"")?;
    assert!(hub.registry.requests()?.iter().all(|request| !request.contains("team")));
    Ok(())
}

#[test]
fn cosign_and_the_daemon_accept_each_other_s_signatures() -> Result<(), Failure> {
    let hub = Hub::new()?;
    let key = hub.key("team.key")?;
    let pushed = hub.push(&["--sign-key", &key])?;
    let home = tempfile::tempdir()?;
    let cosign = |arguments: &[&dyn AsRef<std::ffi::OsStr>]| {
        oci_tools::run(Path::new(env!("CARGO_TARGET_TMPDIR")), "cosign", home.path(), arguments)
    };
    let (http, tlog) = ("--allow-http-registry=true", "--insecure-ignore-tlog=true");
    let verified = cosign(&[&"verify", &"--key", &public(&key), &tlog, &http, &pushed.reference])?;
    let verified: Value = serde_json::from_slice(&verified)?;
    assert!(
        pushed.reference.ends_with(
            verified[0]["critical"]["image"]["docker-manifest-digest"].as_str().ok_or("no digest")?
        )
    );
    assert!(
        cosign(&[&"verify", &"--key", &public(&hub.key("other")?), &tlog, &http, &pushed.reference]).is_err()
    );

    cosign(&[&"generate-key-pair"])?;
    hub.write_policy(&format!("{}/team/app", hub.registry.address), &home.path().join("cosign.pub"))?;
    hub.refuses(json!({}), &["none of the signatures"])?;
    let sign: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"sign", &"--key", &"cosign.key", &"--tlog-upload=false", &http, &"-y", &pushed.reference];
    cosign(&sign)?;
    hub.pull("pulled", &["--key", &public(&key).display().to_string()])?;
    Ok(())
}
