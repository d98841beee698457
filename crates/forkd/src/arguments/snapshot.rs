//! `forkd snapshot …`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use forkd_api::code::Language;
use forkd_api::snapshot::{Cpu, WarmUp};

use super::{DaemonOptions, Output, parse_pair};
use crate::size::parse_mib;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_value_name = "COMMAND")]
pub struct SnapshotOptions {
    #[command(subcommand)]
    pub command: Option<SnapshotCommand>,
    #[command(flatten)]
    pub create: SnapshotCreateOptions,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a snapshot of an image, another snapshot or a sandbox. `forkd snapshot IMAGE` is short for this.
    Make(Box<SnapshotCreateOptions>),
    /// Build the snapshots described by forkd.toml whose contents have changed, and the images it describes that are missing.
    Build(SnapshotBuildOptions),
    /// List local snapshots, or the snapshots in a registry's repository.
    Ls(SnapshotLsOptions),
    /// Show the details of a snapshot.
    Inspect(SnapshotInspectOptions),
    /// Show the chain of a snapshot: what it is based on and what is based on it, with sizes.
    History(SnapshotInspectOptions),
    /// Check every byte of a snapshot and its chain. Exits with 1 if a file is damaged.
    Verify(SnapshotInspectOptions),
    /// Write a snapshot and its chain to a file.
    #[command(alias = "pack")]
    Save(SnapshotSaveOptions),
    /// Load a snapshot from a file written by `save`.
    #[command(alias = "unpack")]
    Load(SnapshotLoadOptions),
    /// Push a snapshot and its chain to a registry.
    Push(SnapshotPushOptions),
    /// Pull a snapshot from a registry.
    Pull(SnapshotPullOptions),
    /// Sign a snapshot in a registry, as cosign does.
    Sign(SnapshotSignOptions),
    /// Manage signing keys.
    #[command(subcommand)]
    Key(SnapshotKeyCommand),
    /// Make a snapshot independent of its chain: write all of its memory, so that its parents can be removed.
    Compact(SnapshotInspectOptions),
    /// Give a snapshot another name. `forkd snapshot rm NAME` removes the name.
    Tag(SnapshotTagOptions),
    /// Let all projects fork a snapshot. By default only its own project can.
    Share(SnapshotShareOptions),
    /// Remove snapshots. Sandboxes forked from them keep running.
    Rm(SnapshotRmOptions),
    /// Remove unused snapshots, the least recently used first.
    ///
    /// Keeps snapshots that running sandboxes were forked from or can be rolled back to, public snapshots, and the chains of those.
    Prune(SnapshotPruneOptions),
}

#[derive(Debug, Args)]
pub struct SnapshotPruneOptions {
    /// Remove only snapshots that were not forked for this long, such as 7d.
    #[arg(long, value_name = "TIME", value_parser = super::parse_seconds)]
    pub unused_for: Option<u64>,
    /// Stop when the remaining snapshots take no more than this on disk, in MiB or with a unit (512, 20G).
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_mib)]
    pub keep: u64,
    /// Also remove snapshots with a name given by a user. Needs --unused-for or --keep.
    #[arg(long, short)]
    pub all: bool,
    /// Remove only snapshots of this project [default: all that the caller may remove].
    #[arg(long)]
    pub project: Option<String>,
    /// Show what would be removed, and remove nothing.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotCreateOptions {
    /// The image to boot, by name or id; if there is no such image, the snapshot to derive from, as with --snapshot.
    #[arg(required_unless_present_any = ["from", "snapshot"], conflicts_with_all = ["from", "snapshot"])]
    pub image: Option<String>,
    /// The snapshot's name [default: the image's name; with --from, generated].
    #[arg(long, short)]
    pub tag: Option<String>,
    /// Make a snapshot of this running sandbox instead of an image, as `forkd branch` does.
    #[arg(long, alias = "from-sandbox", value_name = "SANDBOX")]
    pub from: Option<String>,
    /// Derive from this snapshot instead of an image: fork it, apply --run and --warm-up, and store only the difference.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "from", requires = "tag")]
    pub snapshot: Option<String>,
    /// Run this command as root with `sh -c` before --warm-up; may be repeated. A failing command fails the snapshot.
    #[arg(long, value_name = "COMMAND", conflicts_with = "from")]
    pub run: Vec<String>,
    #[command(flatten)]
    pub shape: SnapshotShape,
    /// Set an environment variable in the guest and its sandboxes.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair, conflicts_with = "from")]
    pub env: Vec<(String, String)>,
    /// Command to start in the background, in shell syntax.
    #[arg(long, value_name = "COMMAND", value_parser = parse_words, conflicts_with = "from")]
    pub start: Option<Words>,
    /// The guest is ready when a process listens on this port.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["ready_command", "from"])]
    pub ready_port: Option<u16>,
    /// The guest is ready when this command exits with 0.
    #[arg(long, value_name = "COMMAND", value_parser = parse_words, conflicts_with = "from")]
    pub ready_command: Option<Words>,
    /// How long the guest may take to become ready, such as 90 or 10m.
    #[arg(long, value_name = "TIME", value_parser = super::parse_seconds, conflicts_with = "from")]
    pub ready_timeout: Option<u64>,
    /// Run this code before the guest is frozen: python=CODE, or javascript, typescript, bash, r, java; @FILE for CODE.
    #[arg(long, value_name = "LANGUAGE=CODE", value_parser = parse_warm_up, conflicts_with = "from")]
    pub warm_up: Vec<WarmUp>,
    /// Give the guest and its sandboxes the CA certificates and proxy settings of the daemon's host.
    #[arg(long, conflicts_with = "from")]
    pub host_certs: bool,
    /// Add E2B's default user: `user` in /home/user, with passwordless sudo.
    #[arg(long, conflicts_with = "from")]
    pub e2b: bool,
    /// Return when the snapshot can be forked, without waiting until it is on disk.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What a guest is booted with.
#[derive(Debug, Clone, Default, Args)]
pub struct SnapshotShape {
    /// Number of vCPUs [default: the image's recipe, else 1].
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Guest memory, in MiB or with a unit (512, 2G) [default: the image's recipe, else 512].
    #[arg(long, alias = "mem-size-mib", value_name = "SIZE", value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// Disk size, in MiB or with a unit: what each sandbox may write [default: the image's recipe, else 4G].
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub disk: Option<u64>,
    /// CPU model of the guest: the host's own, or a feature level (x86-64-v2, x86-64-v3) so that the snapshot runs on other hosts
    /// [default: host].
    #[arg(long, value_name = "MODEL", value_parser = cpu_parser())]
    pub cpu: Option<Cpu>,
    /// Make a guest without a network device. Commands, files and ports work through the daemon.
    #[arg(long)]
    pub no_network: bool,
    /// The kernel's id or version [default: see forkd kernel default].
    #[arg(long)]
    pub kernel: Option<String>,
}

#[derive(Debug, Args)]
pub struct SnapshotBuildOptions {
    /// Names of snapshots to build, with their parents [default: all].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// The file with the tables [snapshot.NAME].
    #[arg(long, short, value_name = "FILE", default_value = "forkd.toml")]
    pub file: PathBuf,
    /// Rebuild all of them, even if nothing has changed.
    #[arg(long)]
    pub no_cache: bool,
    /// Show what would be built, and build nothing.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotLsOptions {
    /// List the tags of this repository instead of local snapshots: registry.example/team/app.
    #[arg(value_name = "REGISTRY/REPOSITORY")]
    pub repository: Option<String>,
    /// Print tags only.
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotSaveOptions {
    /// The snapshot's tag.
    pub tag: String,
    /// The file to write, or - for standard output.
    #[arg(long = "output-file", short = 'o', value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct SnapshotLoadOptions {
    /// The file to read, or - for standard input.
    pub file: PathBuf,
    /// Local name [default: the name it was saved under].
    #[arg(long, short)]
    pub tag: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotPushOptions {
    /// The snapshot's tag.
    pub tag: String,
    /// Destination: registry.example/team/app:tag.
    pub reference: String,
    /// Mount existing blobs from this repository of the same registry, such as team/base. Repositories that the snapshot or its
    /// parents were pushed to or pulled from are tried as well.
    #[arg(long, value_name = "REPOSITORY")]
    pub mount_from: Vec<String>,
    /// Add the snapshot to the tag as this variant instead of replacing what the tag names. A pull takes the first variant that
    /// runs on its host's CPU.
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Confirm that the snapshot, or one it is based on, may contain the memory of a sandbox's users.
    #[arg(long, short)]
    pub yes: bool,
    /// Sign with the private key in this file. The key stays on this host.
    #[arg(long, alias = "key", value_name = "FILE")]
    pub sign_key: Option<PathBuf>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotPullOptions {
    /// Source: registry.example/team/app:tag.
    pub reference: String,
    /// Local name [default: the name it was pushed under].
    #[arg(long, short)]
    pub tag: Option<String>,
    /// Require a signature by the public key in this file, in addition to the daemon's policy.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotSignOptions {
    /// The snapshot: registry.example/team/app:tag or registry.example/team/app@sha256:...
    pub reference: String,
    /// Sign with the private key in this file. The key stays on this host.
    #[arg(long, alias = "sign-key", value_name = "FILE")]
    pub key: PathBuf,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotKeyCommand {
    /// Create a key pair: the private key in FILE (mode 0600), the public key in FILE.pub.
    New(SnapshotKeyNewOptions),
}

#[derive(Debug, Args)]
pub struct SnapshotKeyNewOptions {
    /// File to write. Neither FILE nor FILE.pub may exist.
    pub file: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotInspectOptions {
    /// The snapshot's tag.
    pub tag: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotShareOptions {
    /// The snapshot's tag.
    pub tag: String,
    /// Make it private again. Sandboxes of other projects keep running.
    #[arg(long)]
    pub off: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotTagOptions {
    /// The snapshot's tag.
    pub tag: String,
    /// The name: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit.
    pub name: String,
    /// Move the name if another snapshot has it.
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotRmOptions {
    /// Tags or other names. If a snapshot has several, only the given one is removed.
    #[arg(value_name = "TAG", required = true)]
    pub tags: Vec<String>,
    /// Also remove the snapshots based on them.
    #[arg(long)]
    pub cascade: bool,
    /// Remove snapshots together with all of their names.
    #[arg(long)]
    pub all_names: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// A command as a shell would read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

fn parse_words(text: &str) -> Result<Words, String> {
    match shlex::split(text) {
        Some(words) if !words.is_empty() => Ok(Words(words)),
        Some(_) => Err("expected a command".into()),
        None => Err("a quote is not closed".into()),
    }
}

fn cpu_parser() -> impl TypedValueParser<Value = Cpu> {
    const MODELS: [Cpu; 3] = [Cpu::Host, Cpu::V2, Cpu::V3];
    PossibleValuesParser::new(MODELS.map(Cpu::name))
        .map(|name| MODELS.into_iter().find(|model| model.name() == name).unwrap_or_default())
}

fn parse_warm_up(text: &str) -> Result<WarmUp, String> {
    let (language, code) = text.split_once('=').ok_or("expected LANGUAGE=CODE or LANGUAGE=@FILE")?;
    let language = Language::named(language)
        .ok_or("expected python, javascript, typescript, bash, r or java before the =")?;
    let code = match code.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?,
        None => code.to_owned(),
    };
    Ok(WarmUp { language, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_a_shell_would() {
        assert_eq!(parse_words("sh -c 'a b'").unwrap().0, ["sh", "-c", "a b"]);
        assert!(parse_words("  ").is_err() && parse_words("'a").is_err());
    }

    #[test]
    fn warm_up_code_is_given_or_in_a_file() {
        assert_eq!(parse_warm_up("python=import a; b=1").unwrap().code, "import a; b=1");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "let a").unwrap();
        let warm_up = parse_warm_up(&format!("javascript=@{}", file.path().display())).unwrap();
        assert_eq!((warm_up.language, warm_up.code.as_str()), (Language::Javascript, "let a"));
        for wrong in ["python", "ruby=1", "bash=@/no/such/file"] {
            assert!(parse_warm_up(wrong).is_err(), "{wrong}");
        }
    }
}
