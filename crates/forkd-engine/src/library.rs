//! The library: kernels and images, and what a snapshot of an image is booted with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forkd_image::digest::Digest;
use forkd_image::host_environment::{HostEnvironment, HostEnvironmentError};
use forkd_image::images::{Image, ImageError, ImageStore};
use forkd_image::kernels::{KernelStore, KernelStoreError};
use forkd_image::progress::Progress;
use forkd_net::plan;
use forkd_proto::agent::VERSION;
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::Ready;
use forkd_proto::control::{CpuModel, Devices, Disk, Net, Vsock};
use forkd_store::{Tag, TagError};

use crate::boot::{CID, command_line};
use crate::bring_up::{ImageConfig, WarmUp};
use crate::project::Project;
use crate::record::Shape;
use crate::snapshot::build_key::BootSources;
use crate::snapshot::make::NewSnapshot;

/// The tag of a recipe until it is known what it is named after.
pub const UNNAMED: &str = "unnamed";
/// Characters of an image's name in the tag of its snapshot.
const MAX_NAME: usize = 40;

const VCPUS: u8 = 1;
const MEMORY_MIB: u64 = 512;
const DISK_MIB: u64 = 4096;
/// How long a guest may take until it is ready, also in an emulator.
const LIMIT: Duration = Duration::from_secs(300);

/// Where kernels and images are, and what is booted with them.
#[derive(Debug, Clone)]
pub struct Library {
    pub images: ImageStore,
    pub kernels: KernelStore,
    /// The guest's first program.
    pub agent: PathBuf,
    /// Whether guests run in an emulator.
    pub emulated: bool,
}

/// What a guest gets of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub vcpus: u8,
    pub memory_mib: u64,
    pub disk_mib: u64,
}

impl Size {
    /// As it is asked for, else as the image's recipe says, else the default.
    pub fn of(image: &Image, vcpus: Option<u8>, memory_mib: Option<u64>, disk_mib: Option<u64>) -> Size {
        let own = image.metadata.recipe.as_ref();
        let own_vcpus = own.and_then(|own| u8::try_from(own.vcpus?).ok());
        Size {
            vcpus: vcpus.or(own_vcpus).unwrap_or(VCPUS),
            memory_mib: memory_mib.or(own.and_then(|own| own.memory_mib)).unwrap_or(MEMORY_MIB),
            disk_mib: disk_mib.or(own.and_then(|own| own.disk_mib)).unwrap_or(DISK_MIB),
        }
    }
}

/// A snapshot as it is asked for: names, no paths. What is not said has a default.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub tag: Tag,
    /// A name or an id.
    pub image: String,
    pub kernel: Option<String>,
    pub vcpus: Option<u8>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
    /// What the guest is shown of the host's CPU.
    pub cpu: CpuModel,
    /// Beside the image's own.
    pub env: BTreeMap<String, String>,
    pub start: Option<Vec<String>>,
    pub ready: Option<Ready>,
    /// Commands that run as root before the warm-up.
    pub run: Vec<String>,
    /// After the image's own.
    pub warm_up: Vec<WarmUp>,
    /// A user that the guest has, and which runs commands without a user.
    pub account: Option<DefaultAccount>,
    /// Whether the guest sees the host's certificates and proxies.
    pub host_certs: bool,
    /// Whether there is a network device.
    pub network: bool,
}

/// An account, and whether it takes the place of the image's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultAccount {
    pub account: Account,
    /// Whether the user and the directory that the image names stay the default ones.
    pub keeps_image_user: bool,
}

impl Recipe {
    /// The tag of a snapshot that is named after what it is made of, with a prefix. Recipes that differ in anything, also in the image that a name
    /// means, have different ones, and so have those of different projects.
    pub fn tag_of_contents(&self, prefix: &str, image: &Digest, project: &Project) -> Result<Tag, TagError> {
        let Recipe { tag: _, image: name, kernel, vcpus, memory_mib, disk_mib, cpu, env, .. } = self;
        let Recipe { start, ready, run, warm_up, account, host_certs, network, .. } = self;
        let shape = (kernel, vcpus, memory_mib, disk_mib, cpu, network);
        let contents = (image.hex(), project, shape, env, start, ready, warm_up, account, host_certs);
        let mut contents = format!("{contents:?}");
        // Recipes without any keep the tags that they have had.
        if !run.is_empty() {
            contents += &format!("{run:?}");
        }
        let digest = Digest::of(contents.as_bytes()).hex();
        let plain = |character: char| match character.to_ascii_lowercase() {
            character @ ('a'..='z' | '0'..='9' | '.') => character,
            _ => '-',
        };
        let name: String = name.chars().map(plain).take(MAX_NAME).collect();
        format!("{prefix}{name}-{}", digest.chars().take(12).collect::<String>()).parse()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Kernel(#[from] KernelStoreError),
    #[error(transparent)]
    Host(#[from] HostEnvironmentError),
}

impl Library {
    /// The directory that it can write to.
    pub fn directory(&self) -> PathBuf {
        let images = self.images.directory();
        images.parent().unwrap_or(images).to_owned()
    }

    /// Finds what a recipe names, and makes what is missing to boot it: the first time, that takes a download. Blocks.
    pub fn prepare(&self, recipe: Recipe, progress: &dyn Progress) -> Result<Prepared, LibraryError> {
        let image = self.images.find(&recipe.image)?;
        let kernel = match &recipe.kernel {
            Some(name) => self.kernels.find(name)?,
            None => self.kernels.ensure_default(progress)?,
        };
        let initramfs = kernel.initramfs(&self.agent, progress)?;
        let (tag, shape) = (recipe.tag.clone(), shape(&recipe, &image));
        let words = if recipe.network { plan::guest_words() } else { String::new() };
        let command_line = command_line(self.emulated) + &words;
        let host = recipe.host_certs.then(HostEnvironment::collect).transpose()?;
        // What a snapshot has in its memory goes wherever it is pushed.
        let host = host.map(HostEnvironment::without_credentials);
        let config = ImageConfig { host, ..config(recipe, &image) };
        let ready = config.ready.as_ref().map_or(0, |ready| ready.timeout_ms);
        let new = NewSnapshot {
            tag,
            kernel: kernel.vmlinux(),
            initramfs: Some(initramfs),
            command_line,
            shape,
            config,
            limit: LIMIT + Duration::from_millis(ready),
            build_key: None,
        };
        let sources = BootSources { image: image.metadata.digest, kernel: kernel.metadata.digest };
        Ok(Prepared { new, sources })
    }
}

/// What is booted, and the digests of the files that it is booted from.
#[derive(Debug)]
pub struct Prepared {
    pub new: NewSnapshot,
    pub sources: BootSources,
}

/// What the guest gets: as it is asked for, else as the image's recipe says.
fn shape(recipe: &Recipe, image: &Image) -> Shape {
    let size = Size::of(image, recipe.vcpus, recipe.memory_mib, recipe.disk_mib);
    let limit_bytes = size.disk_mib << 20;
    let bytes = limit_bytes.max(image.metadata.size);
    let disk = Disk { bytes, limit_bytes, base: true, layers: 0, read_only: false };
    Shape {
        vcpus: size.vcpus,
        memory_bytes: size.memory_mib << 20,
        cpu: recipe.cpu,
        devices: Devices {
            serial: true,
            disks: vec![disk],
            net: recipe.network.then_some(Net { mac: plan::GUEST_MAC, mtu: None }),
            vsock: Some(Vsock { cid: CID }),
            entropy: true,
            ..Devices::default()
        },
        image: Some(image.id()),
        agent_version: VERSION,
    }
}

fn config(recipe: Recipe, image: &Image) -> ImageConfig {
    let own = ImageConfig::of(&image.metadata);
    let own = match recipe.account {
        Some(DefaultAccount { account, keeps_image_user: false }) => {
            ImageConfig { user: Some(account.name.clone()), workdir: None, account: Some(account), ..own }
        }
        Some(DefaultAccount { account, keeps_image_user: true }) => {
            let user = image.metadata.config.user.clone().unwrap_or_else(|| account.name.clone());
            ImageConfig { user: Some(user), account: Some(account), ..own }
        }
        None => own,
    };
    ImageConfig {
        env: own.env.into_iter().chain(recipe.env).collect(),
        start: recipe.start.or(own.start),
        ready: recipe.ready.or(own.ready),
        run: recipe.run,
        warm_up: own.warm_up.into_iter().chain(recipe.warm_up).collect(),
        ..own
    }
}

#[cfg(test)]
mod tests {
    use forkd_image::Silent;
    use forkd_image::digest::Digest;
    use forkd_image::images::{Config, Metadata, Source};
    use forkd_image::recipe;

    use super::*;

    fn asked() -> Recipe {
        Recipe {
            tag: "t".parse().unwrap(),
            image: "none".into(),
            kernel: None,
            vcpus: None,
            memory_mib: None,
            disk_mib: None,
            cpu: CpuModel::Host,
            env: BTreeMap::from([("A".into(), "recipe".into())]),
            start: None,
            ready: None,
            run: Vec::new(),
            warm_up: Vec::new(),
            account: None,
            host_certs: false,
            network: true,
        }
    }

    fn image(size: u64) -> Image {
        let env = BTreeMap::from([("A".into(), "image".into()), ("B".into(), "image".into())]);
        let metadata = Metadata {
            format: 1,
            id: Digest::of(b"image"),
            source: Source::Archive { file: "x".into() },
            created: 0,
            layers: vec![],
            config: Config { env, ..Config::default() },
            default_user: "user".into(),
            size,
            content: 0,
            inodes: 0,
            digest: Digest::of(b"disk"),
            recipe: None,
        };
        Image { names: vec![], disk: 0, path: "/x".into(), shared: false, metadata }
    }

    #[test]
    fn what_is_not_said_has_a_default_and_a_disk_holds_its_image() {
        let small = shape(&asked(), &image(1 << 20));
        assert_eq!((small.vcpus, small.memory_bytes), (VCPUS, MEMORY_MIB << 20));
        let disk = small.devices.disks[0];
        assert_eq!((disk.bytes, disk.limit_bytes), (DISK_MIB << 20, DISK_MIB << 20));
        assert_eq!(small.devices.net, Some(Net { mac: plan::GUEST_MAC, mtu: None }));
        assert_eq!(shape(&Recipe { network: false, ..asked() }, &image(0)).devices.net, None);
        let large = shape(&Recipe { disk_mib: Some(1), ..asked() }, &image(8 << 20)).devices.disks[0];
        assert_eq!((large.bytes, large.limit_bytes), (8 << 20, 1 << 20));
    }

    #[test]
    fn what_is_asked_for_outranks_what_the_image_says() {
        let mut image = image(0);
        let own = recipe::Recipe {
            memory_mib: Some(77),
            start: Some(vec!["own".into()]),
            warm_up: [(recipe::Language::Python, "first".into())].into(),
            ..recipe::Recipe::default()
        };
        image.metadata.recipe = Some(own);
        let asked = Recipe { warm_up: vec![WarmUp::new("bash", "second".into())], ..asked() };
        assert_eq!(shape(&asked, &image).memory_bytes, 77 << 20);
        let config = config(asked, &image);
        assert_eq!((config.env["A"].as_str(), config.env["B"].as_str()), ("recipe", "image"));
        assert_eq!(config.start, Some(vec!["own".into()]));
        let code: Vec<&str> = config.warm_up.iter().map(|one| one.code.as_str()).collect();
        assert_eq!(code, ["first", "second"]);
    }

    #[test]
    fn an_account_takes_the_place_of_the_image_s_user_unless_that_is_kept() {
        let mut image = image(0);
        image.metadata.config.user = Some("app".into());
        image.metadata.config.workdir = Some("/app".into());
        let with = |keeps_image_user| {
            let account = DefaultAccount { account: Account::e2b(), keeps_image_user };
            let config = config(Recipe { account: Some(account), ..asked() }, &image);
            assert_eq!(config.account, Some(Account::e2b()));
            (config.user.unwrap(), config.workdir)
        };
        assert_eq!(with(false), ("user".into(), None));
        assert_eq!(with(true), ("app".into(), Some("/app".into())));
        let plain = config(asked(), &image);
        assert_eq!((plain.account, plain.user.as_deref()), (None, Some("user")));
    }

    #[test]
    fn a_snapshot_can_be_named_after_what_it_is_made_of() {
        let (image, project) = (Digest::of(b"image"), Project::default());
        let tag = |recipe: &Recipe| recipe.tag_of_contents("run-", &image, &project).unwrap();
        let python = Recipe { image: "registry.example/Python:3.12".into(), ..asked() };
        let other = |change: fn(&mut Recipe)| {
            let mut recipe = python.clone();
            change(&mut recipe);
            tag(&recipe)
        };
        let tags = [
            tag(&python),
            other(|recipe| recipe.memory_mib = Some(1024)),
            other(|recipe| recipe.disk_mib = Some(1024)),
            other(|recipe| recipe.cpu = CpuModel::V2),
            other(|recipe| recipe.network = false),
            other(|recipe| recipe.run = vec!["true".into()]),
            other(|recipe| drop(recipe.env.insert("C".into(), "d".into()))),
            other(|recipe| recipe.warm_up = vec![WarmUp::new("python", "1".into())]),
            python.tag_of_contents("run-", &Digest::of(b"another"), &project).unwrap(),
            python.tag_of_contents("run-", &image, &"other".parse().unwrap()).unwrap(),
        ];
        assert!(
            tags.iter().all(|tag| tag.as_str().starts_with("run-registry.example-python-3.12-")),
            "{tags:?}"
        );
        assert_eq!(tags.iter().collect::<std::collections::BTreeSet<_>>().len(), tags.len());
        assert_eq!(tag(&Recipe { tag: "x".parse().unwrap(), ..python.clone() }), tags[0]);
        assert!(tag(&Recipe { image: "x/".repeat(100), ..asked() }).as_str().len() <= 63);
    }

    #[test]
    fn an_image_that_is_not_there_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let library = Library {
            images: ImageStore::new(empty.path()),
            kernels: KernelStore::new(empty.path()),
            agent: empty.path().join("agent"),
            emulated: false,
        };
        let error = library.prepare(asked(), &Silent).unwrap_err();
        assert!(matches!(error, LibraryError::Image(ImageError::Unknown(name)) if name == "none"));
    }
}
