//! `forkd events`.

use forkd_api::event::{DropReason, Event, EventQuery, What};

use super::snapshot::ls::status;
use super::{ls, print, with_daemon};
use crate::arguments::EventsOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{at_ms, bytes};
use crate::table::plain;

pub fn run(options: &EventsOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let joined = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
        let wanted = EventQuery {
            after: options.after.clone(),
            sandbox: joined(&options.sandbox),
            snapshot: joined(&options.snapshot),
            event: joined(&options.event),
        };
        let mut events = client.events(&wanted).await?;
        while let Some(event) = events.next().await? {
            let line = match options.output.json {
                true => {
                    serde_json::to_string(&event).map_err(|error| CliError::Io("write JSON", error.into()))?
                }
                false => plain(&render(&event)),
            };
            print(&format!("{line}\n"))?;
        }
        Ok(Exit::Success)
    })
}

fn render(event: &Event) -> String {
    let what = match &event.what {
        What::Sandbox { id, state, ended: None } => format!("sandbox {id} is {}", ls::state(*state)),
        What::Sandbox { id, ended: Some(ended), .. } => format!("sandbox {id} has ended: {}", ended.detail),
        What::SandboxRemoved { id } => format!("sandbox {id} is removed"),
        What::Panicked { id } => format!("sandbox {id}: the guest's kernel has panicked"),
        What::OutOfDisk { id, limit_bytes } => {
            format!("sandbox {id}: its disk is full, which may hold {}", bytes(*limit_bytes))
        }
        What::Dropped { id, reason, protocol, destination, port, name } => {
            let why = match reason {
                DropReason::Refused => "not allowed",
                DropReason::Spoofed => "with an address that is not its own",
                DropReason::OverLimit => "beyond its limits",
            };
            let what = match (name, destination) {
                (Some(name), _) => format!("the name {name}"),
                (None, Some(to)) => {
                    let port = port.map(|port| format!(" port {port}")).unwrap_or_default();
                    format!("{} to {to}{port}", protocol.as_deref().unwrap_or("a packet"))
                }
                (None, None) => "a packet".into(),
            };
            format!("sandbox {id}: {what} was dropped, {why}")
        }
        What::Busy { id, contexts } => {
            format!("sandbox {id}: code continues in context {}", contexts.join(", "))
        }
        What::RolledBack { id, tag } => format!("sandbox {id} is back at {tag}"),
        What::Snapshot { tag, status: is } => format!("snapshot {tag} is {}", status(*is)),
        What::SnapshotRemoved { tag } => format!("snapshot {tag} is removed"),
        What::Missed { count: Some(count) } => format!("{count} events were missed"),
        What::Missed { count: None } => "events were missed".into(),
    };
    format!("{}  {what}", at_ms(event.at_unix_ms))
}
