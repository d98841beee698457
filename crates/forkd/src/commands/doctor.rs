//! `forkd doctor`.

use std::time::Duration;

use forkd_api::system::Problem;
use forkd_host::doctor::{Check, Diagnosis, Need, Status, Way, examine};
use forkd_host::home;

use super::{asynchronously, print, print_json};
use crate::arguments::{DaemonOptions, DoctorOptions};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What to do about a daemon of another version.
const RESTART: &str = "restart the daemon (systemctl restart forkd); sandboxes keep running, with the VM process and agent they were started with";

/// How long a daemon may take to say which one it is.
const ANSWER: Duration = Duration::from_secs(5);

pub fn run(options: &DoctorOptions) -> Result<Exit, CliError> {
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let mut diagnosis = examine(&binaries, &home::directory()?);
    diagnosis.checks.extend(asynchronously(async { Ok(check_daemon(&options.daemon).await) })?);
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

/// Whether a daemon answers, and this user may ask it; and whether it can read its files.
async fn check_daemon(options: &DaemonOptions) -> Vec<Check> {
    let asked = async {
        let Some(client) = daemon::look(options).await? else { return Ok(None) };
        let version = client.version().await?.version;
        // An older daemon does not know, and only an admin is told.
        let problems = client.problems().await.map(|list| list.problems).unwrap_or_default();
        let found = format!("forkd {version} at {}", client.address());
        Ok::<_, CliError>(Some((version, found, problems)))
    };
    let mut checks = Vec::new();
    let (status, detail, hint) = match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(Some((version, found, problems)))) => {
            checks.extend(check_files(&problems));
            match version == OWN_VERSION {
                true => (Status::Ok, found, None),
                false => {
                    (Status::Warning, format!("{found}; this forkd is {OWN_VERSION}"), Some(RESTART.into()))
                }
            }
        }
        Ok(Ok(None)) => (Status::Warning, "none answers".into(), Some("forkd run starts one".into())),
        Ok(Err(error)) => (Status::Failed, error.to_string(), error.hint()),
        Err(_) => {
            let detail = format!("no answer within {} s", ANSWER.as_secs());
            (Status::Failed, detail, Some("its log may have the reason".into()))
        }
    };
    checks.insert(0, Check { name: "daemon", status, needed_for: Need::Neither, detail, hint });
    checks
}

/// What the daemon cannot read, if there is anything.
fn check_files(problems: &[Problem]) -> Option<Check> {
    let (first, others) = problems.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more: the daemon's log has all)"),
    };
    Some(Check {
        name: "files",
        status: Status::Failed,
        needed_for: Need::Neither,
        detail: format!("the daemon cannot read {}: {}{more}", first.path, first.reason),
        hint: Some("it leaves it alone and removes nothing; mend the file, or move it away".into()),
    })
}

fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for check in &diagnosis.checks {
        let mark = match check.status {
            Status::Ok => "ok  ",
            // Nobody misses the machine's tools where sandboxes run without it.
            Status::Failed if diagnosis.way == Way::Native && check.needed_for == Need::Machine => "-   ",
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
