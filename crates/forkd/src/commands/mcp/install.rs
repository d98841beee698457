//! `forkd mcp install`: the entry for a client of the Model Context Protocol.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::config_file::{Change, set_entry};
use crate::arguments::{McpBehaviour, McpClient, McpInstallOptions, ToolsArgument};
use crate::commands::{print_json, say};
use crate::daemon::{SOCKET_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE};
use crate::error::CliError;
use crate::exit::Exit;

/// What leads to the daemon and has no option. Clients that are started by a desktop do not have it.
const VARIABLES: [&str; 3] = [forkd_host::home::HOME_VARIABLE, SOCKET_VARIABLE, URL_VARIABLE];

/// An entry cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("no home directory: HOME is not set")]
    NoHome,
    #[error("this client has no configuration files of projects; leave out --project, or use --print")]
    NoProject,
    #[error("the path {0:?} is not UTF-8, which JSON needs")]
    NotText(OsString),
}

pub fn run(options: &McpInstallOptions) -> Result<Exit, CliError> {
    let entry = entry(options).map_err(CliError::of_verb)?;
    let (section, entry) = shape(options.client, entry);
    let Some(client) = options.client.filter(|_| !options.print) else {
        print_json(&json!({ section: { &options.name: entry } }))?;
        return Ok(Exit::Success);
    };
    let directories = Directories::of_user().map_err(CliError::of_verb)?;
    let path = match &options.project {
        Some(project) => project_file(client, project).map_err(CliError::of_verb)?,
        None => directories.file(client),
    };
    let change =
        set_entry(&path, section, &options.name, &entry, options.force).map_err(CliError::of_verb)?;
    let path = path.display();
    say(&match change {
        Change::Written => {
            format!("forkd: wrote the entry {:?} to {path}; restart the client to use it", options.name)
        }
        Change::Unchanged => format!("forkd: {path} has the entry {:?} already", options.name),
    });
    if std::env::var_os(TOKEN_VARIABLE).is_some_and(|token| !token.is_empty())
        && options.daemon.token_file.is_none()
    {
        say(&format!(
            "forkd: warning: {TOKEN_VARIABLE} is set, and not part of the entry; name a file that has the token with --token-file"
        ));
    }
    Ok(Exit::Success)
}

/// The command that the client is to start.
fn entry(options: &McpInstallOptions) -> Result<Map<String, Value>, InstallError> {
    let program = std::env::current_exe().unwrap_or_else(|_| "forkd".into());
    let mut arguments = vec!["mcp".to_owned()];
    arguments.extend(of_behaviour(&options.behaviour));
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    let daemon = &options.daemon;
    if let Some(address) = &daemon.address {
        option("--address", address.to_string());
    }
    if let Some(path) = &daemon.token_file {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        option("--token-file", text(path.into())?);
    }
    if daemon.machine.as_str() != "default" {
        option("--machine", daemon.machine.to_string());
    }
    let mut entry = Map::new();
    entry.insert("command".into(), text(program.into())?.into());
    entry.insert("args".into(), arguments.into());
    let mut env = Map::new();
    for name in VARIABLES {
        if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) {
            env.insert(name.to_owned(), text(value)?.into());
        }
    }
    if !env.is_empty() {
        entry.insert("env".into(), env.into());
    }
    Ok(entry)
}

/// Options that are not as they would be anyway.
fn of_behaviour(behaviour: &McpBehaviour) -> Vec<String> {
    let McpBehaviour { tools, snapshot, max_sandboxes, sandbox_ttl } = behaviour;
    let usual = forkd_mcp::Settings::default();
    let mut arguments = Vec::new();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if *tools == ToolsArgument::Reference {
        option("--tools", "reference".into());
    }
    if let Some(snapshot) = snapshot {
        option("--snapshot", snapshot.clone());
    }
    if *max_sandboxes != usual.max_sandboxes {
        option("--max-sandboxes", max_sandboxes.to_string());
    }
    if *sandbox_ttl != usual.ttl_secs {
        option("--sandbox-ttl", sandbox_ttl.to_string());
    }
    arguments
}

fn text(value: OsString) -> Result<String, InstallError> {
    value.into_string().map_err(InstallError::NotText)
}

/// The object that a client looks for its servers in, and the entry as it wants it.
fn shape(client: Option<McpClient>, mut entry: Map<String, Value>) -> (&'static str, Value) {
    match client {
        Some(McpClient::Vscode) => {
            entry.insert("type".into(), "stdio".into());
            ("servers", entry.into())
        }
        Some(McpClient::ClaudeCode) => {
            entry.insert("type".into(), "stdio".into());
            ("mcpServers", entry.into())
        }
        _ => ("mcpServers", entry.into()),
    }
}

fn project_file(client: McpClient, project: &Path) -> Result<PathBuf, InstallError> {
    Ok(project.join(match client {
        McpClient::ClaudeCode => ".mcp.json",
        McpClient::Cursor => ".cursor/mcp.json",
        McpClient::Vscode => ".vscode/mcp.json",
        _ => return Err(InstallError::NoProject),
    }))
}

/// Where the user's files are.
struct Directories {
    home: PathBuf,
    config: PathBuf,
}

impl Directories {
    fn of_user() -> Result<Directories, InstallError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = variable("HOME").ok_or(InstallError::NoHome)?;
        let config = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        Ok(Directories { home, config })
    }

    fn file(&self, client: McpClient) -> PathBuf {
        let Directories { home, config } = self;
        match client {
            McpClient::ClaudeCode => home.join(".claude.json"),
            McpClient::ClaudeDesktop => config.join("Claude/claude_desktop_config.json"),
            McpClient::Cline => {
                config.join("Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json")
            }
            McpClient::Cursor => home.join(".cursor/mcp.json"),
            McpClient::GeminiCli => home.join(".gemini/settings.json"),
            McpClient::Vscode => config.join("Code/User/mcp.json"),
            McpClient::Windsurf => home.join(".codeium/windsurf/mcp_config.json"),
        }
    }
}
