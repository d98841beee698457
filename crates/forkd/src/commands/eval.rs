//! `forkd eval ID CODE`.

use std::io::{self, Read, Write};

use forkd_api::code::{Displayed, Eval, EvalEvent};
use forkd_client::ClientError;

use super::{print, print_json, say, with_daemon};
use crate::arguments::EvalOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &EvalOptions) -> Result<Exit, CliError> {
    let mut code = options.code.clone();
    if code == "-" {
        code.clear();
        io::stdin().read_to_string(&mut code).map_err(|error| CliError::Io("read the code", error))?;
    }
    let wanted = Eval {
        code,
        language: options.language.into(),
        context: options.context.clone(),
        env: options.env.iter().cloned().collect(),
        timeout_secs: options.timeout,
    };
    let timeout = options.timeout;
    with_daemon(&options.daemon, async |client| {
        if options.output.json {
            let evaluated = client.eval(&options.sandbox, &wanted).await?;
            print_json(&evaluated)?;
            return Ok(exit(evaluated.error.is_some(), evaluated.timed_out));
        }
        let mut events = client.eval_lines(&options.sandbox, &wanted).await?;
        let mut failed = false;
        while let Some(event) = events.next().await? {
            match event {
                EvalEvent::Stdout(text) => print(&text)?,
                // An error of stderr itself cannot be reported.
                EvalEvent::Stderr(text) => drop(io::stderr().write_all(text.as_bytes())),
                EvalEvent::Result(shown) => show(&shown)?,
                EvalEvent::Raised(error) => {
                    failed = true;
                    match error.traceback.trim_end() {
                        "" => say(&format!("{}: {}", error.name, error.value)),
                        traceback => say(traceback),
                    }
                }
                EvalEvent::Ended { timed_out, truncated } => {
                    if truncated {
                        say("forkd: warning: display output omitted: too large");
                    }
                    if timed_out {
                        say(&format!("forkd: the code was interrupted after {timeout} s (--timeout)"));
                    }
                    return Ok(exit(failed, timed_out));
                }
                EvalEvent::Error(error) => return Err(ClientError::from(error).into()),
            }
        }
        Err(ClientError::CutOff.into())
    })
}

fn exit(failed: bool, timed_out: bool) -> Exit {
    if failed || timed_out { Exit::Failure } else { Exit::Success }
}

/// The value of the last expression on a line of its own. Of what was displayed before, what is not text is only named.
fn show(shown: &Displayed) -> Result<(), CliError> {
    match shown.data.get("text/plain") {
        Some(text) => print(&format!("{text}\n")),
        None => {
            let kinds: Vec<&str> = shown.data.keys().map(String::as_str).collect();
            say(&format!("forkd: displayed {}; --json has it", kinds.join(", ")));
            Ok(())
        }
    }
}
