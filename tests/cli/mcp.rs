//! `forkd mcp`: over stdin and stdout, and the entries of clients.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use forkd_tests::engine::process::Failure;
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::world::{Home, World};

/// Calls tools one after another, and gives their texts.
fn call(
    home: &Home,
    options: &[&str],
    calls: &[(&'static str, Value)],
) -> Result<Vec<(bool, String)>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut command = tokio::process::Command::from(home.command(&[&["mcp"], options].concat()));
        command.stderr(Stdio::null());
        let client = ().serve(TokioChildProcess::new(command)?).await?;
        let mut texts = Vec::new();
        for (tool, arguments) in calls {
            let arguments = arguments.as_object().cloned().unwrap_or_default();
            let result =
                client.call_tool(CallToolRequestParams::new(*tool).with_arguments(arguments)).await?;
            let text = result.content.iter().filter_map(|block| Some(block.as_text()?.text.clone()));
            texts.push((result.is_error == Some(true), text.collect::<Vec<_>>().join("\n")));
        }
        client.cancel().await?;
        Ok(texts)
    })
}

#[test]
fn tools_are_served_over_stdio() -> Result<(), Failure> {
    let world = World::new()?;
    let calls = [
        ("snapshots", json!({})),
        ("fork", json!({ "source": "base", "n": 2 })),
        ("sandboxes", json!({})),
        ("fork", json!({ "source": "base", "n": 2 })),
    ];
    let texts = call(&world, &["--max-sandboxes", "3"], &calls)?;
    assert!(texts[0].1.contains("| base |"), "{texts:?}");
    assert_eq!(texts[1].1.matches("| forked |").count(), 2, "{texts:?}");
    assert_eq!(texts[2].1.matches("| running |").count(), 2, "{texts:?}");
    assert!(texts[3].0 && texts[3].1.contains("may have 3 sandboxes"), "{texts:?}");
    let sandboxes: Value = serde_json::from_str(&world.stdout(&["ls", "--json"])?)?;
    assert!(sandboxes[0]["expires_at_unix"].is_number(), "{sandboxes}");
    Ok(())
}

/// A client may start before the daemon, and hears of it when it calls.
#[test]
fn without_a_daemon_tools_say_so() -> Result<(), Failure> {
    let home = Home::new()?;
    let texts = call(&home, &[], &[("sandboxes", json!({}))])?;
    assert!(
        texts[0].0 && texts[0].1.starts_with("Cannot find the daemon: no daemon is running"),
        "{texts:?}"
    );
    assert!(texts[0].1.contains("forkd serve"), "{texts:?}");
    Ok(())
}

#[test]
fn stdout_has_the_protocol_only_and_the_end_of_stdin_ends_it() -> Result<(), Failure> {
    let home = Home::new()?;
    let mut command = home.command(&["mcp", "--log", "debug"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let hello = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    });
    use std::io::Write;
    writeln!(stdin, "{hello}")?;
    writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }))?;
    std::thread::sleep(Duration::from_millis(500));
    drop(stdin);
    let begun = Instant::now();
    let output = child.wait_with_output()?;
    assert!(output.status.success() && begun.elapsed() < Duration::from_secs(20), "{output:?}");
    let lines: Vec<Value> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(lines.iter().map(|line| line["id"].clone()).collect::<Vec<_>>(), [json!(1), json!(2)]);
    assert_eq!(lines[0]["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(lines[1]["result"]["tools"].as_array().map(Vec::len), Some(11));
    Ok(())
}

#[test]
fn an_entry_is_written_once_and_nothing_is_lost() -> Result<(), Failure> {
    let home = Home::new()?;
    let install = |arguments: &[&str]| -> Result<String, Failure> {
        let mut command = home.command(&[&["mcp", "install"], arguments].concat());
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").env_remove("FORKD_HOME");
        let binary = command.get_program().to_string_lossy().into_owned();
        Ok(outcome(&command.output()?, home.path()).replace(&binary, "FORKD"))
    };
    assert_data_eq!(
        install(&["--snapshot", "python", "--address", "http://localhost:8889"])?,
        str![[r#"
exit: 0
--- stdout
{
  "mcpServers": {
    "forkd": {
      "args": [
        "mcp",
        "--snapshot",
        "python",
        "--address",
        "http://localhost:8889"
      ],
      "command": "FORKD"
    }
  }
}

"#]]
    );
    fs::create_dir(home.path().join(".cursor"))?;
    let file = home.path().join(".cursor/mcp.json");
    fs::write(&file, r#"{"mcpServers": {"other": {"url": "http://x"}}, "more": 1.0}"#)?;
    assert_data_eq!(
        install(&["cursor"])?,
        str![[r#"
exit: 0
--- stderr
forkd: wrote the entry "forkd" to HOME/.cursor/mcp.json; restart the client to use it

"#]]
    );
    let written: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    assert_eq!(written["mcpServers"]["forkd"]["args"], json!(["mcp"]));
    assert_eq!((&written["mcpServers"]["other"]["url"], &written["more"]), (&json!("http://x"), &json!(1.0)));
    assert!(install(&["cursor"])?.contains("has the entry \"forkd\" already"));
    assert_data_eq!(
        install(&["cursor", "--tools", "reference"])?,
        str![[r#"
exit: 1
--- stderr
forkd: HOME/.cursor/mcp.json has another entry "forkd"; replace it with --force, or give this one another name (--name)

"#]]
    );
    assert!(install(&["cursor", "--tools", "reference", "--force"])?.starts_with("exit: 0"));
    for (client, path, section) in [
        ("claude-code", ".claude.json", "mcpServers"),
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
        (
            "cline",
            ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            "mcpServers",
        ),
        ("gemini-cli", ".gemini/settings.json", "mcpServers"),
        ("vscode", ".config/Code/User/mcp.json", "servers"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
    ] {
        assert!(install(&[client])?.starts_with("exit: 0"), "{client}");
        let written: Value = serde_json::from_str(&fs::read_to_string(home.path().join(path))?)?;
        assert!(written[section]["forkd"]["command"].is_string(), "{client}: {written}");
    }
    let project = home.path().join("project");
    let project = project.to_str().ok_or("a path")?;
    assert!(install(&["vscode", "--project", project])?.starts_with("exit: 0"));
    assert!(home.path().join("project/.vscode/mcp.json").exists());
    assert!(install(&["windsurf", "--project", project])?.contains("no configuration files of projects"));
    Ok(())
}

#[test]
fn a_file_that_is_not_json_is_refused_and_stays() -> Result<(), Failure> {
    let home = Home::new()?;
    fs::create_dir_all(home.path().join(".config/Code/User"))?;
    let file = home.path().join(".config/Code/User/mcp.json");
    let comment = "// mine\n{ \"servers\": {} }\n";
    fs::write(&file, comment)?;
    let mut command = home.command(&["mcp", "install", "vscode"]);
    command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
    let said = outcome(&command.output()?, home.path());
    assert!(said.contains("is not a JSON object, and was not changed"), "{said}");
    assert_eq!(fs::read_to_string(&file)?, comment);
    Ok(())
}
