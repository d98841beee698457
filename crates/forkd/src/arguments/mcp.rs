//! `forkd mcp …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forkd_mcp::{DEFAULT_MAX_SANDBOXES, Settings, ToolSet};

use super::{DaemonOptions, parse_seconds};

/// The usual time to live, as it is written.
const USUAL_TTL: &str = "30m";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_value_name = "COMMAND")]
pub struct McpOptions {
    #[command(subcommand)]
    pub command: Option<McpCommand>,
    #[command(flatten)]
    pub serve: McpServeOptions,
}

#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Add forkd to the configuration file of an MCP client, or print the entry.
    ///
    /// The rest of the file is not changed. Options of `forkd mcp` become part of the entry. Tokens do not: use --token-file.
    Install(McpInstallOptions),
}

#[derive(Debug, Args)]
pub struct McpServeOptions {
    #[command(flatten)]
    pub behaviour: McpBehaviour,
    /// Log filter for stderr: a level, or levels by module.
    #[arg(long, value_name = "FILTER", env = "FORKD_LOG", default_value = "warn")]
    pub log: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

/// How tools behave.
#[derive(Debug, Args)]
pub struct McpBehaviour {
    /// Tools to offer: forkd's own, or those of the MCP server of deeplethe/forkd under their names.
    #[arg(long, value_enum, default_value = "tasks")]
    pub tools: ToolsArgument,
    /// Snapshot for new sandboxes [default: code-interpreter-v1, else the only one that is not a branch].
    #[arg(long, value_name = "TAG")]
    pub snapshot: Option<String>,
    /// Maximum number of sandboxes made through MCP by this caller.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_MAX_SANDBOXES)]
    pub max_sandboxes: u32,
    /// Time to live of such a sandbox after its last use, such as 90, 10m or 2h.
    #[arg(long, value_name = "TIME", default_value = USUAL_TTL, value_parser = parse_seconds)]
    pub sandbox_ttl: u64,
}

impl McpBehaviour {
    pub fn settings(&self) -> Settings {
        Settings {
            tools: self.tools.into(),
            snapshot: self.snapshot.clone(),
            max_sandboxes: self.max_sandboxes,
            ttl_secs: self.sandbox_ttl,
        }
    }
}

/// The same for the daemon's own `/mcp`.
#[derive(Debug, Args)]
pub struct ServeMcpOptions {
    /// Tools that /mcp offers: forkd's own, or those of the MCP server of deeplethe/forkd under their names.
    #[arg(long, value_enum, default_value = "tasks")]
    pub mcp_tools: ToolsArgument,
    /// Snapshot for sandboxes made through /mcp [default: code-interpreter-v1, else the only one that is not a branch].
    #[arg(long, value_name = "TAG")]
    pub mcp_snapshot: Option<String>,
    /// Maximum number of sandboxes made through /mcp by each token.
    #[arg(long, value_name = "COUNT", default_value_t = DEFAULT_MAX_SANDBOXES)]
    pub mcp_sandboxes: u32,
    /// Time to live of such a sandbox after its last use, such as 90, 10m or 2h.
    #[arg(long, value_name = "TIME", default_value = USUAL_TTL, value_parser = parse_seconds)]
    pub mcp_ttl: u64,
}

impl ServeMcpOptions {
    pub fn settings(&self) -> Settings {
        Settings {
            tools: self.mcp_tools.into(),
            snapshot: self.mcp_snapshot.clone(),
            max_sandboxes: self.mcp_sandboxes,
            ttl_secs: self.mcp_ttl,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ToolsArgument {
    Tasks,
    Reference,
}

impl From<ToolsArgument> for ToolSet {
    fn from(tools: ToolsArgument) -> ToolSet {
        match tools {
            ToolsArgument::Tasks => ToolSet::Tasks,
            ToolsArgument::Reference => ToolSet::Reference,
        }
    }
}

#[derive(Debug, Args)]
pub struct McpInstallOptions {
    /// The client. Without one, the entry is printed in the most common form.
    #[arg(value_enum)]
    pub client: Option<McpClient>,
    /// Print the entry instead of writing it.
    #[arg(long)]
    pub print: bool,
    /// Name of the entry.
    #[arg(long, default_value = "forkd")]
    pub name: String,
    /// Write it to the project configuration in this directory (claude-code, cursor, vscode).
    #[arg(long, value_name = "PATH")]
    pub project: Option<PathBuf>,
    /// Replace an existing entry of this name.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub behaviour: McpBehaviour,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

/// Clients whose files are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum McpClient {
    ClaudeCode,
    ClaudeDesktop,
    Cline,
    Cursor,
    GeminiCli,
    Vscode,
    Windsurf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_time_to_live_is_the_services() {
        assert_eq!(parse_seconds(USUAL_TTL), Ok(Settings::default().ttl_secs));
    }
}
