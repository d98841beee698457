//! `forkd doctor`.

use forkd_host::doctor::{Diagnosis, Need, Status, Way, examine};
use forkd_host::home;

use super::{print, print_json};
use crate::arguments::DoctorOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &DoctorOptions) -> Result<Exit, CliError> {
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let diagnosis = examine(&binaries, &home::directory()?);
    if options.output.json {
        print_json(&diagnosis)?;
    } else {
        print(&render(&diagnosis))?;
    }
    Ok(match diagnosis.way {
        Way::Native | Way::Machine => Exit::Success,
        Way::None => Exit::Failure,
    })
}

fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for check in &diagnosis.checks {
        let mark = match check.status {
            Status::Ok => "ok  ",
            // Nobody misses the machine's tools where sandboxes run without it.
            Status::Failed if diagnosis.way == Way::Native && check.needed_for != Need::Native => "-   ",
            Status::Warning => "warn",
            Status::Failed => "fail",
        };
        text += &format!("{mark}  {:<13} {}\n", check.name, check.detail);
        if let Some(hint) = &check.hint {
            text += &format!("{:20} {hint}\n", "");
        }
    }
    text += "\n";
    let reason = diagnosis.reason.as_deref().unwrap_or_default();
    text += &match diagnosis.way {
        Way::Native => "Sandboxes run natively on this host.\n".to_owned(),
        Way::Machine => format!("Sandboxes run in the machine on this host ({reason}).\n"),
        Way::None => format!("Sandboxes cannot run on this host ({reason}).\n"),
    };
    text
}
