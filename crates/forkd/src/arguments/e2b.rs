//! `forkd e2b …`.

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output, SnapshotShape};

#[derive(Debug, Subcommand)]
pub enum E2bCommand {
    /// Make the default template of the E2B SDKs: code-interpreter-v1, which also serves as base.
    ///
    /// Without an image, builds one of Debian the first time: Python with pip, numpy, pandas, matplotlib, scikit-learn, Pillow and
    /// requests, and Node.js 24, which also runs TypeScript. An existing template is kept.
    Setup(E2bSetupOptions),
    /// Print the environment variables that E2B SDKs need, as in: eval "$(forkd e2b env)".
    ///
    /// E2B_API_URL and E2B_SANDBOX_URL are the daemon's TCP address. E2B_API_KEY is the token of --token-file or FORKD_TOKEN, else
    /// the machine's. Without a token, it is a key of zeros if the daemon accepts any key, and is not printed otherwise.
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
    /// Image to use instead of the default one.
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
