//! The key of a build: a digest of everything that changes what comes of it.
//!
//! ```text
//!   booted    image ─┐  kernel, agent, command line, shape,
//!                    ├─ environment, user, start, readiness,  ──▶ key
//!                    │  commands, warm-up, project
//!   derived   parent ┘  environment, commands, warm-up, project
//! ```
//!
//! An image and a parent count by their contents, not by their names. How long something may take does not count.

use std::collections::BTreeMap;

use forkd_image::digest::{Digest, Hasher};
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::Probe;
use serde::Serialize;

use crate::bring_up::{ImageConfig, WarmUp};
use crate::project::Project;
use crate::record::Shape;
use crate::snapshot::derive::NewDerived;
use crate::snapshot::make::NewSnapshot;

/// Changes with what a key is made of, and with how snapshots are made: those of before are not used again.
const FORMAT: &str = "forkd snapshot build 1";

/// The digests of what a snapshot is booted from.
#[derive(Debug, Clone, Copy)]
pub struct BootSources {
    /// Of the image's disk. Its configuration is in what is booted.
    pub image: Digest,
    /// Of the kernel with its modules. The agent is in the name of the initial RAM disk.
    pub kernel: Digest,
}

#[derive(Serialize)]
struct Booted<'a> {
    project: &'a Project,
    image: Digest,
    kernel: Digest,
    initramfs: Option<&'a str>,
    command_line: &'a str,
    shape: &'a Shape,
    env: &'a BTreeMap<String, String>,
    user: Option<&'a str>,
    workdir: Option<&'a str>,
    account: Option<&'a Account>,
    start: Option<&'a [String]>,
    ready: Option<&'a Probe>,
    run: &'a [String],
    warm_up: Vec<Code<'a>>,
    /// The digest of the host's certificates, and its proxies.
    host: Option<(Digest, &'a BTreeMap<String, String>)>,
}

#[derive(Serialize)]
struct Derived<'a> {
    project: &'a Project,
    parent: String,
    env: &'a BTreeMap<String, String>,
    run: &'a [String],
    warm_up: Vec<Code<'a>>,
}

/// Language, code, and whether it must succeed.
type Code<'a> = (&'a str, &'a str, bool);

fn code(warm_up: &[WarmUp]) -> Vec<Code<'_>> {
    warm_up.iter().map(|one| (one.language.as_str(), one.code.as_str(), one.required)).collect()
}

pub fn of_booted(
    new: &NewSnapshot,
    sources: &BootSources,
    project: &Project,
) -> Result<Digest, serde_json::Error> {
    let ImageConfig { env, user, workdir, account, start, ready, run, warm_up, host } = &new.config;
    let initramfs = new.initramfs.as_deref().and_then(|path| path.file_name()?.to_str());
    let contents = Booted {
        project,
        image: sources.image,
        kernel: sources.kernel,
        initramfs,
        command_line: &new.command_line,
        shape: &new.shape,
        env,
        user: user.as_deref(),
        workdir: workdir.as_deref(),
        account: account.as_ref(),
        start: start.as_deref(),
        ready: ready.as_ref().map(|ready| &ready.probe),
        run,
        warm_up: code(warm_up),
        host: host.as_ref().map(|host| (Digest::of(&host.certificates), &host.proxies)),
    };
    of("booted", &contents)
}

/// `parent` is the digest of the parent's manifest.
pub fn of_derived(
    new: &NewDerived,
    parent: &forkd_store::Digest,
    project: &Project,
) -> Result<Digest, serde_json::Error> {
    let NewDerived { tag: _, source: _, env, run, warm_up, build_key: _ } = new;
    derived(project, parent, env, run, warm_up)
}

fn derived(
    project: &Project,
    parent: &forkd_store::Digest,
    env: &BTreeMap<String, String>,
    run: &[String],
    warm_up: &[WarmUp],
) -> Result<Digest, serde_json::Error> {
    let (parent, warm_up) = (parent.to_string(), code(warm_up));
    of("derived", &Derived { project, parent, env, run, warm_up })
}

fn of(kind: &str, contents: &impl Serialize) -> Result<Digest, serde_json::Error> {
    let contents = serde_json::to_vec(contents)?;
    Ok(Hasher::new(FORMAT).part(kind.as_bytes()).part(&contents).finish())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use forkd_image::host_environment::HostEnvironment;
    use forkd_proto::agent::startup::Ready;
    use forkd_proto::control::{CpuModel, Devices};

    use super::*;

    fn booted() -> NewSnapshot {
        let env = [("A", "1"), ("B", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        NewSnapshot {
            tag: "t".parse().unwrap(),
            kernel: "/kernels/a/vmlinux".into(),
            initramfs: Some("/kernels/a/initramfs-1".into()),
            command_line: "quiet".into(),
            shape: Shape {
                vcpus: 1,
                memory_bytes: 1 << 26,
                cpu: CpuModel::Host,
                devices: Devices::default(),
                image: Some(Digest::of(b"image")),
                agent_version: 1,
            },
            config: ImageConfig {
                env: env.into(),
                ready: Some(Ready { probe: Probe::Port(80), timeout_ms: 1 }),
                run: vec!["one".into(), "two".into()],
                warm_up: vec![WarmUp::new("python", "1".into())],
                ..ImageConfig::default()
            },
            limit: Duration::from_secs(1),
            build_key: None,
        }
    }

    fn sources() -> BootSources {
        BootSources { image: Digest::of(b"disk"), kernel: Digest::of(b"kernel") }
    }

    fn key(change: fn(&mut NewSnapshot)) -> Digest {
        let mut new = booted();
        change(&mut new);
        of_booted(&new, &sources(), &Project::default()).unwrap()
    }

    #[test]
    fn everything_that_matters_changes_the_key_of_a_boot() {
        let other = |image: &[u8], kernel: &[u8], project: &str| {
            let sources = BootSources { image: Digest::of(image), kernel: Digest::of(kernel) };
            of_booted(&booted(), &sources, &project.parse().unwrap()).unwrap()
        };
        let keys = [
            key(|_| ()),
            other(b"other", b"kernel", "default"),
            other(b"disk", b"other", "default"),
            other(b"disk", b"kernel", "other"),
            key(|new| new.initramfs = Some("/kernels/a/initramfs-2".into())),
            key(|new| new.initramfs = None),
            key(|new| new.command_line.push('x')),
            key(|new| new.shape.vcpus = 2),
            key(|new| new.shape.memory_bytes += 1),
            key(|new| new.shape.cpu = CpuModel::V2),
            key(|new| new.shape.devices.entropy = !new.shape.devices.entropy),
            key(|new| new.shape.image = None),
            key(|new| drop(new.config.env.insert("A".into(), "2".into()))),
            key(|new| drop(new.config.env.remove("A"))),
            key(|new| new.config.user = Some("app".into())),
            key(|new| new.config.workdir = Some("/app".into())),
            key(|new| new.config.account = Some(Account::e2b())),
            key(|new| new.config.start = Some(vec!["server".into()])),
            key(|new| new.config.start = Some(Vec::new())),
            key(|new| new.config.ready = None),
            key(|new| new.config.ready = Some(Ready { probe: Probe::Port(81), timeout_ms: 1 })),
            key(|new| new.config.run.reverse()),
            key(|new| new.config.run = vec!["one two".into()]),
            key(|new| new.config.run = vec!["onetwo".into()]),
            key(|new| new.config.run.clear()),
            key(|new| new.config.warm_up[0].code = "2".into()),
            key(|new| new.config.warm_up[0].language = "bash".into()),
            key(|new| new.config.warm_up[0].required = false),
            key(|new| {
                let (certificates, proxies) = (b"pem".to_vec(), BTreeMap::new());
                new.config.host = Some(HostEnvironment { certificates, proxies });
            }),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn names_places_and_times_do_not_change_the_key_of_a_boot() {
        let same = [
            key(|new| new.tag = "other".parse().unwrap()),
            key(|new| new.kernel = "/elsewhere/vmlinux".into()),
            key(|new| new.initramfs = Some("/elsewhere/initramfs-1".into())),
            key(|new| new.limit = Duration::from_secs(9)),
            key(|new| new.config.ready = Some(Ready { probe: Probe::Port(80), timeout_ms: 9 })),
            key(|new| {
                let reversed = std::mem::take(&mut new.config.env).into_iter().rev();
                new.config.env = reversed.collect();
            }),
            key(|new| new.build_key = Some(Digest::of(b"x"))),
        ];
        assert!(same.iter().all(|other| *other == key(|_| ())), "{same:?}");
    }

    #[test]
    fn everything_that_matters_changes_the_key_of_what_is_derived() {
        let of = |project: &str, parent: &[u8], env: &[(&str, &str)], run: &[&str], code: &str| {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let run: Vec<String> = run.iter().map(ToString::to_string).collect();
            let warm_up = [WarmUp::new("python", code.into())];
            let parent = forkd_store::Digest::of(parent);
            derived(&project.parse().unwrap(), &parent, &env, &run, &warm_up).unwrap()
        };
        let base = || of("default", b"parent", &[("A", "1"), ("B", "2")], &["one"], "1");
        let keys = [
            base(),
            of("other", b"parent", &[("A", "1"), ("B", "2")], &["one"], "1"),
            of("default", b"other", &[("A", "1"), ("B", "2")], &["one"], "1"),
            of("default", b"parent", &[("A", "1")], &["one"], "1"),
            of("default", b"parent", &[("A", "1"), ("B", "2")], &["one", "one"], "1"),
            of("default", b"parent", &[("A", "1"), ("B", "2")], &[], "1"),
            of("default", b"parent", &[("A", "1"), ("B", "2")], &["one"], "2"),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "{keys:?}");
        assert_eq!(base(), of("default", b"parent", &[("B", "2"), ("A", "1")], &["one"], "1"));
    }
}
