use std::fs;
use std::time::{Duration, SystemTime};

use super::*;
use crate::images::{BuiltImage, Config};

struct World {
    _home: tempfile::TempDir,
    images: ImageStore,
    cache: BuildCache,
    image: Image,
}

fn world() -> World {
    let home = tempfile::tempdir().unwrap();
    let images = ImageStore::new(home.path());
    let file = home.path().join("disk");
    fs::write(&file, vec![1; 8192]).unwrap();
    let built = BuiltImage {
        key: Digest::of(b"base"),
        config: Config::default(),
        recipe: None,
        default_user: "root".into(),
        name: Some("base".parse().unwrap()),
    };
    let image = images.adopt(&file, built).unwrap();
    World { images, cache: BuildCache::new(home.path()), image, _home: home }
}

impl World {
    fn keep(&self, key: &str, ground: Ground, content: &[u8]) -> KeptStep {
        let draft = self.cache.draft().unwrap();
        let layer = draft.path().join("top");
        fs::write(&layer, content).unwrap();
        self.cache.keep(&draft, &layer, Digest::of(key.as_bytes()), ground, "root".into()).unwrap()
    }

    /// A step on the image and one on that, each some years unused.
    fn chain(&self) -> (KeptStep, KeptStep) {
        let first = self.keep("one", Ground::of(&self.image), b"1");
        let ground = Ground { steps: vec![first.name.clone()], ..first.ground.clone() };
        let second = self.keep("two", ground, b"2");
        for step in [&first, &second] {
            self.age(step, 1000);
        }
        (first, second)
    }

    fn age(&self, step: &KeptStep, days: u64) {
        let path = self.cache.directory.join(&step.name).join(STEP);
        let time = SystemTime::now() - Duration::from_secs(days * 86400);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    fn find(&self, key: &str) -> Option<KeptStep> {
        self.cache.find(Digest::of(key.as_bytes()), &self.images).unwrap()
    }
}

#[test]
fn a_step_is_found_by_its_key_and_leaves_no_draft() {
    let world = world();
    let (first, second) = world.chain();
    assert_eq!(world.find("one"), Some(first.clone()));
    assert_eq!(world.find("two"), Some(second.clone()));
    assert_eq!(world.find("three"), None);
    assert_eq!(fs::read(world.cache.layer(&second.name)).unwrap(), b"2");
    assert_eq!(fs::read_dir(&world.cache.directory).unwrap().count(), 2);
}

#[test]
fn a_step_whose_ground_is_gone_or_another_is_not_found() {
    let world = world();
    let (first, _) = world.chain();
    // Made again, the first step is not what the second was made on.
    let again = world.keep("one", Ground::of(&world.image), b"other");
    assert_eq!(world.find("one").unwrap().name, again.name);
    assert!(world.find("two").is_some());
    files::remove_directory(&world.cache.directory.join(&first.name)).unwrap();
    assert_eq!(world.find("two"), None);
    // Another image of the same id.
    let ground = Ground { bytes: Digest::of(b"other"), ..Ground::of(&world.image) };
    world.keep("four", ground, b"4");
    assert_eq!(world.find("four"), None);
    world.images.remove("base").unwrap();
    assert_eq!(world.find("one"), None);
}

#[test]
fn a_format_that_is_not_known_is_no_step() {
    let world = world();
    let (first, _) = world.chain();
    let path = world.cache.directory.join(&first.name).join(STEP);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    assert_eq!(world.find("one"), None);
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_what_lies_on_it_too() {
    let world = world();
    let block = vec![1; 64 << 10];
    let old = world.keep("old", Ground::of(&world.image), &block);
    let new = world.keep("new", Ground::of(&world.image), &block);
    let on_new = world.keep("on", Ground { steps: vec![new.name.clone()], ..new.ground.clone() }, &block);
    world.age(&old, 2);
    world.age(&new, 3);
    world.age(&on_new, 3);
    // Using the upper one uses the lower one.
    world.find("on").unwrap();
    let pruned = world.cache.prune(130 << 10, &world.images).unwrap();
    assert_eq!((pruned.steps, pruned.freed >> 10), (1, 64));
    assert!(world.find("old").is_none() && world.find("on").is_some());
    // Without its ground a step is of no use, however new it is.
    files::remove_directory(&world.cache.directory.join(&new.name)).unwrap();
    assert_eq!(world.cache.prune(u64::MAX, &world.images).unwrap().steps, 1);
    assert_eq!(world.cache.prune(0, &world.images).unwrap(), Pruned::default());
}

#[test]
fn a_running_build_keeps_its_steps() {
    let world = world();
    world.chain();
    let held = world.cache.hold().unwrap();
    let _second = world.cache.hold().unwrap();
    assert!(matches!(world.cache.prune(0, &world.images), Err(BuildCacheError::Busy)));
    drop((held, _second));
    assert_eq!(world.cache.prune(0, &world.images).unwrap().steps, 2);
}
