//! `forkd ls`, `forkd ps`.

use forkd_api::sandbox::{ListSandboxes, Sandbox, SandboxState};

use super::{lines, print_value, with_daemon};
use crate::arguments::SandboxLsOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{ago, bytes, until};
use crate::table::{Side, Table};

pub fn run(options: &SandboxLsOptions) -> Result<Exit, CliError> {
    let wanted = ListSandboxes {
        state: options.state.map(Into::into),
        snapshot_tag: options.snapshot.clone(),
        metadata: options.metadata.clone(),
        ..Default::default()
    };
    let mut sandboxes = with_daemon(&options.daemon, async |client| Ok(client.sandboxes(&wanted).await?))?;
    if !options.all && options.state.is_none() {
        sandboxes.retain(|sandbox| sandbox.state != SandboxState::Ended);
    }
    print_value(&options.output, &sandboxes, || match options.quiet {
        true => lines(sandboxes.iter().map(|sandbox| &sandbox.id)),
        false => render(&sandboxes),
    })?;
    Ok(Exit::Success)
}

fn render(sandboxes: &[Sandbox]) -> String {
    let mut table = Table::new([
        ("ID", Side::Left),
        ("SNAPSHOT", Side::Left),
        ("STATE", Side::Left),
        ("AGE", Side::Right),
        ("ENDS IN", Side::Right),
        ("VCPUS", Side::Right),
        ("MEMORY", Side::Right),
        ("PID", Side::Right),
        ("BRANCHES", Side::Right),
    ]);
    for sandbox in sandboxes {
        table.row([
            sandbox.id.clone(),
            sandbox.snapshot_tag.clone(),
            state(sandbox.state).into(),
            ago(sandbox.created_at_unix),
            sandbox.expires_at_unix.map_or_else(|| "-".into(), until),
            sandbox.vcpus.to_string(),
            bytes(sandbox.memory_mib << 20),
            sandbox.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            sandbox.branches.len().to_string(),
        ]);
    }
    table.render()
}

pub(super) fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Starting => "starting",
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        SandboxState::Ended => "ended",
    }
}
