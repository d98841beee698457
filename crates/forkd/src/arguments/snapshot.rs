//! `forkd snapshot …`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
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
    /// Make a snapshot of an image, of another snapshot or of a sandbox. `forkd snapshot IMAGE` is short for it.
    Make(Box<SnapshotCreateOptions>),
    /// Build the snapshots that forkd.toml describes: those whose contents have changed, and those based on them.
    Build(SnapshotBuildOptions),
    /// List the snapshots, or those in a repository of a registry.
    Ls(SnapshotLsOptions),
    /// Show what is known of a snapshot.
    Inspect(SnapshotInspectOptions),
    /// Show the snapshots that a snapshot is based on and those based on it, with their sizes on disk.
    History(SnapshotInspectOptions),
    /// Read and check every file of a snapshot and of what it is based on. Exits with 1 if one is damaged.
    Verify(SnapshotInspectOptions),
    /// Write a snapshot, with everything it is based on, to a file.
    #[command(alias = "pack")]
    Save(SnapshotSaveOptions),
    /// Read a snapshot from a file that `save` has written.
    #[command(alias = "unpack")]
    Load(SnapshotLoadOptions),
    /// Push a snapshot, with everything it is based on, to a registry.
    Push(SnapshotPushOptions),
    /// Pull a snapshot from a registry.
    Pull(SnapshotPullOptions),
    /// Sign a snapshot that is in a registry, as cosign does.
    Sign(SnapshotSignOptions),
    /// Keys that snapshots are signed with.
    #[command(subcommand)]
    Key(SnapshotKeyCommand),
    /// Make a snapshot one that needs no other: all of its memory is written, and those it is based on can be removed.
    Compact(SnapshotInspectOptions),
    /// Give a snapshot another name, which can be used in the place of its tag. `forkd snapshot rm NAME` removes the name.
    Tag(SnapshotTagOptions),
    /// Let every project fork from a snapshot. Without it, only its own does.
    Share(SnapshotShareOptions),
    /// Remove snapshots. Sandboxes that were forked from them go on.
    Rm(SnapshotRmOptions),
    /// Remove snapshots that nobody needs, the longest unused first.
    ///
    /// Snapshots stay that sandboxes were forked from or can be rolled back to, that are public, or that others are based on which stay.
    Prune(SnapshotPruneOptions),
}

#[derive(Debug, Args)]
pub struct SnapshotPruneOptions {
    /// Remove only those that were not forked for this long, such as 7d.
    #[arg(long, value_name = "TIME", value_parser = super::parse_seconds)]
    pub unused_for: Option<u64>,
    /// Stop as soon as what is left takes no more than this on disk, such as 20G.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_mib)]
    pub keep: u64,
    /// Also remove those that somebody has named, and not only those named after what they are made of. Needs --unused-for or --keep.
    #[arg(long, short)]
    pub all: bool,
    /// Remove only those of this project [default: all those that you may remove].
    #[arg(long)]
    pub project: Option<String>,
    /// Only show what would be removed.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotCreateOptions {
    /// The image to boot, by name or id. If there is no such image: the snapshot to base the new one on, as with --snapshot.
    #[arg(required_unless_present_any = ["from", "snapshot"], conflicts_with_all = ["from", "snapshot"])]
    pub image: Option<String>,
    /// The snapshot's name [default: the image's name; with --from, one that is free].
    #[arg(long, short)]
    pub tag: Option<String>,
    /// Instead of an image, make a snapshot of this sandbox, which goes on: the same as `forkd branch`.
    #[arg(long, alias = "from-sandbox", value_name = "SANDBOX")]
    pub from: Option<String>,
    /// Instead of an image, base the new snapshot on this one: it is forked, --run and --warm-up run in the fork, and only what differs
    /// is written.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "from", requires = "tag")]
    pub snapshot: Option<String>,
    /// Run this command as root with `sh -c` before --warm-up. May be given several times. One that fails ends it.
    #[arg(long, value_name = "COMMAND", conflicts_with = "from")]
    pub run: Vec<String>,
    #[command(flatten)]
    pub shape: SnapshotShape,
    /// Add this to the guest's environment, and to that of its sandboxes.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair, conflicts_with = "from")]
    pub env: Vec<(String, String)>,
    /// A command that runs from the start, as a shell would read it.
    #[arg(long, value_name = "COMMAND", value_parser = parse_words, conflicts_with = "from")]
    pub start: Option<Words>,
    /// The guest is ready when somebody listens on this port.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["ready_command", "from"])]
    pub ready_port: Option<u16>,
    /// The guest is ready when this command ends with 0.
    #[arg(long, value_name = "COMMAND", value_parser = parse_words, conflicts_with = "from")]
    pub ready_command: Option<Words>,
    /// How long the guest may take to be ready, such as 90 or 10m.
    #[arg(long, value_name = "TIME", value_parser = super::parse_seconds, conflicts_with = "from")]
    pub ready_timeout: Option<u64>,
    /// Run this code before the guest is frozen: python=CODE, javascript=CODE or bash=CODE, or @FILE for CODE.
    #[arg(long, value_name = "LANGUAGE=CODE", value_parser = parse_warm_up, conflicts_with = "from")]
    pub warm_up: Vec<WarmUp>,
    /// Let the guest and its sandboxes trust the certificates of the daemon's host, and use its proxies.
    #[arg(long, conflicts_with = "from")]
    pub host_certs: bool,
    /// For programs written for E2B: user `user` in /home/user, with passwordless sudo, whatever the image has.
    #[arg(long, conflicts_with = "from")]
    pub e2b: bool,
    /// Return as soon as the snapshot can be forked from, without waiting until it is on disk.
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What a guest is booted with.
#[derive(Debug, Clone, Args)]
pub struct SnapshotShape {
    /// vCPUs of the guest; as the image's recipe says, else 1.
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Memory of the guest, in MiB or with a unit (512, 2G); as the image's recipe says, else 512.
    #[arg(long, alias = "mem-size-mib", value_name = "SIZE", value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// What each sandbox may write to its disk; as the image's recipe says, else 4G.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub disk: Option<u64>,
    /// What the guest is shown of the host's CPU: all of it, or what every CPU of a level has, so that the snapshot can be
    /// used on other hosts [default: host].
    #[arg(long, value_name = "MODEL", value_parser = cpu_parser())]
    pub cpu: Option<Cpu>,
    /// Leave out the network device: sandboxes reach nothing but what the daemon carries to them.
    #[arg(long)]
    pub no_network: bool,
    /// The kernel, by its name [default: see forkd kernel default].
    #[arg(long)]
    pub kernel: Option<String>,
}

#[derive(Debug, Args)]
pub struct SnapshotBuildOptions {
    /// Build these snapshots and those they are based on [default: all of the file].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// The file with the tables [snapshot.NAME].
    #[arg(long, short, value_name = "FILE", default_value = "forkd.toml")]
    pub file: PathBuf,
    /// Make all of them anew, also those of the same contents.
    #[arg(long)]
    pub no_cache: bool,
    /// Make nothing, and show what would be made.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotLsOptions {
    /// List the tags of this repository of a registry instead: registry.example/team/app.
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
    /// The snapshot's name here [default: the name it was saved under].
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
    /// Where to push it: registry.example/team/app:tag.
    pub reference: String,
    /// Take blobs that this repository of the same registry has from there, such as team/base. Repositories that the snapshot or its
    /// parents were pushed to or pulled from are tried anyway.
    #[arg(long, value_name = "REPOSITORY")]
    pub mount_from: Vec<String>,
    /// Add it to the snapshots that the tag names, as the variant NAME, instead of replacing them. A pull takes the first variant that fits
    /// its host's CPU.
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Push a snapshot of a sandbox, or one based on such a snapshot: it contains the memory of whoever used the sandbox.
    #[arg(long, short)]
    pub yes: bool,
    /// Sign it with the private key in this file. The key does not leave this host.
    #[arg(long, value_name = "FILE")]
    pub sign_key: Option<PathBuf>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotPullOptions {
    /// Where to pull it from: registry.example/team/app:tag.
    pub reference: String,
    /// The snapshot's name here [default: the name it was pushed under].
    #[arg(long, short)]
    pub tag: Option<String>,
    /// Refuse it unless it is signed with the key whose public half is in this file, beside what the daemon's policy demands.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotSignOptions {
    /// The snapshot: registry.example/team/app:tag, or with @sha256:... what has this digest.
    pub reference: String,
    /// Sign with the private key in this file. The key does not leave this host.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotKeyCommand {
    /// Make a key: the private half goes to FILE, which only its owner can read, the public one to FILE.pub.
    New(SnapshotKeyNewOptions),
}

#[derive(Debug, Args)]
pub struct SnapshotKeyNewOptions {
    /// The file to write. There must be neither FILE nor FILE.pub yet.
    pub file: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotInspectOptions {
    /// The snapshot.
    pub tag: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotShareOptions {
    /// The snapshot.
    pub tag: String,
    /// Take it back: only its own project uses it from now on. Sandboxes that others have forked from it go on.
    #[arg(long)]
    pub off: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotTagOptions {
    /// The snapshot.
    pub tag: String,
    /// The name: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit.
    pub name: String,
    /// Move the name if another snapshot has it.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SnapshotRmOptions {
    /// Snapshots, or other names of snapshots. Of a snapshot with another name, only that name is removed.
    #[arg(value_name = "TAG", required = true)]
    pub tags: Vec<String>,
    /// Also remove the snapshots based on them.
    #[arg(long)]
    pub cascade: bool,
    /// Also remove their other names. Without this, a snapshot that has any is not removed.
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
    let language = match language {
        "python" => forkd_api::code::Language::Python,
        "javascript" => forkd_api::code::Language::Javascript,
        "bash" => forkd_api::code::Language::Bash,
        _ => return Err("expected python, javascript or bash".into()),
    };
    let code = match code.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?,
        None => code.to_owned(),
    };
    Ok(WarmUp { language, code })
}

#[cfg(test)]
mod tests {
    use forkd_api::code::Language;

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
