//! Archives of an attacker: every digest in them is right, and what they say is not.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use forkd_image::digest::Digest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking;
use forkd_tests::scale;
use serde_json::{Value, json};

use crate::travel::{load, number_in, save, world};
use crate::world::World;

/// The files of an archive.
#[derive(Clone)]
struct Archive(BTreeMap<String, Vec<u8>>);

fn blob(digest: &Value) -> Result<String, Failure> {
    let digest = digest["digest"].as_str().ok_or("no digest")?;
    Ok(format!("blobs/{}", digest.replace(':', "/")))
}

impl Archive {
    fn read(file: &[u8]) -> Result<Archive, Failure> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(Cursor::new(file)).entries()? {
            let mut entry = entry?;
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(entry.path()?.display().to_string(), bytes);
        }
        Ok(Archive(files))
    }

    fn write(&self) -> Result<Vec<u8>, Failure> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, bytes) in &self.0 {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, bytes.as_slice())?;
        }
        Ok(archive.into_inner()?)
    }

    fn json(&self, path: &str) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(self.0.get(path).ok_or("no such file")?)?)
    }

    fn manifest(&self) -> Result<(String, Value), Failure> {
        let path = blob(&self.json("index.json")?["manifests"][0])?;
        Ok((path.clone(), self.json(&path)?))
    }

    fn config(&self) -> Result<(String, Value), Failure> {
        let path = blob(&self.manifest()?.1["config"])?;
        Ok((path.clone(), self.json(&path)?))
    }

    /// Puts a blob in and says what it is.
    fn put(&mut self, bytes: &[u8], descriptor: &mut Value) {
        let digest = Digest::of(bytes).to_string();
        self.0.insert(format!("blobs/{}", digest.replace(':', "/")), bytes.to_vec());
        descriptor["digest"] = digest.into();
        descriptor["size"] = bytes.len().into();
    }

    /// The same with another manifest.
    fn with_manifest(&self, bytes: &[u8]) -> Result<Archive, Failure> {
        let mut forged = self.clone();
        let mut index = self.json("index.json")?;
        forged.put(bytes, &mut index["manifests"][0]);
        forged.0.insert("index.json".into(), serde_json::to_vec(&index)?);
        Ok(forged)
    }

    /// The same with another config.
    fn with_config(&self, bytes: &[u8]) -> Result<Archive, Failure> {
        let mut forged = self.clone();
        let (_, mut manifest) = self.manifest()?;
        forged.put(bytes, &mut manifest["config"]);
        forged.with_manifest(&serde_json::to_vec(&manifest)?)
    }

    /// The same with other bytes in a blob of a stream, named as they ought to be wherever it is.
    fn with_blob(&self, path: &str, bytes: &[u8]) -> Result<Archive, Failure> {
        let mut forged = self.clone();
        let (_, mut manifest) = self.manifest()?;
        let (_, mut config) = self.config()?;
        for layer in manifest["layers"].as_array_mut().ok_or("no layers")? {
            if blob(layer)? == path {
                forged.put(bytes, layer);
            }
        }
        for stream in config["streams"].as_array_mut().ok_or("no streams")? {
            for its in stream["table"]["blobs"].as_array_mut().ok_or("no blobs")? {
                if blob(its)? == path {
                    forged.put(bytes, its);
                }
            }
        }
        forged.put(&serde_json::to_vec(&config)?, &mut manifest["config"]);
        forged.with_manifest(&serde_json::to_vec(&manifest)?)
    }

    /// The blobs of streams.
    fn blobs(&self) -> Result<Vec<String>, Failure> {
        self.manifest()?.1["layers"].as_array().ok_or("no layers")?.iter().map(blob).collect()
    }
}

/// Where nothing is but what a test brings.
struct Victim {
    world: World,
    refused: u32,
    harmless: u32,
}

impl Victim {
    fn new() -> Result<Victim, Failure> {
        Ok(Victim { world: World::with_guest(&ticking::elf())?, refused: 0, harmless: 0 })
    }

    /// It is refused with a reason, or it is whole: then what is forked from it is right. Nothing half-made is there in any case.
    fn bring(&mut self, what: &str, archive: &Archive) -> Result<Option<String>, Failure> {
        let world = &self.world;
        let told = match load(world, &archive.write()?, None) {
            Err(error) => {
                self.refused += 1;
                Some(format!("{error}"))
            }
            Ok(handle) => {
                self.harmless += 1;
                let verified = world.run(world.engine.verify(&handle.tag(), ()))?;
                assert!(verified.damage.is_none(), "{what}: {verified:?}");
                world.run(world.engine.remove_snapshot(handle.tag().as_str(), true))?;
                for tag in world.names("snapshots") {
                    world.run(world.engine.remove_snapshot(&tag, true))?;
                }
                None
            }
        };
        assert_eq!(world.names("snapshots"), [""; 0], "{what}");
        assert_eq!(world.engine.snapshots().len(), 0, "{what}");
        assert!(told.as_ref().is_none_or(|error| !error.is_empty()), "{what}");
        Ok(told)
    }

    fn refuses(&mut self, what: &str, archive: &Archive, words: &str) -> Result<(), Failure> {
        let told = self.bring(what, archive)?.ok_or_else(|| format!("{what}: accepted"))?;
        assert!(told.contains(words), "{what}: {told}");
        Ok(())
    }
}

fn original() -> Result<Archive, Failure> {
    Archive::read(&save(&world()?, "one")?)
}

/// In `make soak` every byte; here one of so many, others in each document.
fn bytes_of(document: &[u8], one_of: usize) -> impl Iterator<Item = usize> {
    let step = if scale::is_soak() { 1 } else { one_of };
    (document.len() % step..document.len()).step_by(step)
}

fn flipped(document: &[u8], at: usize) -> Vec<u8> {
    let mut document = document.to_vec();
    // Other bits at other places.
    document[at] ^= 1 << (at % 7);
    document
}

/// Whether two manifests differ in their annotations only. These describe a snapshot in lists; what is loaded is in the config.
fn differ_in_annotations(one: &[u8], other: &[u8]) -> bool {
    let rest = |text: &[u8]| -> Option<Value> {
        let mut manifest: Value = serde_json::from_slice(text).ok()?;
        manifest.as_object_mut()?.remove("annotations");
        for layer in manifest["layers"].as_array_mut()? {
            layer.as_object_mut()?.remove("annotations");
        }
        Some(manifest)
    };
    rest(one).is_some_and(|one| Some(one) == rest(other))
}

#[test]
fn each_byte_of_manifest_config_and_tables_can_lie() -> Result<(), Failure> {
    let original = original()?;
    let mut victim = Victim::new()?;
    let (manifest, _) = original.manifest()?;
    let manifest = original.0[&manifest].clone();
    let mut described = 0;
    for at in bytes_of(&manifest, 23) {
        let lie = flipped(&manifest, at);
        let told = victim.bring(&format!("byte {at} of the manifest"), &original.with_manifest(&lie)?)?;
        described += u32::from(told.is_none() && differ_in_annotations(&manifest, &lie));
    }
    let (config, _) = original.config()?;
    let config = original.0[&config].clone();
    for at in bytes_of(&config, 47) {
        victim.bring(&format!("byte {at} of the config"), &original.with_config(&flipped(&config, at))?)?;
    }
    let harmless = victim.harmless - described;
    assert!(victim.refused > 5 * harmless, "{} refused, {harmless} harmless", victim.refused);
    // The victim is well.
    load(&victim.world, &original.write()?, None)?;
    assert_eq!(number_in(&victim.world, "one")?, 1);
    Ok(())
}

#[test]
fn blobs_are_swapped_cut_and_blown_up() -> Result<(), Failure> {
    let original = original()?;
    let mut victim = Victim::new()?;
    let blobs = original.blobs()?;
    assert!(blobs.len() > 4, "{} blobs", blobs.len());
    for (index, path) in blobs.iter().enumerate() {
        let bytes = &original.0[path];
        let other = &original.0[&blobs[(index + 1) % blobs.len()]];
        victim.refuses("swapped", &original.with_blob(path, other)?, "")?;
        victim.refuses("cut", &original.with_blob(path, &bytes[..bytes.len() - 1])?, "")?;
        victim.refuses("empty", &original.with_blob(path, b"")?, "")?;
        let mut longer = bytes.clone();
        longer.push(0);
        victim.refuses("longer", &original.with_blob(path, &longer)?, "")?;
        let mut missing = original.clone();
        missing.0.remove(path);
        victim.refuses("missing", &missing, "")?;
    }
    // Last: a blob with a bit that means nothing is taken, and then what images are made of is there, whatever a later archive has.
    for (index, path) in blobs.iter().enumerate() {
        let bytes = &original.0[path];
        for at in bytes_of(bytes, bytes.len() / 3 + 1) {
            let flipped = original.with_blob(path, &flipped(bytes, at))?;
            victim.bring(&format!("byte {at} of blob {index}"), &flipped)?;
        }
    }
    load(&victim.world, &original.write()?, None)?;
    assert_eq!(number_in(&victim.world, "one")?, 1);
    Ok(())
}

#[test]
fn absurd_sizes_and_counts_are_refused_before_anything_is_made() -> Result<(), Failure> {
    let original = original()?;
    let mut victim = Victim::new()?;
    let mut refuses = |words: &str, change: &dyn Fn(&mut Value)| -> Result<(), Failure> {
        let (_, mut config) = original.config()?;
        change(&mut config);
        victim.refuses(words, &original.with_config(&serde_json::to_vec(&config)?)?, words)
    };
    for size in [json!(1u64 << 63), json!(1u64 << 40), json!(-1), json!("1")] {
        refuses("the config is not valid JSON of the expected form", &|config| {
            config["streams"][0]["table"]["size"] = size.clone();
        })?;
    }
    refuses("0 streams, expected 1 to 4096", &|config| config["streams"] = json!([]))?;
    refuses("20000 streams, expected 1 to 4096", &|config| {
        let stream = config["streams"][0].clone();
        config["streams"] = Value::Array(vec![stream; 20_000]);
    })?;
    refuses("frames of 4294967295 bytes", &|config| config["frame_size"] = json!(u32::MAX))?;
    refuses("config version 99, expected 1", &|config| config["version"] = json!(99))?;
    refuses("0 manifests, expected 1 to", &|config| config["about"]["manifests"] = json!([]))?;
    refuses("200 manifests, expected 1 to", &|config| {
        let one = config["about"]["manifests"][0].clone();
        config["about"]["manifests"] = Value::Array(vec![one; 200]);
    })?;
    refuses("`about` has", &|config| {
        let one = config["about"]["manifests"][0].clone();
        config["about"]["manifests"] = Value::Array(vec![one; 3000]);
    })?;
    refuses("the manifests are not a chain", &|config| {
        config["about"]["manifests"].as_array_mut().map(|all| all.remove(0));
    })?;
    refuses("the manifests are not a chain", &|config| {
        if let Some(all) = config["about"]["manifests"].as_array_mut() {
            all.reverse();
        }
    })?;
    refuses("\"../../etc\" is not a tag", &|config| config["about"]["name"] = json!("../../etc"))?;
    refuses("is not a tag", &|config| config["about"]["name"] = json!("a".repeat(1 << 20)))?;
    refuses("the snapshot's metadata has an invalid form", &|config| {
        config["about"]["name"] = (0..100).fold(json!(1), |inner, _| json!([inner]));
    })?;
    let nested = original.with_config(&b"[".repeat(1 << 20))?;
    victim.refuses("a million brackets", &nested, "the config is not valid JSON")?;
    Ok(())
}
