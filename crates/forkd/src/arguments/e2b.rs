//! `forkd e2b …`.

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output, SnapshotShape};

#[derive(Debug, Subcommand)]
pub enum E2bCommand {
    /// Make the template that E2B's clients take if nothing else is said: code-interpreter-v1, which is also base.
    ///
    /// Without an image, one of Debian is made the first time: Python with pip, numpy, pandas, matplotlib, scikit-learn, Pillow and
    /// requests, and Node.js 24, which also runs TypeScript. A template that is there already stays.
    Setup(E2bSetupOptions),
    /// Print what E2B's clients have to know of the daemon, for a shell: eval "$(forkd e2b env)".
    ///
    /// The key is the token that is given, or the machine's own; without either any key will do, as long as the daemon has no tokens.
    /// A daemon that is found by its socket is taken to listen on 127.0.0.1:8889.
    Env(E2bEnvOptions),
}

#[derive(Debug, Args)]
pub struct E2bEnvOptions {
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct E2bSetupOptions {
    /// The image, by its name, instead of the usual one.
    pub image: Option<String>,
    /// Take Debian's Node.js 18 instead of 24 from PyPI. It cannot run TypeScript.
    #[arg(long, conflicts_with = "image")]
    pub debian_node: bool,
    #[command(flatten)]
    pub shape: SnapshotShape,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
